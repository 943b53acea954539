"""A user's own script under every allocator: one process each, repeats interleaved, the same figures as for workloads.

The script runs as `python script.py ARGS…` would, with the start hook of `dymem run` in front (dymem.compare.observe). What
it prints is kept from the terminal; of a script that fails the last lines are told, and the other allocators go on.
What it started ends with it, also where this process is told to end (dymem.compare.ending says how far that goes).
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Callable, Sequence

from dymem._paths import PACKAGE
from dymem.compare import ending, figures, observe
from dymem.dying import dying_with_this
from dymem.compare.together import Run
from dymem.compare.training import row_of
from dymem.compare.turns import TAIL
from dymem.config import ENVIRONMENT, Config, format_bytes
from dymem.interrupts import held
from dymem.rivals import ALLOCATORS, child_environment

WARM_FROM = 3


def measure(program: Sequence[str], names: Sequence[str], repeats: int, seconds: float,
            say: Callable[[str], None] = lambda sentence: None) -> dict:
    """The row of the script, as of a workload; a failed allocator has `error` and `stderr` in its cell."""
    end, title = time.monotonic() + seconds, name_of(program[0])
    results: dict[str, list[dict]] = {name: [] for name in names}
    times: list[dict[str, list[float]]] = []
    longest = 0.0
    for repeat in range(repeats):
        going = [name for name in names if not any("error" in result for result in results[name])]
        if not going or (repeat and time.monotonic() + longest * len(going) > end):
            break
        for name in going if repeat % 2 == 0 else going[::-1]:
            say(f"{title} under {name}, repeat {repeat + 1}")
            began = time.monotonic()
            results[name].append(run_once(program, name, max(5.0, end - began)))
            longest = max(longest, time.monotonic() - began)
        steps = {name: results[name][-1]["step_seconds"] for name in going if "error" not in results[name][-1]}
        shortest = min(map(len, steps.values()), default=0)  # a script may stop by the clock or by its loss
        times.append({name: mine[:shortest][warm_from(shortest):] for name, mine in steps.items()})
    return row_of(title, names, results, times)


class Script:
    """A user's script as dymem.compare.capped trains it: one run after the other, all within `seconds`."""

    warm = f"The first {WARM_FROM} steps do not count."

    def __init__(self, program: Sequence[str], seconds: float, say: Callable[[str], None] = lambda sentence: None) -> None:
        self.name, self.say = name_of(program[0]), say
        self._program, self._end = program, time.monotonic() + seconds
        self._steps = 0  # of the latest run without a cap

    def allows_another(self, longest: float) -> bool:
        return time.monotonic() + longest < self._end

    def run(self, runs: Sequence[Run], flipped: bool = False) -> list[dict[tuple[str, int], dict]]:
        results = {}
        for run in runs[::-1] if flipped else runs:
            self.say(f"{self.name} under {run.name}" + (f", at most {format_bytes(run.limit_bytes)}" if run.limit_bytes else ""))
            result = run_once(self._program, run.name, max(5.0, self._end - time.monotonic()), limit_bytes=run.limit_bytes)
            if run.limit_bytes:
                result = self._judged(result)
            elif "error" not in result:
                self._steps = len(result["step_seconds"])
            results[run.key] = result
        return [results]

    def _judged(self, result: dict) -> dict:
        """A script that ran out of memory, caught it and gave up did not train, however well it ended."""
        steps = len(result.get("step_seconds", ()))
        if "error" in result or not result.get("ooms") or steps >= self._steps:
            return result
        said = f"it ran out of memory, went on and made {steps} of {self._steps} timed steps"
        return result | {"error": said, "out_of_memory": said, "failed_at_step": steps}


def name_of(path: str) -> str:
    """For tables and sentences, also where its bytes are no UTF-8."""
    return os.fsencode(Path(path).name).decode("utf-8", "replace")


def warm_from(steps: int) -> int:
    return min(WARM_FROM, max(steps - 1, 0))


def run_once(program: Sequence[str], name: str, seconds: float, history: Path | None = None, limit_bytes: int = 0) -> dict:
    """What one run measured; with `error` and its last lines as `stderr` if it did not end well. limit_bytes: 0 for none."""
    with tempfile.TemporaryDirectory(prefix="dymem-compare-", ignore_cleanup_errors=True) as folder, \
            tempfile.TemporaryFile() as said:
        code = _code_of([sys.executable, *program], seconds, said, environment_of(name, folder, history, limit_bytes))
        said.seek(max(0, said.seek(0, os.SEEK_END) - TAIL))
        tail = said.read().decode("utf-8", "replace").strip()
        result = _report(Path(folder))
    if code is None:
        return result | {"error": "cut off: the budget of seconds was spent", "stderr": tail}
    if code != 0:
        last = (tail.splitlines() or ["it said nothing"])[-1]
        return result | {"error": result.get("out_of_memory") or f"{_ended(code)}: {last}", "stderr": tail}
    if not result and not history:
        return {"error": "the script ended without importing torch", "stderr": tail}
    return result


def record_history(program: Sequence[str], name: str, target: Path, seconds: float) -> str | None:
    """Runs the first steps once more to write who held what; a sentence where that failed."""
    result = run_once(program, name, seconds, target)
    if not target.exists():
        why = result.get("error", "it made too few optimizer steps on the GPU")
        return f"{name_of(program[0])} under {name}: no picture of addresses: {why}"
    return None


def environment_of(name: str, folder: str, history: Path | None = None, limit_bytes: int = 0) -> dict[str, str]:
    environment = child_environment(ALLOCATORS[name], limit_bytes or None)
    if limit_bytes:
        environment[observe.LIMIT] = str(limit_bytes)
    if history is not None:
        environment[observe.HISTORY] = str(history)
        if ENVIRONMENT in environment:
            config = Config.from_conf(environment[ENVIRONMENT])
            environment[ENVIRONMENT] = dataclasses.replace(config, trace=True).to_conf()
    path = os.pathsep.join(filter(None, [str(PACKAGE / "_boot"), os.environ.get("PYTHONPATH")]))
    return environment | {"DYMEM_RUN": "1", "PYTHONPATH": path, "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1",
                          observe.REPORT: folder, observe.RIVAL: name}


def _code_of(command: Sequence[str], seconds: float, said: IO[bytes], environment: dict[str, str]) -> int | None:
    """The exit code; None for one that had to be ended. What it started ends with it either way."""
    process = None
    with ending.adopting() as before:
        try:
            with held():  # else Ctrl-C could fall between a process that runs and a name for it
                process = subprocess.Popen(dying_with_this(command), stdin=subprocess.DEVNULL, stdout=said,
                                           stderr=subprocess.STDOUT, env=environment, start_new_session=True)
            return process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process is not None:
                with held():
                    ending.end_all(process, before)


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"


def _report(folder: Path) -> dict:
    """Of the script's processes, the figures of the one that trained: most steps, then the lowest rank."""
    reports = []
    for path in sorted(folder.glob("*.json")):
        try:
            reports.append(json.loads(path.read_text()))
        except (OSError, ValueError):
            continue
    if not reports:
        return {}
    report = min(reports, key=lambda each: (-len(each["step_seconds"]), each["rank"]))
    for each in reports:  # where one rank runs out of memory, its launcher ends the others
        report |= {key: each[key] for key in ("out_of_memory", "failed_at_step") if "out_of_memory" in each}
    steps = report["step_seconds"]
    report["warm_from"] = warm_from(len(steps))
    warm = steps[report["warm_from"]:]
    report["step_ms"] = round(1e3 * figures.median(warm), 4) if warm else None
    calls = report.pop("calls_after_step")[report["warm_from"]:]
    told = len(calls) > 1 and None not in calls
    report["calls_per_step"] = round((calls[-1] - calls[0]) / (len(calls) - 1), 1) if told else None
    report["processes"] = len(reports)
    return report
