"""The exceptions of dymem: one base class, three kinds, each message one sentence that says what to do.

The C++ core raises these very classes (allocator/bind/module.cpp), so code that catches them need not load it.
A caller's mistake is an InvalidArgument, exhaustion an OutOfMemory with its figures, a failed driver call a
DriverError. PyTorch code sees `torch.OutOfMemoryError` instead of OutOfMemory: the adapter translates.
"""

from __future__ import annotations


class DymemError(Exception):
    """Anything that dymem raises on purpose."""


class InvalidArgument(DymemError, ValueError):
    """The caller asked for something that cannot be: an unknown address, an absurd size, a wrong option."""


class ConfigError(InvalidArgument):
    """A configuration with an unknown key or a value that its key does not take."""


class TraceError(InvalidArgument):
    """A trace that is missing, truncated, foreign, or holds anything but plain data."""


class OutOfMemory(DymemError, MemoryError):
    """The device or the limit has nothing left; `figures` says how much of what."""

    def __init__(self, message: str, figures: dict | None = None):
        super().__init__(message)
        self.figures = dict(figures or {})


class DriverError(DymemError, RuntimeError):
    """A call of the driver failed; `call` is its name and `code` the driver's own error code."""

    def __init__(self, message: str, call: str = "", code: int = 0):
        super().__init__(message)
        self.call = call
        self.code = code


class SleepError(DymemError, RuntimeError):
    """What a sleeping pool does not do (hand out memory), or why a pool cannot sleep or wake now."""


class InternalError(DymemError, RuntimeError):
    """A broken invariant of dymem's own: please report it."""


class InstallError(DymemError, RuntimeError):
    """dymem cannot become PyTorch's allocator now: torch is missing, CUDA was used before, or nothing can be built."""


class MissingPackage(DymemError, ImportError):
    """A package that this command needs is not installed."""
