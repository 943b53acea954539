"""One child process whose steps are let go one at a time, so that several can take turns on one card.

The child says `ready` when it is built, then does one step and says `step` for each line it is given, and last prints a
JSON object. While it waits for its turn it sleeps in a read. Whatever drifts over seconds (clocks, heat, a busy host)
meets all alike when steps of the same work alternate; processes that run one after the other differ by several percent.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import threading
from typing import Mapping, Sequence

from dymem.compare import ending

TAIL = 2000  # characters of stderr that are kept


def last_json(said: str) -> dict:
    """The JSON object on the last line; {} if there is none."""
    lines = said.strip().splitlines()
    try:
        found = json.loads(lines[-1]) if lines else {}
    except json.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


class Turns:
    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None,
                 seconds: float = 600.0) -> None:
        """Starts the process; it is killed when `seconds` have passed, with its descendants, which may hold its pipes.
        In a session of its own Ctrl-C does not reach it: the end of the block kills it."""
        self._stderr = tempfile.TemporaryFile("w+", errors="replace")
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr,
                                         text=True, errors="replace", env=environment, start_new_session=True)
        self._last = ""
        self._out_of_time = False
        self._watchdog = threading.Timer(seconds, self._cut_off)
        self._watchdog.daemon = True
        self._watchdog.start()

    def __enter__(self) -> Turns:
        return self

    def __exit__(self, *_: object) -> None:
        self._watchdog.cancel()
        ending.kill_tree(self._process)
        self._process.wait()
        self._close_stdin()
        self._process.stdout.close()
        self._stderr.close()

    def _close_stdin(self) -> None:
        with contextlib.suppress(OSError):  # what was written to one that has ended cannot be flushed
            self._process.stdin.close()

    def _cut_off(self) -> None:
        self._out_of_time = True
        ending.kill_tree(self._process)

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
        if self._process.returncode is None:
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)  # its number stays its own until it is met
            ending.kill_tree(self._process)  # what it left behind
        self._process.wait()
        if self._process.returncode == 0 and result:
            return result
        if self._out_of_time:
            return {"error": "cut off: the budget of seconds was spent"}
        self._stderr.seek(0)
        said = self._stderr.read().strip()
        last = (said.splitlines() or ["it said nothing"])[-1]
        return result | {"error": result.get("out_of_memory", f"ended with code {self._process.returncode}: {last}"),
                         "stderr": said[-TAIL:]}
