"""What one call of the allocator that is installed costs on the host, seen from Python, warm.

Blocks of the sizes that training asks for are taken and given back, some hundred live at a time, through PyTorch's
thinnest way to its allocator; a loop over a call that does nothing is taken off. No GPU work is launched. Run it when
the figures of the real work have been read: it adds to calls and may add to peaks.
"""

from __future__ import annotations

import random
import time

SIZES = tuple(1 << n for n in (9, 10, 12, 14, 16, 18, 20, 21, 22, 23))
LIVE, ROUNDS, CALLS = 64, 7, 2000


def call_ns() -> float | None:
    """Nanoseconds of one call, mallocs and frees alike: the median of some rounds. None where nothing can be taken."""
    import torch

    take = torch._C._cuda_cudaCachingAllocator_raw_alloc
    give = torch._C._cuda_cudaCachingAllocator_raw_delete
    stream = torch.cuda.current_stream().cuda_stream
    rng = random.Random(0)
    sizes = [rng.choice(SIZES) for _ in range(CALLS)]
    places = [rng.randrange(LIVE) for _ in range(CALLS)]
    held: list[int] = []
    try:
        torch.cuda.synchronize()
        held = [take(size, stream) for size in sizes[:LIVE]]
        rounds = [_round(take, give, sizes, places, held, stream) for _ in range(ROUNDS + 1)][1:]
    except (RuntimeError, MemoryError):  # no room beside the model: nothing to tell
        return None
    finally:
        for pointer in held:
            give(pointer)
    nothing = [_round(_nothing, _nothing_at_all, sizes, places, [0] * LIVE, stream) for _ in range(ROUNDS)]
    return round(max(0.0, sorted(rounds)[ROUNDS // 2] - sorted(nothing)[ROUNDS // 2]), 1)


def _round(take, give, sizes, places, held, stream) -> float:
    start = time.perf_counter_ns()
    for size, place in zip(sizes, places):
        give(held[place])
        held[place] = take(size, stream)
    return (time.perf_counter_ns() - start) / (2 * len(sizes))


# What costs as little as a call of C can, with as many arguments.
_nothing = max
_nothing_at_all = abs
