"""In the process of a user's script: runs it under one allocator, times its optimizer steps and reads the peaks at exit.

The start hook of `dymem run` calls `start` when torch has been imported. Environment: DYMEM_RIVAL names the allocator,
DYMEM_REPORT the folder that takes one JSON file a process, DYMEM_RIVAL_LIMIT (if set) the bytes that the allocator may hold
of the process's device, DYMEM_HISTORY (if set) the file that takes who held what, after which the script is ended: that run
is for a picture only. A step is what lies between two ends of an optimizer's step, the
device synchronised at each. Random numbers that the script does not seed itself are seeded, so that all allocators meet
the same work.
"""

from __future__ import annotations

import atexit
import json
import os
import random
import sys
import time
from pathlib import Path

from dymem.rivals import ALLOCATORS, Allocator, exhausted
from dymem.rivals.allocator import nothing_known
from dymem.rivals.history import History

RIVAL, REPORT, HISTORY, LIMIT = "DYMEM_RIVAL", "DYMEM_REPORT", "DYMEM_HISTORY", "DYMEM_RIVAL_LIMIT"
SEED = 0
HISTORY_STEPS = 4


def start(folder: str) -> None:
    """A DymemError where the allocator cannot be installed."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    allocator = ALLOCATORS[os.environ[RIVAL]]
    limit = int(os.environ.get(LIMIT, "0")) or None
    allocator.install(limit)
    if limit is not None:
        torch.cuda._lazy_call(lambda: _limit(allocator, limit))
    torch.manual_seed(SEED)
    random.seed(SEED)
    if file := os.environ.get(HISTORY):
        _record(allocator, Path(file))
    watch = _Watch(allocator, Path(folder))
    register_optimizer_step_post_hook(watch.stepped)
    watch.excepthook, sys.excepthook = sys.excepthook, watch.failed
    atexit.register(watch.report)


def _limit(allocator: Allocator, limit: int) -> None:
    """When CUDA starts, which may be in the very call that makes a rank's own device the current one."""
    import torch

    with torch.cuda.device(int(os.environ.get("LOCAL_RANK", "0") or 0) % torch.cuda.device_count()):
        allocator.limit(limit)


def _record(allocator: Allocator, file: Path) -> None:
    """From the start of CUDA until some steps are done; then the process ends, as if its script had."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    history: list[History] = []
    torch.cuda._lazy_call(lambda: history.append(History(allocator)))

    def before(*_: object) -> None:
        for each in history:
            each.phase("O")

    def after(*_: object) -> None:
        for each in history:
            each.iteration += 1
            each.phase("S")
            if each.iteration == HISTORY_STEPS:
                torch.cuda.synchronize()
                each.save(file)
                os._exit(0)

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)


class _Watch:
    def __init__(self, allocator: Allocator, folder: Path) -> None:
        self.allocator = allocator
        self.folder = folder
        self.pid = os.getpid()
        self.times: list[float] = []
        self.calls: list[int | None] = []
        self.failure: dict[str, object] = {}
        self.excepthook = None

    def stepped(self, *_: object) -> None:
        import torch

        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self.times.append(time.perf_counter())
        self.calls.append(self.allocator.usage()["calls"])

    def failed(self, kind, error, trace) -> None:
        said = (str(error).splitlines() or [""])[0]
        self.failure = {"out_of_memory" if exhausted(error) else "exception": f"{kind.__name__}: {said}",
                        "failed_at_step": len(self.times)}
        self.excepthook(kind, error, trace)

    def report(self) -> None:
        if os.getpid() != self.pid:  # a fork of the process that is watched
            return
        import torch

        started = torch.cuda.is_initialized()
        try:
            usage = self.allocator.usage()
        except Exception:  # a device in an error state answers nothing any more; the rest is still worth telling
            usage = nothing_known()
        content = {"allocator": self.allocator.name, "backend": torch.cuda.memory.get_allocator_backend(),
                   "rank": int(os.environ.get("RANK", "0") or 0), "torch": torch.__version__,
                   "python": sys.version.split()[0], "gpu": torch.cuda.get_device_name() if started else None,
                   "step_seconds": [round(b - a, 7) for a, b in zip(self.times, self.times[1:])],
                   "calls_after_step": self.calls, **usage, **self.failure}
        part = self.folder / f"{self.pid}.part"
        part.write_text(json.dumps(content))
        os.replace(part, part.with_suffix(".json"))
