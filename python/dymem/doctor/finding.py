"""What a check found."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Finding:
    what: str
    state: str                 # for people
    ok: bool
    advice: str = ""           # a sentence, or the command that mends it
    needed: bool = True        # without it dymem cannot serve PyTorch here
    facts: dict = dataclasses.field(default_factory=dict)  # for --json; bytes and microseconds, by their names

    @property
    def missing(self) -> bool:
        return self.needed and not self.ok
