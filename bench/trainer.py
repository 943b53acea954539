"""One bench/train.py process whose steps are let go one at a time, so that two of them can take turns on one card.

    with Trainer("unet_b16", "native") as a, Trainer("unet_b16", "dymem") as b:
        steps = all(t.ready() for t in (a, b)) and a.step() and b.step()
        result = a.result()          # what train.py printed at the end, or {"error": …, "stderr": …}

Whatever drifts over seconds (clocks, heat, a busy host) meets both alike when steps of the same work alternate; processes
that run one after the other differ by several percent. While it waits for its turn a process sleeps in a read.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

HERE = Path(__file__).resolve().parent


def last_json(said: str) -> dict:
    """The JSON object that train.py prints as its last line; {} if there is none."""
    lines = said.strip().splitlines()
    try:
        return json.loads(lines[-1]) if lines else {}
    except json.JSONDecodeError:
        return {}


class Trainer:
    def __init__(self, workload: str, allocator: str, *options: str, seconds: float = 600.0) -> None:
        """Starts the process; it is killed when `seconds` have passed."""
        self._stderr = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "train.py"), workload, "--allocator", allocator, "--lockstep", *options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, text=True)
        self._last = ""
        self._out_of_time = False
        self._watchdog = threading.Timer(seconds, self._cut_off)
        self._watchdog.daemon = True
        self._watchdog.start()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self._watchdog.cancel()
        self._process.kill()
        self._process.wait()
        self._close_stdin()
        self._process.stdout.close()
        self._stderr.close()

    def _close_stdin(self) -> None:
        with contextlib.suppress(OSError):  # what was written to one that has ended cannot be flushed
            self._process.stdin.close()

    def _cut_off(self) -> None:
        self._out_of_time = True
        self._process.kill()

    def _wait_for(self, word: str) -> bool:
        """Whether the process said `word` next; anything else (an end, its JSON line) is kept for `result`."""
        line = self._process.stdout.readline()
        if line.strip() == word:
            return True
        self._last = line
        return False

    def ready(self) -> bool:
        """Waits until the model is built."""
        return self._wait_for("ready")

    def step(self) -> bool:
        """Lets one step go and waits for its end; False if there was none (the run has ended, or failed)."""
        try:
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
        except OSError:
            return False
        return self._wait_for("step")

    def result(self) -> dict:
        """The run's figures; with `error` (and `stderr`) in it if the run did not end well. Ends a run that goes on."""
        self._close_stdin()
        # Through the same reader as every line before: it may hold what was said along with them.
        result = last_json(self._last + self._process.stdout.read())
        self._process.wait()
        if self._process.returncode == 0 and result:
            return result
        if self._out_of_time:
            return {"error": "cut off: the budget of seconds was spent"}
        self._stderr.seek(0)
        said = self._stderr.read().strip()
        last = (said.splitlines() or ["it said nothing"])[-1]
        return result | {"error": result.get("out_of_memory", f"ended with code {self._process.returncode}: {last}"),
                         "stderr": said[-2000:]}
