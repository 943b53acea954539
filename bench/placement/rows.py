"""One recording under every placement, as plain figures. No tables, no files: recordings in, dicts out.

Classes are told apart by their source:
  late       real ones, as recorded: of the iterations after the profiled one only
  known      real ones of all iterations: what a run has that follows the facts of an earlier one (dymem.mobility.tagging)
  recorded   what a recording without facts beside it carries
  hindsight  of a perfect rule, from marks of iterations and phases, where a recording carries none
  foreign    what a run has that follows the facts of another program, which nobody should do
Mistaken classes (`mistaken`, a share) go by the size of the request, the same in every iteration, as a
rule that is wrong about a layer is wrong about it every time: half of them are swapped, half say nothing.
"""

from __future__ import annotations

import dataclasses
import statistics
import struct
import zlib
from pathlib import Path

from dymem.errors import TraceError
from dymem.mobility import Facts, classes
from dymem.mobility.rules import NAMES
from dymem.mobility.sizing import BETAS, Sizing, failure_rate, failures_with_restarts, needs, pool_size
from dymem.mobility.tagging import known
from dymem.plotting.layout import BLOCK_UNIT
from dymem.replaying import PLACEMENTS, replay_recording
from dymem.trace import Recording, name_of
from dymem.trace.mobility import MOVABLE, TEMPORARY, UNTAGGED, with_hindsight
from dymem.trace.snapshot import ALLOC, EVENT, FREE_COMPLETED, FREE_REQUESTED, MOBILITY_AT

SLAB = {"backing": "contiguous"}
RULES = ("lifetime", "paper", "hindsight")
LAYOUT_CHANGE = struct.Struct("<5Q")  # allocator/replay/layout_watch.hpp
SLAB_ALLOC = 4


def allocations(events: bytes):
    """(where its class stands, size, class) of each allocation; a class that there is not is none, as in a replay."""
    for index, (_, _, size, _, kind, mobility, _, _) in enumerate(EVENT.iter_unpack(events)):
        if kind == ALLOC:
            yield index * EVENT.size + MOBILITY_AT, size, mobility if mobility < len(NAMES) else UNTAGGED


def tagged(recording: Recording) -> tuple[Recording, str]:
    """The recording with classes, and whose they are: "recorded" or "hindsight"; TraceError if it has neither."""
    if any(mobility != UNTAGGED for _, _, mobility in allocations(recording.events)):
        return recording, "recorded"
    try:
        return dataclasses.replace(recording, events=with_hindsight(recording.events)), "hindsight"
    except TraceError as error:
        raise TraceError(f"{recording.name}: {error}") from None


def facts_beside(path: str | Path) -> Facts | None:
    """Those in NAME.facts.json beside NAME.dymem, either of them as it is or as .xz or .gz; None if there are none."""
    path = Path(path)
    found = (path.with_name(f"{name_of(path)}.facts.json{packed}") for packed in ("", ".xz", ".gz"))
    return next((Facts.load(file) for file in found if file.exists()), None)


def sources(recording: Recording, facts: Facts | None) -> dict[str, Recording]:
    """Source: the recording with classes of it. Real ones if there are facts, else what tagged() has."""
    if facts is None:
        with_classes, source = tagged(recording)
        return {source: with_classes}
    return {"late": recording, "known": by_rule(recording, facts, "lifetime")}


def by_rule(recording: Recording, facts: Facts, rule: str) -> Recording:
    """With known classes by one of the rules, or with those of "hindsight"."""
    if rule == "hindsight":
        return dataclasses.replace(recording, events=with_hindsight(recording.events))
    return dataclasses.replace(recording, events=known(recording.events, facts, classes(facts, rule), recording.device)[0])


def compare_rules(recording: Recording, facts: Facts) -> dict[str, float]:
    """Excess over live in one slab, grouped, by each rule; "hindsight" of the very recording, which no rule could know."""
    excess = {}
    for rule in RULES:
        result = replay_recording(by_rule(recording, facts, rule), config=SLAB)
        excess[rule] = result["reserved_peak_bytes"] / result["live_peak_bytes"] - 1
    return excess


def untagged(events: bytes) -> bytearray:
    out = bytearray(events)
    for at, _, _ in allocations(events):
        out[at] = UNTAGGED
    return out


def with_mistakes(events: bytes, share: float, seed: int = 0) -> bytearray:
    out = bytearray(events)
    for at, size, mobility in allocations(events):
        chance = zlib.crc32(f"{seed}:{size}".encode()) / 2**32
        if chance < share / 2:
            out[at] = MOVABLE if mobility == TEMPORARY else TEMPORARY
        elif chance < share:
            out[at] = UNTAGGED
    return out


def largest_request(events: bytes, first: int = -1) -> int:
    """Bytes, of iteration `first` and later; 1 if there is none."""
    return max((size for _, _, size, _, kind, _, _, iteration in EVENT.iter_unpack(events)
                if kind == ALLOC and iteration >= first), default=1)


def block_bytes(size: int) -> int:
    """What a block of so many requested bytes takes."""
    return -(-max(size, 1) // BLOCK_UNIT) * BLOCK_UNIT


def power_for(size: int) -> str:
    """The key of U_f for a request of `size`: the smallest power of two that holds it."""
    return f"2^{max(9, (size - 1).bit_length())}"


def unusable_at_requests(events: bytes, result: dict, pool: int, first: int) -> float | None:
    """U_f when the largest request comes, in a pool of `pool` bytes: of what is free then, the share that it cannot use; the
    mean over all such requests from iteration `first` on. None where there is none, or the pool could not be that small.

    `result`: of a replay in one slab with its layout. The slab is larger than `pool` by what its largest hole, the one
    between the ends, has too much: a placement that takes that hole last puts blocks nowhere else in the smaller one."""
    slab = next((change for change in LAYOUT_CHANGE.iter_unpack(result["layout"]["changes"]) if change[1] == SLAB_ALLOC), None)
    if slab is None or result["stats"]["segment"]["all"]["peak"] > 1:
        return None
    base, size = slab[3], slab[4]
    addresses = memoryview(result["layout"]["addresses"]).cast("Q")
    wanted, held, found = largest_request(events, first), {}, []
    completed = {event[1] for event in EVENT.iter_unpack(events) if event[4] == FREE_COMPLETED}
    for index, (_, block, bytes_, _, kind, _, _, iteration) in enumerate(EVENT.iter_unpack(events)):
        if kind == ALLOC:
            if bytes_ == wanted and iteration >= first:
                found.append(share_unusable(sorted(held.values()), base, size, pool, wanted))
            held[block] = addresses[index], addresses[index] + block_bytes(bytes_)
        elif kind == FREE_COMPLETED or kind == FREE_REQUESTED and block not in completed:
            held.pop(block, None)
    if None in found or not found:
        return None
    return sum(found) / len(found)


def share_unusable(blocks: list[tuple[int, int]], base: int, size: int, pool: int, wanted: int) -> float | None:
    """Of a slab whose sorted blocks are these; see unusable_at_requests."""
    holes, end = [], base
    for at, stop in blocks:
        holes.append(at - end)
        end = stop
    holes.append(base + size - end)
    holes.sort()
    holes[-1] -= size - pool
    free = sum(holes)
    if holes[-1] < 0:
        return None
    return (free - sum(hole for hole in holes if hole >= wanted)) / free if free else 0.0


def figures(recording: Recording, result: dict, first: int) -> dict:
    """Of one replay: bytes, excess over live, U_f at the high-water mark, and failures by beta."""
    live, reserved = result["live_peak_bytes"], result["reserved_peak_bytes"]
    row = {"reserved_peak_bytes": reserved, "excess": reserved / live - 1 if live else 0.0,
           "unusable_free": result["unusable_free"], "driver_time_share": 0.0,
           "unusable_at_mark": result["unusable_free"][power_for(largest_request(recording.events))]}
    if result["trace_time_warm_us"]:
        row["driver_time_share"] = result["driver_time_warm_us"] / result["trace_time_warm_us"]
    by_iteration = result["needed_by_iteration"]
    if str(first) in by_iteration:
        begin, after = needs(by_iteration, first)
        row["failure_rates"] = {str(beta): failure_rate(after, pool_size(begin, 0, beta)) for beta in (0, *BETAS)}
        row["iterations_after_first"] = len(after)
        row["failures_with_restarts"] = {str(beta): failures_with_restarts(after, Sizing(begin, 0, [beta, *(
            b for b in BETAS if b > beta)]))[0] for beta in (0, *BETAS)}
    return row


def ablations(recording: Recording, *, facts: Facts | None = None, foreign: Facts | None = None, mistaken: float = 0.0,
              first: int = 1) -> list[dict]:
    """The rows of one recording: one for each source of its classes, which are `foreign` ones alone where that is given."""
    classes_of = {"foreign": by_rule(recording, foreign, "lifetime")} if foreign else sources(recording, facts)
    rows = [ablation(recording, with_classes, source, mistaken=mistaken, first=first)
            for source, with_classes in classes_of.items()]
    if facts is not None and not foreign:
        rows[-1]["rules"] = compare_rules(recording, facts)
    return rows


def ablation(recording: Recording, with_classes: Recording, source: str, *, mistaken: float = 0.0, first: int = 1) -> dict:
    """One row: every placement in one slab, and granules with and without classes (with stitching)."""
    if mistaken:
        with_classes = dataclasses.replace(with_classes, events=with_mistakes(with_classes.events, mistaken))
    plain = dataclasses.replace(recording, events=untagged(recording.events))
    runs: dict[str, dict] = {}
    in_a_slab = {}
    for placement in PLACEMENTS:
        replayed = plain if placement == "best_fit" else with_classes
        in_a_slab[placement] = result = replay_recording(replayed, config=SLAB, placement=placement, layout=True)
        runs[placement] = figures(replayed, result, first)
    pool = max(in_a_slab[placement]["reserved_peak_bytes"] for placement in ("best_fit", "grouped"))
    for placement, result in in_a_slab.items():
        runs[placement]["unusable_at_largest"] = unusable_at_requests(recording.events, result, pool, first)
    for name, replayed in (("vmm", plain), ("vmm_tagged", with_classes)):
        result = replay_recording(replayed)
        runs[name] = figures(replayed, result, first)
    shares = [0] * len(NAMES)
    for _, size, mobility in allocations(with_classes.events):
        shares[mobility] += size
    return {"name": recording.name, "classes": source, "live_peak_bytes": result["live_peak_bytes"],
            "occupied_peak_bytes": result["occupied_peak_bytes"], "largest_request": largest_request(recording.events, first),
            "class_bytes": dict(zip(NAMES, shares)), "placements": runs}


def summary(rows: list[dict], placement: str) -> dict:
    """Over all rows, against untagged best fit: in points of the live peak, and in bytes."""
    excess = [row["placements"][placement]["excess"] for row in rows]
    base = [row["placements"]["best_fit"]["excess"] for row in rows]
    in_bytes = [e * row["live_peak_bytes"] for e, row in zip(excess, rows)]
    base_bytes = [e * row["live_peak_bytes"] for e, row in zip(base, rows)]
    worse = [(e - b, row["name"]) for e, b, row in zip(excess, base, rows)]
    return {"median": statistics.median(excess), "sum": sum(excess), "of_best_fit": sum(excess) / sum(base) if sum(base) else 1.0,
            "bytes": round(sum(in_bytes)), "bytes_of_best_fit": sum(in_bytes) / sum(base_bytes) if sum(base_bytes) else 1.0,
            "most_worse": max(worse)[0], "most_worse_on": max(worse)[1]}
