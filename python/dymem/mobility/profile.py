"""Profile: watches one iteration of an unmodified program and tells what its allocations were for.

    with Profile() as profile:
        step()
    profile.facts

The operator log (allocator/torch/op_log.hpp) listens where PyTorch's own profiler does, on every thread. No module, tensor,
graph or optimizer is hooked, so there is nothing to take away afterwards, and what is computed and kept alive is the same
with and without. Facts are made of the log when they are first asked for, not within the iteration.
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
import weakref
from typing import Callable, TypeVar

from dymem.errors import InvalidArgument
from dymem.mobility.facts import Facts

Result = TypeVar("Result")


class Profile:
    """`with Profile() as profile:` around one iteration; afterwards `profile.facts`.

    host    False: memory of the pools that exist when it begins. True: this thread's memory of the CPU, and that of its
            backward, for models that run there; refused while a profiler of PyTorch's runs on this thread, as one is
            that begins within.

    An exception in the iteration passes through, and the facts are those up to it. Only one profile at a time in a
    process: a second raises InvalidArgument, as does leaving one on another thread than it was entered on (host). It goes
    on until it is left there; where that thread is over, leaving it raises too, but ends it, and it has no facts. One that
    is dropped without having been left ends then. But what a thread has for PyTorch's profiler no other thread can take
    away: where a host one is dropped on another thread, a warning says that the next profiler of PyTorch's raises on the
    one that entered it. A child that is forked within has no facts.

    ran_out  whether a request for memory of a pool failed in the iteration, also where the program caught it: then the
             facts are incomplete, since other iterations do something else.
    """

    def __init__(self, host: bool = False) -> None:
        self.host = host
        self._log: dict | None = None
        self._facts: Facts | None = None
        self._process: int | None = None  # that profiles, while one does
        self._thread: Callable[[], _Thread | None] = lambda: None  # that entered it, while there is one
        self._failures = 0  # requests that had failed before
        self.ran_out = False

    def __enter__(self) -> Profile:
        if not self.host:
            _check_pools()
        _stand_aside()
        op_log = _op_log()
        failures = 0 if self.host else failed_requests()
        op_log.start(self.host)
        self._log = self._facts = None
        self._failures, self.ran_out = failures, False
        self._process, self._thread = os.getpid(), weakref.ref(_this_thread())
        return self

    def __exit__(self, *raised: object) -> None:
        if self._process is None:
            raise InvalidArgument("this profile has not begun, or has ended: `with` it around an iteration.")
        if self._process == os.getpid() and self._elsewhere():  # before anything of it has ended
            raise InvalidArgument("this profile of CPU memory was not entered on this thread, and goes on: leave it on "
                                  "the thread that began it.")
        process, self._process = self._process, None
        if process != os.getpid():
            return
        self._log = _op_log().stop() | {"host": self.host}
        self.ran_out = not self.host and failed_requests() != self._failures
        if raised[0] is not None:
            self._log["raised"] = _name_of(raised[0])

    def __del__(self) -> None:
        if getattr(self, "_process", None) is not None and self._process == os.getpid():
            with contextlib.suppress(Exception):  # one of host memory, on another thread; or Python is ending
                if self._elsewhere():
                    warnings.warn("dymem: a Profile(host=True) was dropped on another thread than the one that began "
                                  "it, where PyTorch's profiler now counts as on and cannot begin: leave it there.")
            with contextlib.suppress(Exception):
                _op_log().stop()

    def _elsewhere(self) -> bool:
        """Whether this is another thread than it must end on; one that is over took what was to end there with it."""
        return self.host and self._thread() not in (None, _this_thread())

    @property
    def facts(self) -> Facts:
        """What the iteration's allocations were for; InvalidArgument while it has not ended."""
        if self._facts is None:
            if self._log is None:
                raise InvalidArgument("there are no facts yet: ask for them after the `with` block of the profile.")
            from dymem.mobility.reading import facts_of

            self._facts = facts_of(self._log)
            self._facts.here = True
            if "raised" in self._log:
                self._facts.complete = False
                self._facts.notes.append(f"the iteration ended in {self._log['raised']}; its allocations stay untagged.")
            elif self.ran_out:
                self._facts.complete = False
                self._facts.notes.append("memory ran out in the iteration, though the program went on; its allocations "
                                         "stay untagged. Profile one that has enough.")
            self._log = None
        return self._facts


class _Thread:
    """Stands for a thread and ends with it, also for one that threading did not start; idents are used again."""


_threads = threading.local()


def _this_thread() -> _Thread:
    if not hasattr(_threads, "this"):
        _threads.this = _Thread()
    return _threads.this


def _name_of(kind: object) -> str:
    """Of an exception's class; asked past its metaclass, whose own __name__ may raise."""
    return type.__dict__["__name__"].__get__(kind) if isinstance(kind, type) else "exception"


def profile_iteration(step: Callable[..., Result], *arguments: object, host: bool = False) -> tuple[Result, Facts]:
    """Runs step(*arguments) once under a profile; what it returned, and the facts."""
    with Profile(host) as profile:
        result = step(*arguments)
    return result, profile.facts


def _op_log():
    import torch

    from dymem import _adapter_build

    return _adapter_build.load(torch).op_log


def _stand_aside() -> None:
    from dymem.mobility import automatic

    automatic.stand_aside()


def failed_requests() -> int:
    """Of all pools so far, those that a program caught included, and those from before it reset its statistics."""
    from dymem import _core

    pools = [_core.abi.stats(device) for device in range(_core.abi.DEVICES_MAX) if _core.abi.made(device)]
    return sum(stats["num_ooms"] + stats["num_ooms_before_reset"] for stats in pools)


def _check_pools() -> None:
    from dymem import _core

    if not any(_core.abi.made(device) for device in range(_core.abi.DEVICES_MAX)):
        raise InvalidArgument("dymem has no memory of any GPU yet: install dymem and run an iteration before the one to "
                              "profile, or profile CPU memory with host=True.")
