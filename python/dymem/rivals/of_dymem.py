"""dymem's own three forms: granules with aliasing, granules without, and contiguous slabs.

A configuration that the user has in DYMEM_CONF stays, but for the keys that make the form and the limit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
from typing import Iterable

from dymem._paths import PACKAGE
from dymem.config import ENVIRONMENT, Config
from dymem.dying import dying_with_this
from dymem.rivals.allocator import Allocator
from dymem.rivals.of_torch import start_over, torch_usage


class Dymem(Allocator):
    def __init__(self, name: str, title: str, **keys: object) -> None:
        super().__init__(name, title)
        self.keys = keys

    def configuration(self, limit_bytes: int | None = None, conf: str | None = None) -> Config:
        """Over `conf` (default: DYMEM_CONF), this form's own keys and the limit."""
        base = Config.from_environment() if conf is None else Config.from_conf(conf)
        limit = {} if limit_bytes is None else {"limit": limit_bytes}
        return dataclasses.replace(base, **self.keys, **limit)

    def environment(self, limit_bytes: int | None = None) -> dict[str, str]:
        return {ENVIRONMENT: self.configuration(limit_bytes).to_conf()}

    def install(self, limit_bytes: int | None = None) -> None:
        import dymem

        dymem.install(self.configuration(limit_bytes))

    def start_over(self, limit_bytes: int | None) -> bool:
        return start_over(limit_bytes)

    def usage(self) -> dict[str, int | None]:
        import dymem
        import torch

        # On the emulated driver PyTorch never starts CUDA, and answers nothing.
        return torch_usage(None if torch.cuda.is_initialized() else dymem.memory_stats())


# Interrupts are met, also where this process was started with them ignored.
_BUILD = ("import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import torch; "
          "from dymem import _adapter_build; _adapter_build.load(torch)")


def build_adapter(allocators: Iterable[Allocator]) -> None:
    """Once, before anything is timed, if one of them is dymem. What fails here fails again in its own row, and is said there."""
    if not any(isinstance(allocator, Dymem) for allocator in allocators):
        return
    path = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH")]))
    child = subprocess.Popen(dying_with_this([sys.executable, "-c", _BUILD]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                             env={**os.environ, "PYTHONPATH": path})
    try:
        child.wait()
    except BaseException:
        try:
            child.send_signal(signal.SIGINT)  # it takes away what it has half built first
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(5)
        finally:
            child.kill()
            child.wait()
        raise
