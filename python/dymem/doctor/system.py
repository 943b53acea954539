"""Which distribution this is, by /etc/os-release, and how NVIDIA's driver is installed on it."""

from __future__ import annotations

import contextlib
import functools
import shlex
from pathlib import Path

OS_RELEASE = Path("/etc/os-release")
_DRIVER = {"ubuntu": "apt-get install nvidia-driver-580",
           "debian": "apt-get install nvidia-driver (of the section non-free)"}
_ELSEWHERE = "your system's package of it (often nvidia-driver), or https://www.nvidia.com/drivers"


@functools.cache
def _kin(path: Path) -> tuple[str, ...]:
    """The system's own name, then those of systems it is like, the nearest first."""
    fields = {}
    with contextlib.suppress(OSError, ValueError):  # not there, or no such text: then it is some system
        for line in path.read_text().splitlines():
            key, _, value = line.partition("=")
            fields[key.strip()] = " ".join(shlex.split(value))
    return tuple(f"{fields.get('ID', '')} {fields.get('ID_LIKE', '')}".lower().split())


def driver_from() -> str:
    """The command that installs the driver, or where it is to be had."""
    return next((_DRIVER[name] for name in _kin(OS_RELEASE) if name in _DRIVER), _ELSEWHERE)
