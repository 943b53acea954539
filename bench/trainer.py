"""One bench/train.py process whose steps are let go one at a time, so that two of them can take turns on one card.

    with Trainer("unet_b16", "native") as a, Trainer("unet_b16", "dymem") as b:
        steps = all(t.ready() for t in (a, b)) and a.step() and b.step()
        result = a.result()          # what train.py printed at the end, or {"error": …, "stderr": …}

How turns are taken is dymem.compare.turns; here is only which command that is.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
if importlib.util.find_spec("dymem") is None:  # a checkout that was built in place
    sys.path.insert(0, str(HERE.parent / "python"))

from dymem.compare.turns import Turns, last_json  # noqa: E402

__all__ = ["Trainer", "last_json"]


class Trainer(Turns):
    def __init__(self, workload: str, allocator: str, *options: str, seconds: float = 600.0) -> None:
        """Starts the process; it is killed when `seconds` have passed."""
        super().__init__([sys.executable, str(HERE / "train.py"), workload, "--allocator", allocator, "--lockstep",
                          *options], seconds=seconds)
