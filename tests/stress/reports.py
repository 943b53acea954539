"""Programs from users' reports that `dymem stress` does not run: each builds a Script of about `scale` bytes at its peak.

The name of a program is said by the report it comes from; test_reports.py says what must hold of each. Sizes keep the
reports' proportions.
"""

from __future__ import annotations

import random
from typing import Callable

from dymem.stress.patterns import forward_backward, layers, step
from dymem.stress.script import MIB, Script
from dymem.trace import Recording

COMPUTE, COMMUNICATION, COPY = 0, 1, 2


def oversplit(script: Script, rng: random.Random, scale: int) -> None:
    """pytorch PR#44742: large cached blocks are carved up for small ones that stay; 50 MB fail with 13 of 32 GB free."""
    kept: list[int] = []
    for iteration in range(8):
        step(script, iteration)
        large = [script.alloc(scale // 12) for _ in range(9)]
        script.free_all(large)
        for _ in range(9):  # each is cut from another of the large blocks once the one before it is full
            pieces = [script.alloc(rng.randrange(12 * MIB, 20 * MIB)) for _ in range(max(1, scale // 12 // (16 * MIB)))]
            script.free_all(pieces[1:])
            kept.append(pieces[0])
        while len(kept) * 16 * MIB > scale // 4:
            script.free(kept.pop(rng.randrange(len(kept))))
    script.free_all(kept)


def larger_than_cached(script: Script, rng: random.Random, scale: int) -> None:
    """pytorch#159674: 60 GiB are free, then 70 are wanted on a card of 80; something small lives in what was freed."""
    for iteration in range(4):
        step(script, iteration)
        script.free(script.alloc(scale * 60 // 80))
        small = script.alloc(12 * MIB)
        script.free(script.alloc(scale * 70 // 80))
        script.free(small)


def replaced_weights(script: Script, rng: random.Random, scale: int) -> None:
    """vllm PR#49151: weights are replaced one by one by slightly larger ones; 9.1 GiB live, 14.4 reserved."""
    sizes = [int(size * 0.93) for size in layers(rng, scale, 60)]
    weights = [script.alloc(size) for size in sizes]
    for iteration in range(2):
        step(script, iteration)
        for at, size in enumerate(sizes):
            new = script.alloc(int(size * (1.058 if iteration == 0 else 1.07)))
            script.free(weights[at])
            weights[at] = new
    script.free_all(weights)


def expert_loads(script: Script, rng: random.Random, scale: int) -> None:
    """torchtitan#3865: a mixture of experts, whose shares of the tokens differ at every step and in every layer."""
    weights = [script.alloc(size) for size in layers(rng, scale // 4)]
    for iteration in range(14):
        step(script, iteration)
        saved = []
        for _ in range(8):
            shares = [rng.paretovariate(1.3) for _ in range(8)]
            part = scale * 0.07 / sum(shares)
            for share in shares:
                hidden = script.alloc(int(2 * part * share))
                saved.append(script.alloc(int(part * share)))
                script.free(hidden)
        for block in reversed(saved):
            scratch = script.alloc(rng.randrange(MIB, 8 * MIB))
            script.free_all([block, scratch])
    script.free_all(weights)


def double_buffering(script: Script, rng: random.Random, scale: int) -> None:
    """torchrec PR#4447: a table comes back while another still leaves for the host; 20 % more than one at a time."""
    tables = [script.alloc(scale // 5) for _ in range(4)]
    for iteration in range(10):
        step(script, iteration)
        for at in range(4):
            script.use_on(tables[at], COPY)
            script.free(tables[at], done_after_ms=3)  # on its way to the host
            saved = [script.alloc(rng.randrange(2 * MIB, 9 * MIB)) for _ in range(6)]
            tables[at] = script.alloc(scale // 5)
            script.free_all(saved)
            script.wait(6)
    script.free_all(tables)


def collective_buffers(script: Script, rng: random.Random, scale: int) -> None:
    """pytorch#147168, torchtitan#735: each collective's buffers are recorded on its stream, and come back late."""
    weights = [script.alloc(size) for size in layers(rng, scale // 3)]
    shape = layers(rng, scale // 3, 24)
    for iteration in range(16):
        step(script, iteration)
        saved = []
        for size in shape:
            gathered = script.alloc(size, COMMUNICATION)
            script.use_on(gathered, COMPUTE)
            saved.append(script.alloc(size))
            script.free(gathered, done_after_ms=1.5)
            script.wait(1)
        for size, activation in zip(reversed(shape), reversed(saved)):
            gradient = script.alloc(size)
            script.use_on(gradient, COMMUNICATION)
            script.free(activation)
            script.free(gradient, done_after_ms=1.5)
            script.wait(1)
    script.free_all(weights)


def resized_storages(script: Script, rng: random.Random, scale: int) -> None:
    """pytorch#65078: FSDP gives a layer's full parameters back after each use and takes them again, forward and backward."""
    shards = [script.alloc(size) for size in layers(rng, scale // 4, 24)]
    full = layers(rng, scale // 2, 24)
    shape = layers(rng, scale * 4 // 10, 24)
    for iteration in range(10):
        step(script, iteration)
        saved = []
        for parameters, size in zip(full, shape):
            block = script.alloc(parameters, COMMUNICATION)
            saved.append(script.alloc(size))
            script.free(block)
        for parameters, activation in zip(reversed(full), reversed(saved)):
            block = script.alloc(parameters, COMMUNICATION)
            gradient = script.alloc(parameters)
            script.free_all([activation, block, gradient])
    script.free_all(shards)


def long_contexts(script: Script, rng: random.Random, scale: int) -> None:
    """DeepSpeedExamples#172, EasyContext#11: steps of very long texts near the limit, flushed 27 times each."""
    shards = [script.alloc(size) for size in layers(rng, scale // 3, 32)]
    for iteration in range(8):
        step(script, iteration)
        length = 1.0 - 0.06 * (iteration % 3)
        shape = [int(size * length) for size in layers(random.Random(1), scale // 2, 64)]
        forward_backward(script, shape, int(scale * 0.08 * length))
        script.wait(100)
    script.free_all(shards)


def two_thirds_live(script: Script, rng: random.Random, scale: int) -> None:
    """pytorch#110194: 54 of 79 GiB are live and 686 MiB cannot be had."""
    live: list[tuple[int, int]] = []
    held = 0
    wanted = scale * 54 // 55
    for call in range(3000):
        if call % 300 == 0:
            step(script, call // 300)
        size = int(rng.choice((0.2, 1, 3)) * scale / 400 * (0.5 + rng.random()))
        while held + size > wanted:
            block, gone = live.pop(rng.randrange(len(live)))
            held -= gone
            script.free(block)
        live.append((script.alloc(size), size))
        held += size
    for _ in range(8):
        script.free(script.alloc(scale * 686 // (55 * 1024)))
    script.free_all([block for block, _ in live])


def speech(script: Script, rng: random.Random, scale: int) -> None:
    """algorithmic-efficiency PR#522: utterances of a few lengths; a wrong setting made training twice as slow."""
    weights = [script.alloc(size) for size in layers(rng, scale // 4)]
    shape = layers(rng, scale * 6 // 10, 40)
    for iteration in range(24):
        step(script, iteration)
        length = (0.55, 1.0, 0.7, 0.85)[iteration % 4]
        forward_backward(script, [int(size * length) for size in shape], int(scale * 0.1 * length))
        script.wait(40)
    script.free_all(weights)


def long_texts(script: Script, rng: random.Random, scale: int) -> None:
    """pytorch PR#76861: large language models whose texts vary, gradients reduced on NCCL's streams: cudaMalloc and cudaFree
    all the time."""
    weights = [script.alloc(size) for size in layers(rng, scale // 3)]
    shape = layers(rng, scale // 2, 32)
    for iteration in range(20):
        step(script, iteration)
        length = (0.6, 1.0, 0.8, 0.9, 0.7)[iteration % 5]
        saved = [script.alloc(int(size * length)) for size in shape]
        for size, activation in zip(reversed(shape), reversed(saved)):
            script.free(activation)
            bucket = script.alloc(size // 4)
            script.use_on(bucket, COMMUNICATION)
            script.free(bucket, done_after_ms=0.5)
        script.wait(50)
    script.free_all(weights)


PROGRAMS: dict[str, Callable[[Script, random.Random, int], None]] = {
    build.__name__: build for build in (
        oversplit, larger_than_cached, replaced_weights, expert_loads, double_buffering, collective_buffers,
        resized_storages, long_contexts, two_thirds_live, speech, long_texts)}


def recording(name: str, scale: int, seed: int = 0) -> Recording:
    """A program of this file, or a pattern of `dymem stress`, as a recording."""
    from dymem.stress import PATTERNS

    if name in PATTERNS:
        return PATTERNS[name].script(scale, seed).recording(name)
    script = Script()
    PROGRAMS[name](script, random.Random(seed), scale)
    return script.recording(name)
