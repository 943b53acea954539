"""Processes that a test has ended, or had ended by what it tests."""

import subprocess
import time
from pathlib import Path


def gone(pid: int, seconds: float = 20) -> bool:
    """Whether it ends within so long. A signal that was sent is not yet one that was met: a busy machine takes its time."""
    until = time.monotonic() + seconds
    while True:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        if time.monotonic() > until:
            return False
        time.sleep(0.01)


def workers_of(process: subprocess.Popen, seconds: float = 60) -> list[int]:
    """The processes that its multiprocessing has now, as soon as there are any; none if it ends before."""
    until = time.monotonic() + seconds
    while process.poll() is None:
        if found := [pid for pid in children_of(process.pid) if b"spawn_main" in command_of(pid)]:
            return found
        assert time.monotonic() < until, "no worker was started"
        time.sleep(0.01)
    return []


def children_of(pid: int) -> list[int]:
    found = []
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, listing.read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            pass  # that thread has ended
    return found


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
