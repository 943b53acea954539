"""Records who held what under an allocator, for pictures of address over time: in a run of its own, since it costs time.

PyTorch's native allocator, with or without expandable segments, tells every address in its snapshot. dymem writes the
trace of what it was asked, from which a replay finds the addresses. The others tell nothing. Phases are said by the
program's own thread between its calls, as metadata of the snapshot or as marks in the trace.
"""

from __future__ import annotations

from pathlib import Path

from dymem.rivals.allocator import Allocator
from dymem.rivals.of_dymem import Dymem
from dymem.trace.marks import mark

ENTRIES_MAX = 10**7


class History:
    """From its making on; `iteration` is -1 while the model is built."""

    def __init__(self, allocator: Allocator) -> None:
        self.allocator = allocator
        self.iteration = -1
        if allocator.history:
            import torch

            torch.cuda.memory._record_memory_history(context=None, stacks="python", max_entries=ENTRIES_MAX)
            self.phase("S")

    def phase(self, phase: str) -> None:
        """S start, F forward, B backward, O optimizer; what is allocated from here on belongs to it."""
        if isinstance(self.allocator, Dymem):
            mark(0, self.iteration, phase)
        elif self.allocator.history:
            import torch

            if (tell := getattr(torch.cuda.memory, "_set_memory_metadata", None)) is not None:
                tell(f"{self.iteration}:{phase}")

    def save(self, path: Path) -> str | None:
        """Writes it; the path, or None where this allocator has no history."""
        if self.allocator.history:
            import torch

            torch.cuda.memory._dump_snapshot(str(path))
        elif isinstance(self.allocator, Dymem):
            import dymem

            dymem.save_trace(path)
        else:
            return None
        return str(path)
