"""What a block is coloured by, and the colours. Pure: from a Layout to a class for each block.

The colours tell eight classes apart also for most colour-blind people (Okabe and Ito's); greys are for memory.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from dymem.config import format_bytes
from dymem.errors import InvalidArgument

if TYPE_CHECKING:
    import numpy as np

    from dymem.plotting.layout import Layout

NOTHING, IDLE, PENDING, FIRST = 0, 1, 2, 3  # classes of pixels; those of blocks follow
NOTHING_COLOUR, IDLE_COLOUR, PENDING_COLOUR = "#ffffff", "#d4d4d4", "#8a8a8a"
PALETTE = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#6a51a3", "#444444"]
LIVE_LINE, RESERVED_LINE = "#000000", "#c00000"

_PHASES = {"i": "building the model", "F": "forward", "B": "backward", "O": "optimizer", "S": "start of step"}
_SIZES = [1 << 20, 16 << 20, 64 << 20, 256 << 20]
_MOBILITY = ["untagged", "movable", "temporary", "reclaimed"]


@dataclasses.dataclass
class Classes:
    of_block: np.ndarray   # an index into names
    names: list[str]

    @property
    def colours(self) -> list[str]:
        return [PALETTE[i % len(PALETTE)] for i in range(len(self.names))]


def classify(layout: Layout, by: str) -> Classes:
    """Classes by "phase", "mobility", "size" or "stream"."""
    if by not in CLASSIFIERS:
        raise InvalidArgument(f"blocks cannot be coloured by '{by}'; choose {', '.join(CLASSIFIERS)}.")
    return CLASSIFIERS[by](layout, layout.events[layout.born])


def _by_phase(layout: Layout, allocs) -> Classes:
    import numpy as np

    phase, before = allocs["phase"], allocs["iteration"] < 0
    of, names = np.zeros(len(allocs), np.int64), []
    for letter, name in _PHASES.items():
        mine = before & (phase == 0) if letter == "i" else (phase == ord(letter)) & ~(before & (phase == 0))
        if mine.any():
            of[mine] = len(names)
            names.append(name)
    known = np.isin(phase, [ord(letter) for letter in _PHASES]) | (before & (phase == 0))
    for code in np.unique(phase[~known]):
        of[~known & (phase == code)] = len(names)
        names.append(f"phase {chr(code)}" if code else "phase not told")
    if not (allocs["iteration"] >= 0).any():
        names = [name.replace(_PHASES["i"], "phase not told") for name in names]
    return Classes(of, names)


def _by_mobility(layout: Layout, allocs) -> Classes:
    import numpy as np

    present, of = np.unique(np.minimum(allocs["mobility"], len(_MOBILITY) - 1), return_inverse=True)
    return Classes(of, [_MOBILITY[m] for m in present])


def _by_size(layout: Layout, allocs) -> Classes:
    import numpy as np

    edges = [format_bytes(size).replace(".00", "").replace(".0", "") for size in _SIZES]
    names = [f"up to {edge}" for edge in edges] + [f"more than {edges[-1]}"]
    present, of = np.unique(np.searchsorted(_SIZES, layout.size, "left"), return_inverse=True)
    return Classes(of, [names[i] for i in present])


def _by_stream(layout: Layout, allocs) -> Classes:
    import numpy as np

    streams, first = np.unique(allocs["stream"], return_index=True)
    streams = streams[np.argsort(first)]  # in the order they first appear
    rank = {int(stream): min(i, len(PALETTE) - 1) for i, stream in enumerate(streams)}
    of = np.array([rank[int(stream)] for stream in allocs["stream"]], np.int64)
    names = [f"stream {i}" if stream else "default stream" for i, stream in enumerate(streams[:len(PALETTE)])]
    if len(streams) > len(PALETTE):
        names[-1] = f"{len(streams) - len(PALETTE) + 1} more streams"
    return Classes(of, names)


CLASSIFIERS = {"phase": _by_phase, "mobility": _by_mobility, "size": _by_size, "stream": _by_stream}
