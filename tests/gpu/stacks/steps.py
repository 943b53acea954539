"""What the scripts of this folder share: the same seeds, deterministic kernels, and one JSON line of what was computed.

    STACK_STEPS=N   so many steps (default 6)
    STACK_TIMED=1   as people run it: larger, kernels of any order; says `ready`, then `step` after each step, and waits for
                    a line on stdin before each, so that several processes can take turns (dymem.compare.turns)

Nothing in this folder knows dymem: these are scripts as users have them. They take the GPU if there is one, else the CPU.
What libraries print goes to stderr; stdout is for the protocol and the JSON line, which rank 0 prints, with what each
rank found. Losses are told as hexadecimal floats: equal means equal in every bit.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import time
from typing import Iterator

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

WARM_FROM = 3


class Steps:
    """for i in steps: …; steps.loss(value)  — or begin() and end(value) from a library's callbacks."""

    def __init__(self, exact: bool = True) -> None:
        """exact: whether the same script gives the same bits twice."""
        self.timed = os.environ.get("STACK_TIMED") == "1"
        self.count = int(os.environ.get("STACK_STEPS", "6"))
        self.rank = int(os.environ.get("RANK", "0"))
        self.ranks = int(os.environ.get("WORLD_SIZE", "1"))
        self.cuda = torch.cuda.is_available()
        self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if self.cuda else torch.device("cpu")
        self._exact = exact and not self.timed
        self._losses: list[float] = []
        self._seconds: list[float] = []
        self._turn = 0
        self._out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        random.seed(0)
        torch.manual_seed(0)
        if self.cuda:
            torch.cuda.set_device(self.device)
        else:
            torch.set_num_threads(1)
        if not self.timed:
            torch.use_deterministic_algorithms(True, warn_only=True)
            for kernel in ("flash", "mem_efficient", "cudnn"):  # attention whose gradient has one order of summation
                getattr(torch.backends.cuda, f"enable_{kernel}_sdp")(False)

    def size(self, small: int, large: int) -> int:
        """The size for a test, or for a timed run on a GPU."""
        return large if self.timed and self.cuda else small

    def __iter__(self) -> Iterator[int]:
        for number in range(self.count):
            self.begin()
            yield number
            if len(self._seconds) == number:  # the body did not call end
                self.end()

    def begin(self) -> None:
        if self.timed:
            if self.rank == 0:
                print("step" if self._turn else "ready", file=self._out)  # what came after the last step is done, too
                sys.stdin.readline()
            if self.ranks > 1:  # not by a collective: its kernels would spin while another process has the turn
                store = dist.distributed_c10d._get_default_store()
                if self.rank == 0:
                    store.set(f"turn {self._turn}", "go")
                else:
                    store.wait([f"turn {self._turn}"])
        self._turn += 1
        self._began = time.perf_counter()

    def end(self, loss: torch.Tensor | float | None = None) -> None:
        if loss is not None:
            self.loss(loss)
        if self.cuda:
            torch.cuda.synchronize()
        self._seconds.append(round(time.perf_counter() - self._began, 7))

    def loss(self, value: torch.Tensor | float) -> None:
        self._losses.append(float(value))

    def finish(self, *outputs: torch.Tensor, **more: object) -> None:
        """Prints the line. outputs: what the losses do not show; more: anything else worth telling."""
        digest = hashlib.sha256(" ".join(loss.hex() for loss in self._losses).encode())
        for tensor in outputs:
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        mine = {"rank": self.rank, "backend": torch.cuda.get_allocator_backend(), "digest": digest.hexdigest(),
                "max_memory_allocated": torch.cuda.max_memory_allocated() if self.cuda else 0}
        told = [mine]
        if self.ranks > 1:
            told = [None] * self.ranks
            dist.all_gather_object(told, mine)
        if self.rank == 0:
            if self.timed:
                print("step", file=self._out)
            print(json.dumps({
                "script": os.path.basename(sys.argv[0]), "torch": torch.__version__, "backend": mine["backend"],
                "device": torch.cuda.get_device_name() if self.cuda else "cpu", "exact": self._exact,
                "losses": [loss.hex() for loss in self._losses], "digest": mine["digest"],
                "max_memory_allocated": mine["max_memory_allocated"], "ranks": told,
                "step_seconds": self._seconds, "warm_from": min(WARM_FROM, max(0, len(self._seconds) - 1)),
                **more}), file=self._out)
