"""Programs of others, run so that nothing of them is left: not when they hang, nor when this process is told to end
(dymem.interrupts.stoppable has it end what it runs).

What holds: after `end_all` no process of the program is there, nor one that its processes started, in whatever session,
but for those that the kernel does not let go in time. If this process is killed by a signal that nobody can meet, the
first process of the program dies with it (dymem.dying); its children then find out by themselves. All of it needs Linux: elsewhere
only the program's own process group is ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Iterator

SECONDS = 20.0  # for what was killed to be gone: memory of a card takes its time
SET_CHILD_SUBREAPER, GET_CHILD_SUBREAPER = 36, 37  # linux/prctl.h

Identity = tuple[int, str]  # a process's number and when it was started: numbers are given again


# --- what a program started


@contextlib.contextmanager
def adopting() -> Iterator[set[Identity] | None]:
    """Whoever loses its parent in the block becomes a child of this process, and so is found. Gives the children that
    are here before; None where there is no such thing."""
    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        was = ctypes.c_int(0)
        able = (prctl(GET_CHILD_SUBREAPER, ctypes.byref(was), 0, 0, 0) == 0
                and prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        able = False
    if not able:
        yield None
        return
    try:
        yield set(_children_of(os.getpid()))
    finally:
        prctl(SET_CHILD_SUBREAPER, was.value, 0, 0, 0)


def end_all(process: subprocess.Popen, before: set[Identity] | None, seconds: float = SECONDS) -> None:
    """Kills the process, which leads a group, and whatever came of it; `before` is what `adopting` gave."""
    kill_group(process.pid)
    process.wait()
    until = time.monotonic() + seconds
    while before is not None and (left := set(_children_of(os.getpid())) - before):  # theirs are next
        for pid, _ in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > until:
            return
        time.sleep(0.005)


def kill_tree(process: subprocess.Popen) -> None:
    """Kills the process, which leads a group, and what descends from it; without waiting, so that any thread may. Whose
    parent has ended is found in the group only."""
    if process.returncode is not None:  # the number may be another's by now
        return
    found = [process.pid]
    for pid in found:
        found += [child for child, _ in _children_of(pid)]
    kill_group(process.pid)
    for pid in found[1:]:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _children_of(parent: int) -> Iterator[Identity]:
    """From /proc, whose lists of children not every kernel has; nothing where there is none."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text(errors="replace").rpartition(")")[2].split()  # from the third: state, parent, …
            if int(fields[1]) == parent:
                yield int(path.parent.name), fields[19]
