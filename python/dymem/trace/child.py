"""Reads a snapshot in a process of its own, so that a file made to crash or bloat the unpickler takes nothing with it.

The child prints one line of JSON, {"error": sentence} or {"traces": [[device, ignored_frees, frames, bytes of events,
of addresses, of frame_of], …]}, and then those bytes of each trace, one after another. It sees only the standard
library and dymem's own pure Python.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from dymem.errors import TraceError
from dymem.trace import plain
from dymem.trace.snapshot import DeviceTrace, device_traces

_ROOT = str(Path(__file__).resolve().parents[2])
_START = "import sys; sys.path.insert(0, sys.argv[1]); from dymem.trace.child import main; main(*sys.argv[2:])"


class ReaderKilled(TraceError):
    """It tells of the host, not of the file: another try may do."""


def read_apart(path: Path, layout: bool = False) -> list[DeviceTrace]:
    """The traces in a snapshot, with addresses if `layout`; TraceError, whatever the file did to its reader."""
    run = subprocess.run([sys.executable, "-I", "-S", "-c", _START, _ROOT, str(path),
                          *(["layout"] if layout else [])], stdin=subprocess.DEVNULL,
                         capture_output=True)
    if run.returncode == -signal.SIGKILL:  # nothing in a file does that
        raise ReaderKilled("its reader was killed, as a host does that is short of memory; try it where there is more.")
    if run.returncode < 0:
        raise TraceError("it killed its reader: it is damaged or hostile, and nothing of it was run.")
    if run.returncode > 0:
        raise TraceError(f"its reader failed: {(run.stderr.decode(errors='replace').splitlines() or ['?'])[-1]}.")
    head, _, data = run.stdout.partition(b"\n")
    header, at, traces = json.loads(head), 0, []
    if "error" in header:
        raise TraceError(header["error"])
    for device, ignored, frames, *sizes in header["traces"]:
        parts = []
        for size in sizes:
            parts.append(data[at:at + size])
            at += size
        traces.append(DeviceTrace(device, parts[0], ignored, parts[1], frames, parts[2]))
    return traces


def main(path: str, layout: str = "") -> None:
    traces: list[DeviceTrace] = []
    try:
        traces = device_traces(plain.unpickle(plain.read_bytes(Path(path))), layout == "layout")
        header = {"traces": [[trace.device, trace.ignored_frees, trace.frames, len(trace.events), len(trace.addresses),
                              len(trace.frame_of)] for trace in traces]}
    except TraceError as error:
        header = {"error": str(error)}
    except KeyboardInterrupt:
        sys.exit(130)
    sys.stdout.buffer.write(json.dumps(header).encode() + b"\n")
    for trace in traces:
        for part in (trace.events, trace.addresses, trace.frame_of):
            sys.stdout.buffer.write(part)
