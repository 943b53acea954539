"""A few lengths that come again and again in other orders: what that does to a recording's memory. Needs no GPU.

    python bench/shuffled.py                                        # llama_accum as `dymem compare --shapes 4` trains it
    python bench/shuffled.py llama_varlen bert_varlen --lengths 6 --steps 40
    python bench/shuffled.py --conf backing:contiguous --json shuffled.json

A recording of sequences has each length once or twice, so that what a pool comes to after fifty steps of a few lengths is
not in it. Here its first iteration is replayed as it is; steps after it are its third one over again, the sizes of its blocks
those for lengths drawn from the ones that were recorded, in an order of their own in every step. How a block's size goes by
the length is read off two forward and backward passes; only recordings with marks of iterations and passes, and of those only
those whose passes allocate alike, can be taken apart like that. Exit 0: replayed; 2: a recording that cannot be.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent / "python")]

from checks import check_targets  # noqa: E402

from dymem.config import Config  # noqa: E402
from dymem.errors import ConfigError, TraceError  # noqa: E402
from dymem.replaying import replay_recording  # noqa: E402
from dymem.trace import Recording, load  # noqa: E402
from dymem.trace.snapshot import ALLOC, BLOCK_UNIT, EVENT, FREE_REQUESTED  # noqa: E402

RECORDINGS = Path(__file__).resolve().parent / "placement" / "recordings"
FIRST, TEMPLATE = 0, 2  # iterations: replayed as it is, and repeated
FORWARD, BACKWARD = ord("F"), ord("B")
ALIKE = 0.02  # the share of a pass's blocks whose sizes may be off by more than a tenth

Event = tuple[int, int, int, int, int, int, int, int]  # time, block, size, stream, kind, class, phase, iteration


def sizes(events: Iterable[Event]) -> list[int]:
    return [event[2] for event in events if event[4] == ALLOC]


def parts(events: Iterable[Event]) -> list[tuple[int, list[Event]]]:
    """An iteration's events by phase, in order: [(phase, events), …]."""
    found: list[tuple[int, list[Event]]] = []
    for event in events:
        if not found or found[-1][0] != event[6]:
            found.append((event[6], []))
        found[-1][1].append(event)
    return found


class Passes:
    """What the passes of a recording allocate, as a function of the length of their batch.

    A length is told by the largest block of its forward pass, in bytes.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.iterations: dict[int, list[Event]] = {}
        for event in EVENT.iter_unpack(recording.events):
            self.iterations.setdefault(event[7], []).append(event)
        if TEMPLATE not in self.iterations:
            raise TraceError(f"{recording.name}: fewer than {TEMPLATE + 1} iterations are marked in it")
        ours = {event[1] for event in self.iterations[TEMPLATE] if event[4] == ALLOC}
        if any(event[4] == FREE_REQUESTED and event[1] not in ours for event in self.iterations[TEMPLATE]):
            raise TraceError(f"{recording.name}: blocks live from one iteration into the next; steps cannot be put in another order")
        # The last of several passes has a block less; the most there are say enough for all.
        counts = max([len(half) for half in each] for each in self.of(TEMPLATE))
        known = {self.length(each): each for number in self.iterations if number >= 0 for each in self.of(number)
                 if [len(half) for half in each] == counts}
        if len(known) < 2:
            raise TraceError(f"{recording.name}: its passes do not allocate alike, or all have one length")
        self.short, self.long = known[min(known)], known[max(known)]
        self.check(known)

    def of(self, number: int) -> list[tuple[list[int], list[int]]]:
        """Sizes of the blocks of each forward pass of an iteration and of the backward pass after it."""
        found = [(phase, sizes(events)) for phase, events in parts(self.iterations[number])]
        passes = [(now[1], after[1]) for now, after in zip(found, found[1:]) if (now[0], after[0]) == (FORWARD, BACKWARD)]
        if not passes:
            raise TraceError(f"{self.recording.name}: no passes are marked in it")
        return passes

    @staticmethod
    def length(each: tuple[list[int], list[int]]) -> int:
        return max(each[0], default=0)

    def sized(self, backward: bool, index: int, length: int) -> int:
        least, most = self.short[backward][index], self.long[backward][index]
        if least == most:
            return least
        share = (length - self.length(self.short)) / (self.length(self.long) - self.length(self.short))
        return max(BLOCK_UNIT, round((least + (most - least) * share) / BLOCK_UNIT) * BLOCK_UNIT)

    def check(self, known: dict[int, tuple[list[int], list[int]]]) -> None:
        for length, each in known.items():
            off = [abs(self.sized(bool(half), index, length) - size) > max(size // 10, 2 * BLOCK_UNIT)
                   for half in (0, 1) for index, size in enumerate(each[half])]
            if sum(off) > ALIKE * len(off):
                raise TraceError(f"{self.recording.name}: the sizes of its blocks do not go by the length alone")

    def shuffled(self, lengths: Sequence[int], orders: Iterable[Sequence[int]]) -> Recording:
        """The first iteration, then one step for each order: which of the lengths each pass of the template has."""
        events = [event for number in (-1, FIRST) for event in self.iterations.get(number, ())]
        events.sort(key=lambda event: event[0])
        block = max(event[1] for whole in self.iterations.values() for event in whole) + 1
        template = self.iterations[TEMPLATE]
        began, now = template[0][0], events[-1][0] + 1000
        for number, order in enumerate(orders, FIRST + 1):
            names: dict[int, tuple[int, int]] = {}
            turn = -1
            for phase, part in parts(template):
                turn += phase == FORWARD
                index = 0
                for time, old, size, stream, kind, mobility, _, _ in part:
                    if kind == ALLOC:
                        if phase in (FORWARD, BACKWARD):
                            size = self.sized(phase == BACKWARD, index, lengths[order[turn]])
                        index += 1
                        names[old] = block, size
                        block += 1
                    new, size = names.get(old, (old, size))
                    events.append((time - began + now, new, size, stream, kind, mobility, phase, number))
            now = events[-1][0] + 1000
        return dataclasses.replace(self.recording, events=b"".join(EVENT.pack(*event) for event in events))


def orders(lengths: int, turns: int, steps: int, seed: int) -> list[list[int]]:
    """For each step a length for each pass: all lengths, in an order of their own each time, go round again and again."""
    rng = random.Random(seed)
    ahead: list[int] = []
    drawn = []
    for _ in range(steps):
        while len(ahead) < turns:
            ahead += rng.sample(range(lengths), lengths)
        drawn.append([ahead.pop(0) for _ in range(turns)])
    return drawn


def measure(recording: Recording, count: int, steps: int, seed: int, config: dict[str, str]) -> dict[str, object]:
    passes = Passes(recording)
    lengths = sorted({passes.length(each) for number in passes.iterations if number >= 0 for each in passes.of(number)})
    lengths = random.Random(seed).sample(lengths, min(count, len(lengths)))
    if passes.length(passes.long) not in lengths:  # the peak of the first iteration and of the steps is of the longest
        lengths[0] = passes.length(passes.long)
    made = passes.shuffled(lengths, orders(len(lengths), len(passes.of(TEMPLATE)), steps, seed))
    after = {}
    for upto in sorted({1, 3, 7, 15, 31, 63, steps + 1} & set(range(steps + 2)) | {steps + 1}):
        part = b"".join(EVENT.pack(*event) for event in EVENT.iter_unpack(made.events) if event[7] < upto)
        result = replay_recording(dataclasses.replace(made, events=part), config=config)
        if result["audit"]:
            raise AssertionError(f"{recording.name}: the audit found {result['audit'][0]}")
        after[upto] = {key: result[key] for key in ("reserved_peak_bytes", "occupied_peak_bytes", "overhead", "driver_calls", "oom")}
    return {"name": recording.name, "lengths": lengths, "steps": steps, "seed": seed, "after_iterations": after}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What a few lengths in ever other orders do to a recording's memory.")
    parser.add_argument("names", nargs="*", default=["llama_accum"], metavar="NAME",
                        help="recordings of bench/placement/recordings, or files (default: llama_accum)")
    parser.add_argument("--lengths", type=int, default=4, help="lengths of the recording that come again (default 4)")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--conf", default="", metavar="KEY:VALUE,…", help="dymem's configuration")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(argv)
    try:
        Config.from_conf(options.conf)
    except ConfigError as error:
        parser.error(f"--conf: {error}")
    config = dict(item.strip().split(":", 1) for item in options.conf.split(",") if item.strip())
    if options.lengths < 2 or options.steps < 1:
        parser.error("--lengths must be at least 2 and --steps at least 1")
    check_targets(options.json)
    found = []
    for name in options.names:
        path = Path(name) if Path(name).exists() else RECORDINGS / f"{name}.dymem.xz"
        try:
            for recording in load(path):
                figures = measure(recording, options.lengths, options.steps, options.seed, config)
                found.append(figures)
                print(f"{recording.name}: lengths of {', '.join(f'{n >> 20:,}' for n in figures['lengths'])} MiB")
                for upto, row in figures["after_iterations"].items():
                    print(f"  {upto:>4} iterations  reserved {row['reserved_peak_bytes'] >> 20:>7,} MiB  occupied "
                          f"{row['occupied_peak_bytes'] >> 20:>7,} MiB  overhead {row['overhead']:.2%}  driver calls "
                          f"{row['driver_calls']:,}", flush=True)
        except (TraceError, OSError) as error:
            print(f"shuffled.py: {error}", file=sys.stderr)
            return 2
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
