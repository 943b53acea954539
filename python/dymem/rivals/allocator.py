"""What every allocator of the comparison can be asked, and the environment that a child process gets for it.

Invariants: nothing here or in the other files of this folder imports torch, rmm or the C++ core before one of the
methods that run in a child is called; `usage()` always has every key of USAGE, None where the allocator cannot tell.
"""

from __future__ import annotations

import os
from typing import Mapping

# Bytes, over the whole process so far; `calls` are mallocs and frees together. The names are those of the JSON files.
USAGE = ("live_peak_bytes", "occupied_peak_bytes", "reserved_peak_bytes", "requested_peak_bytes", "reserved_bytes",
         "calls", "device_allocations", "device_frees", "allocation_retries", "ooms")

# Each allocator says with these what it wants; left over from the parent they would be another one's.
CLEARED = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING", "DYMEM_RUN")


class Allocator:
    """One way of serving PyTorch's CUDA memory; every `limit_bytes` is a hard cap on what it holds, None without one."""

    history = False  # can PyTorch's snapshot history be recorded under it?
    limits_reserved = True  # does limit() bound what is held of the device? (else only what callers hold)
    reserved_known_by = "torch.cuda.memory_stats"
    note = ""  # what a reader of its row must know, one sentence

    def __init__(self, name: str, title: str) -> None:
        self.name = name
        self.title = title

    def environment(self, limit_bytes: int | None = None) -> dict[str, str]:
        """What must be in the environment of the child process before it starts."""
        return {}

    def missing(self) -> str | None:
        """Why it cannot run here and what to do, as one line; None if nothing is known to be missing."""
        return None

    def install(self, limit_bytes: int | None = None) -> None:
        """In the child, after the import of torch and before the first use of CUDA."""

    def limit(self, limit_bytes: int | None) -> None:
        """In the child, once CUDA is in use: the part of the cap that could not be set before."""

    def start_over(self, limit_bytes: int | None) -> bool:
        """In the child, while callers hold nothing: gives everything back, and from here on this cap holds.

        The peaks of usage() count anew. False where it holds on to memory: only a new process starts afresh then.
        """
        raise NotImplementedError

    def usage(self) -> dict[str, int | None]:
        """The figures of USAGE for the current device, so far."""
        raise NotImplementedError


def child_environment(allocator: Allocator, limit_bytes: int | None = None,
                      base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The whole environment of a child process that is to run under `allocator`."""
    environment = dict(os.environ if base is None else base)
    for name in CLEARED:
        environment.pop(name, None)
    return environment | allocator.environment(limit_bytes)


def nothing_known() -> dict[str, int | None]:
    return dict.fromkeys(USAGE)


# Foreign allocators throw past PyTorch, which makes a RuntimeError or MemoryError of it.
_SIGNS = ("out of memory", "out_of_memory", "bad_alloc", "maximum pool size exceeded", "_STATUS_ALLOC_FAILED")


def exhausted(error: BaseException) -> bool:
    """Does this exception mean that there was not enough memory, whichever allocator said so?"""
    import torch

    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    said = str(error).lower()
    return isinstance(error, RuntimeError) and any(sign.lower() in said for sign in _SIGNS)
