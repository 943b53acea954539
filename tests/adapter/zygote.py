"""Imports torch once, then forks a child for every script that is asked for: importing takes seconds, forking none.

Run by conftest.py. Each line of standard input is {"code", "env", "out", "err", "seconds"}: a child takes that environment
and those files as its output, runs the code as its main program, and ends as a Python program ends, or by an alarm after
so long. The answer, a line of standard output, is the child's exit status. The parent never touches dymem, so every child
is as good as fresh.
"""

import json
import os
import signal
import sys

import torch


def become(request) -> None:
    for name, number in (("out", 1), ("err", 2)):
        file = os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["env"])
    signal.alarm(request["seconds"])
    exec(compile(request["code"], "<script>", "exec"), {"__name__": "__main__"})


assert not torch.cuda.is_initialized()
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        become(json.loads(line))
        break
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(status, flush=True)
