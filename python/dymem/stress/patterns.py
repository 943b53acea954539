"""The patterns: what programs do that leaves memory in pieces, each from a report or a textbook.

A pattern gets a Script, a seeded random.Random and `scale`, the bytes that are live at its peak, about. Written so that
the same calls could run on a card. All are deterministic for a seed.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

from dymem.stress.script import MIB, Script


@dataclasses.dataclass(frozen=True)
class Pattern:
    name: str
    story: str   # one line: what the program does
    source: str  # where it is from
    build: Callable[[Script, random.Random, int], None]

    def script(self, scale: int, seed: int = 0) -> Script:
        script = Script()
        self.build(script, random.Random(seed), scale)
        return script


PATTERNS: dict[str, Pattern] = {}


def pattern(story: str, source: str) -> Callable:
    def register(build: Callable[[Script, random.Random, int], None]) -> Callable:
        name = build.__name__
        PATTERNS[name] = Pattern(name, story, source, build)
        return build

    return register


def step(script: Script, iteration: int) -> None:
    script.iteration = iteration
    script.wait(2)


@pattern("equal blocks, every second one freed, then blocks twice as large", "textbook")
def checkerboard(script: Script, rng: random.Random, scale: int) -> None:
    for iteration in range(6):
        step(script, iteration)
        size = (8 + 4 * iteration) * MIB
        blocks = [script.alloc(size) for _ in range(scale // size)]
        script.free_all(blocks[::2])
        large = [script.alloc(2 * size) for _ in range(len(blocks[::2]) // 2)]
        script.free_all(large + blocks[1::2])


@pattern("large blocks with a small long-lived one after each; the large go, larger ones come", "textbook")
def comb(script: Script, rng: random.Random, scale: int) -> None:
    teeth: list[int] = []
    for iteration in range(6):
        step(script, iteration)
        size = (16 + 8 * iteration) * MIB
        gaps = []
        for _ in range(max(1, int(0.8 * scale) // size)):
            gaps.append(script.alloc(size))
            if len(teeth) < 200:
                teeth.append(script.alloc(rng.randrange(1, 3 * MIB)))
        script.free_all(gaps)
        script.free_all([script.alloc(4 * size) for _ in range(max(1, int(0.8 * scale) // (4 * size)))])
    script.free_all(teeth)


def forward_backward(script: Script, sizes: list[int], workspace: int) -> None:
    """Activations in order, each layer with a workspace; then gradients in reverse order."""
    saved = []
    for size in sizes:
        scratch = script.alloc(workspace)
        saved.append(script.alloc(size))
        script.free(scratch)
    gradient = script.alloc(sizes[-1])
    for size, activation in zip(reversed(sizes), reversed(saved)):
        scratch = script.alloc(workspace)
        previous, gradient = gradient, script.alloc(size)
        script.free_all([scratch, previous, activation])
    script.free(gradient)


def layers(rng: random.Random, total: int, count: int = 48) -> list[int]:
    """Sizes of `count` activations of `total` bytes together, as uneven as those of a convolutional network."""
    weights = [rng.choice((1, 1, 2, 4)) * (0.5 + rng.random()) for _ in range(count)]
    return [max(512, int(total * w / sum(weights))) for w in weights]


@pattern("training whose batch grows until memory is full", "hyper-parameter searches")
def growing_batch(script: Script, rng: random.Random, scale: int) -> None:
    weights = [script.alloc(size) for size in layers(rng, scale // 5)]
    shape = layers(rng, scale * 3 // 5)
    for iteration in range(16):
        step(script, iteration)
        share = 0.25 + 0.75 * iteration / 15
        forward_backward(script, [int(size * share) for size in shape], int(scale * 0.1 * share))
    script.free_all(weights)


@pattern("training alternates with evaluation at other shapes", "textbook")
def train_eval(script: Script, rng: random.Random, scale: int) -> None:
    weights = [script.alloc(size) for size in layers(rng, scale // 5)]
    train, evaluate = layers(rng, scale * 3 // 5), layers(rng, scale * 3 // 5, 17)
    for iteration in range(12):
        step(script, iteration)
        if iteration % 3 < 2:
            forward_backward(script, train, scale // 10)
            continue
        metrics = []
        for size in evaluate:  # without gradients: an activation lives until the next one is there
            block = script.alloc(3 * size)
            metrics.append(script.alloc(rng.randrange(512, MIB)))
            script.free(block)
        script.free_all(metrics)
    script.free_all(weights)


@pattern("a large transient every step; small long-lived blocks split the hole it leaves", "pytorch#35901")
def split_hole(script: Script, rng: random.Random, scale: int) -> None:
    kept: list[int] = []
    for iteration in range(20):
        step(script, iteration)
        script.free(script.alloc(scale // 2))
        for _ in range(3):
            kept.append(script.alloc(rng.randrange(11 * MIB, 18 * MIB)))
        while len(kept) * 15 * MIB > scale * 2 // 5:
            script.free(kept.pop(rng.randrange(len(kept))))
    script.free(script.alloc(scale // 2))
    script.free_all(kept)


@pattern("sequences of varying length until compaction would be needed", "pytorch#31252")
def variable_lengths(script: Script, rng: random.Random, scale: int) -> None:
    weights = [script.alloc(size) for size in layers(rng, scale // 4)]
    shape = layers(rng, scale * 6 // 10, 60)
    for iteration in range(40):
        step(script, iteration)
        length = rng.uniform(0.1, 1.0)
        forward_backward(script, [int(size * length) for size in shape], int(scale * 0.1 * length))
    script.free_all(weights)


@pattern("large tables go to the host while activations comb the memory, and come back", "torchrec PR#4584")
def stash_restore(script: Script, rng: random.Random, scale: int) -> None:
    tables = [script.alloc(scale // 8) for _ in range(4)]
    for iteration in range(8):
        step(script, iteration)
        script.free_all(tables)  # stashed
        saved = [(script.alloc(rng.randrange(4 * MIB, 40 * MIB)), rng.random() < 0.5)
                 for _ in range(max(2, scale * 9 // 10 // (22 * MIB)))]
        script.free_all([block for block, goes in saved if goes])
        tables = [script.alloc(scale // 8) for _ in range(3)]  # restored into what the comb left
        script.free_all([block for block, goes in saved if not goes])
        tables.append(script.alloc(scale // 8))
    script.free_all(tables)


@pattern("a block that almost fits a hole strands the rest of it", "vllm PR#41268")
def almost_fitting_hole(script: Script, rng: random.Random, scale: int) -> None:
    weights = [script.alloc(scale // 16) for _ in range(6)]
    for iteration in range(8):
        step(script, iteration)
        hole, half = scale // 8, scale // 16 + 5 * MIB
        holes = []
        fences = []
        for _ in range(4):
            holes.append(script.alloc(hole))
            fences.append(script.alloc(2 * MIB))
        script.free_all(holes)
        stranding = [script.alloc(half) for _ in range(4)]
        rest = [script.alloc(hole - half) for _ in range(2)] + [script.alloc(2 * (hole - half))]
        script.free_all(stranding + rest + fences)
    script.free_all(weights)


@pattern("every step's temporary buffers come from a side stream used once", "Megatron-LM PR#6885")
def one_shot_streams(script: Script, rng: random.Random, scale: int) -> None:
    weights = [script.alloc(size) for size in layers(rng, scale // 4)]
    shape = layers(rng, scale // 2)
    for iteration in range(24):
        step(script, iteration)
        stream = 1 + iteration % 24
        buffers = [script.alloc(scale // 32, stream) for _ in range(4)]
        forward_backward(script, shape, scale // 16)
        script.free_all(buffers)
        script.wait(20)
    script.free_all(weights)


@pattern("blocks freed while another stream still works with them, then one of their size", "pytorch#189504")
def cross_stream_pending(script: Script, rng: random.Random, scale: int) -> None:
    size = scale // 8
    script.free(script.alloc(MIB, stream=7))
    for iteration in range(24):
        step(script, iteration)
        blocks = [script.alloc(size) for _ in range(6)]
        for block in blocks[:3]:
            script.use_on(block, 7)
            script.free(block, done_after_ms=4)
        script.free_all(blocks[3:])
        script.wait(30)
        script.free_all([script.alloc(size + MIB) for _ in range(5)])


@pattern("random sizes over five orders of magnitude, random lifetimes", "allocator benchmarks")
def power_law(script: Script, rng: random.Random, scale: int) -> None:
    live: list[tuple[int, int]] = []
    total = 0
    for call in range(12_000):
        if call % 500 == 0:
            step(script, call // 500)
        size = int(min(scale / 6, 2048 * rng.paretovariate(0.35)))
        while live and total + size > scale:
            block, bytes_ = live.pop(rng.randrange(len(live)))
            total -= bytes_
            script.free(block)
        live.append((script.alloc(size), size))
        total += size
    script.free_all([block for block, _ in live])


@pattern("requests whose caches are copied into larger ones as they grow, and end at any time", "serving")
def kv_cache_growth(script: Script, rng: random.Random, scale: int) -> None:
    caches: list[tuple[int, int]] = []  # block, bytes
    weights = script.alloc(scale // 4)
    most = scale * 6 // 10
    for call in range(4_000):
        if call % 200 == 0:
            step(script, call // 200)
        used = sum(size for _, size in caches)
        if len(caches) < 24 and (not caches or rng.random() < 0.1):
            size = rng.randrange(4 * MIB, 16 * MIB)
            caches.append((script.alloc(size), size))
        elif used > most * 8 // 10 or rng.random() < 0.02:
            script.free(caches.pop(rng.randrange(len(caches)))[0])
        else:
            at = rng.randrange(len(caches))
            block, size = caches[at]
            larger = min(size + 2 * MIB, scale // 12)
            caches[at] = (script.alloc(larger), larger)
            script.free(block)
    script.free_all([block for block, _ in caches] + [weights])
