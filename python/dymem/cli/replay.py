"""`dymem replay`: recorded allocations through the C++ pool on an emulated device.

The replay of one recording is dymem.replaying's.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from dymem import __version__
from dymem.cli.console import BROKEN, complain, err, files_before, progress, show, write_json
from dymem.cli.environment import replay_keys
from dymem.config import Config, parse_bytes, shortened
from dymem.errors import DymemError, InvalidArgument
from dymem.replaying import PLACEMENTS, lag_ns, replay_recording
from dymem.trace import load
from dymem.trace.mobility import with_hindsight
from dymem.writing import check_apart, check_writable

MOBILITIES = ("recorded", "hindsight")
_RATIO_MAX = 1000.0
_RATIO = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)x")


def parse_limit(text: str | None) -> int | float | None:
    """Bytes as int, a ratio of the occupied peak as float, None for no limit."""
    if text is None:
        return None
    ratio = _RATIO.fullmatch(text.strip().lower())
    value = float(ratio[1]) if ratio else parse_bytes(text)
    if ratio and value > _RATIO_MAX:
        raise InvalidArgument(f"a limit of '{shortened(text)}' the occupied peak is none; write for example 1.02x.")
    if value == 0:
        raise InvalidArgument("a limit of 0 leaves nothing to hold; leave --limit out for none.")
    return value


def main(traces: list[Path], *, limit: str | None, lag_ms: float, json_file: Path | None, audit_every: int,
         config: dict, mobility: str = "recorded", placement: str = "grouped") -> int:
    wanted_limit = parse_limit(limit)
    lag_ns(lag_ms)
    Config.from_mapping(config)
    if audit_every < 0:
        raise InvalidArgument("--audit counts events; write 0 for at the end only.")
    if mobility not in MOBILITIES:
        raise InvalidArgument(f"there is no mobility '{mobility}'; there are {' and '.join(MOBILITIES)}.")
    if placement not in PLACEMENTS:
        raise InvalidArgument(f"there is no placement '{placement}'; there are {', '.join(PLACEMENTS)}.")
    check_writable(json_file)
    check_apart([json_file], traces)
    inherited = replay_keys(takes_limit=True)
    wanted_limit = inherited.pop("limit", None) if limit is None else wanted_limit
    config = inherited | config
    results, bad = [], []
    with progress() as bar:
        for path in traces:
            task = bar.add_task(path.name, total=None)
            try:
                for recording in load(path):
                    if mobility == "hindsight":
                        recording = dataclasses.replace(recording, events=with_hindsight(recording.events))
                    bar.update(task, description=recording.name, total=len(recording), completed=0)
                    results.append(replay_recording(
                        recording, limit=wanted_limit, lag_ms=lag_ms, config=config, audit_every=audit_every, placement=placement,
                        progress=lambda done: bar.update(task, completed=done)))
            except DymemError as error:
                text = str(error) if str(error).startswith(str(path)) else f"{path}: {error}"
                bad.append({"file": str(path), "error": text})
            bar.remove_task(task)
    with files_before(lambda: tell(results, bad)):
        write_json(json_file, {"traces": results, "errors": bad, "dymem": __version__})
    if bad:
        return 2
    if any(result["audit"] for result in results):
        return BROKEN
    return 1 if any(result["oom"] for result in results) else 0


def tell(results: list[dict], bad: list[dict]) -> None:
    for each in bad:
        complain(each["error"])
    if results:
        show(table(results))
        explain(results)


def table(results: list[dict]):
    from dymem.cli.tables import replay_table

    return replay_table(results)


def explain(results: list[dict]) -> None:
    """What the table cannot say: where a trace stopped, and what was left out of it."""
    from dymem.cli.tables import oom_sentence

    for result in results:
        if result["oom"]:
            err.print(oom_sentence(result), markup=False)
        if result["ignored_frees"]:
            complain(f"{result['name']}: {result['ignored_frees']} frees of memory from before the recording began were "
                     "left out; start recording before the model is built to have it all.")
        for broken in result["audit"]:
            complain(f"{result['name']}: broken invariant, please report it: {broken}")
