"""Processes that a test has ended, or had ended by what it tests."""

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
