"""dymem: a drop-in CUDA memory manager for PyTorch.

    import dymem
    dymem.install()          # before the first use of CUDA

This import touches neither torch nor CUDA, loads no shared library and asks nothing of the machine; what needs the
C++ core or torch loads it when it is called.
"""

from __future__ import annotations

import os

from dymem import errors
from dymem._paths import include_path, library_path
from dymem._version import __version__
from dymem.config import Config, shown
from dymem.cupy_memory import cupy_allocator, cupy_record_stream
from dymem.errors import (ConfigError, DriverError, DymemError, InstallError, InternalError, InvalidArgument,
                          OutOfMemory, SleepError, TraceError)
from dymem.install import install  # also binds the name: from here on `dymem.install` is the function
from dymem.sleeping import SleepReport, free_host_slabs, sleep, tagged, wake

__all__ = ["Config", "ConfigError", "DriverError", "DymemError", "InstallError", "InternalError", "InvalidArgument",
           "OutOfMemory", "SleepError", "SleepReport", "TraceError", "__version__", "cupy_allocator", "cupy_record_stream",
           "empty_cache", "errors", "free_host_slabs", "include_path", "install", "iteration", "library_path", "memory_stats",
           "save_trace", "sleep", "tagged", "wake"]


def memory_stats(device: int = 0) -> dict:
    """Statistics of a device's pool: the names of `torch.cuda.memory_stats()`, then dymem's own; zeros before its use.

    held_bytes.torch, held_bytes.cupy … say who holds the live bytes: CuPy through dymem.cupy_allocator, programs in C by the
    name that they give, PyTorch the rest. unusable_free.2^21 …: of what is free, the share that a request of so many bytes
    cannot use (HPDC 2020, section 3.3.1); 0 is no fragmentation. mobility.following, mobility.tagged …: whether allocations get
    classes by a profiled iteration, and how many did, on all devices (dymem.mobility.following_stats).
    """
    from dymem import _core

    try:
        stats = _core.abi.stats(device)
    except TypeError:
        raise InvalidArgument(f"{shown(device)} is no number of a device; write for example dymem.memory_stats(0)") from None
    others = _core.abi.held_by_others(device)
    stats["held_bytes.torch"] = max(0, stats["allocated_bytes.all.current"] - sum(others.values()))
    from dymem.mobility.live import following_stats

    followed = {f"mobility.{name}": int(value) for name, value in following_stats().items()}
    return stats | {f"held_bytes.{name}": held for name, held in others.items()} | followed


def iteration() -> None:
    """Marks that an iteration of the program begins here; about a microsecond, and it changes nothing that is computed.

    Needed by nothing. With mobility:auto, iterations are then profiled from mark to mark (docs/mobility.md); with trace:on, the
    trace has the iterations' numbers, from 0, on what comes after.
    """
    from dymem.mobility import automatic

    automatic.mark_iteration()


def empty_cache() -> int:
    """Gives idle granules of all devices back to them, and says how many bytes."""
    from dymem import _core

    return _core.abi.trim()


def save_trace(path, device: int = 0) -> int:
    """Writes what the pool of `device` was asked so far, for `dymem replay`; returns the number of events.

    Needs the configuration trace:on.
    """
    from dymem import _core

    try:
        recorder = _core.abi.recorder(device) if _core.abi.made(device) else None
    except TypeError:
        raise InvalidArgument(f"{shown(device)} is no number of a device; write for example dymem.save_trace(path, 0)") from None
    if recorder is None:
        raise InvalidArgument(f"nothing was recorded of device {device}; install dymem with trace:on and use the device "
                              "first.")
    events = recorder.events()
    _core.trace.write(os.fsencode(path), events, device=device, dropped=recorder.dropped())
    return len(events) // _core.trace.EVENT_BYTES
