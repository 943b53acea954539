"""Programs that do not outlive the thread that starts them, whatever ends it: also where nothing can be caught.

Each is started through a small Python that asks the kernel for a signal at that moment; between fork and exec there may
be no Python where there are threads. All of it needs Linux: elsewhere programs are started as they are.
"""

from __future__ import annotations

import os
import sys
from typing import Sequence

CANNOT_START = 126  # exit code of a group whose program does not start, with its output from here on:
WHY_NOT = "dymem: the program does not start: "

_ASK = """
import os, signal, sys
def ask(number):
    try:
        import ctypes
        ctypes.CDLL(None).prctl(1, number, 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() != int(sys.argv[1]):  # it was gone before
            os._exit(1)
    except (ImportError, OSError, AttributeError):
        pass
"""
_BECOME = _ASK + """
ask(signal.SIGKILL)
os.execv(sys.argv[2], sys.argv[2:])
"""
# Waits beside the program: the kernel's signal reaches one process, and compilers have children. Blocked signals are
# queued, so none falls between looking and waiting; ignored ones of children would not be told of.
_LEAD = _ASK + f"""
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGCHLD])
ask(signal.SIGTERM)
try:
    child = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ, setsigmask=before,
                            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ])  # which Python ignores
except OSError as error:
    print({WHY_NOT!r} + error.strerror, flush=True)
    os._exit({CANNOT_START})
while True:
    if signal.sigwait([signal.SIGTERM, signal.SIGCHLD]) == signal.SIGTERM:
        os.killpg(0, signal.SIGKILL)
    pid, status = os.waitpid(child, os.WNOHANG)
    if pid:
        break
code = os.waitstatus_to_exitcode(status)
if code < 0:
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
    os.kill(os.getpid(), -code)
os._exit(code)
"""


def dying_with_this(command: Sequence[str]) -> list[str]:
    """The command, whose process dies when the thread that starts it does."""
    return _through(_BECOME, command)


def dying_whole(command: Sequence[str]) -> list[str]:
    """The command as part of a process group that dies when the thread that starts it does, what the program starts there
    included. To be started as the group's leader. Ends as the program does; CANNOT_START if that does not start."""
    return _through(_LEAD, command)


def _through(code: str, command: Sequence[str]) -> list[str]:
    if not sys.executable:  # Python is within another program
        return list(command)
    return [sys.executable, "-I", "-S", "-c", code, str(os.getpid()), *command]
