"""A program: random tensors on three streams under dymem, each filled with a number of its own and checked later.

    python patterns.py STEPS SEED [live_bytes_max]

Prints one JSON line: elements that held another number than theirs, and the pool's statistics. Blocks that overlap, a
block handed out before another stream has done with it, or an alias that shows old bytes would all be counted.
"""

import json
import random
import sys

import dymem

dymem.install()

import torch  # noqa: E402


def main(steps: int, seed: int, live_max: int) -> None:
    rng = random.Random(seed)
    streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    wrong = [torch.zeros((), dtype=torch.int64, device="cuda") for _ in streams]
    torch.cuda.synchronize()
    held: list[tuple[torch.Tensor, int, int]] = []  # tensor, its number, index of its stream
    live = 0

    def check(tensor: torch.Tensor, number: int, where: int) -> None:
        with torch.cuda.stream(streams[where]):
            wrong[where].add_((tensor != number).sum())

    for number in range(1, steps + 1):
        where = rng.randrange(len(streams))
        elements = int(2 ** rng.uniform(7, 25))
        with torch.cuda.stream(streams[where]):
            tensor = torch.empty(elements, dtype=torch.int32, device="cuda").fill_(number)
        held.append((tensor, number, where))
        live += 4 * elements
        del tensor
        while live > live_max or (held and rng.random() < 0.45):
            tensor, its, where = held.pop(rng.randrange(len(held)))
            live -= 4 * tensor.numel()
            check(tensor, its, where)
            if rng.random() < 0.4:  # handed to another stream, and dropped while that one still works on it
                other = rng.randrange(len(streams))
                streams[other].wait_stream(streams[where])
                tensor.record_stream(streams[other])
                with torch.cuda.stream(streams[other]):
                    torch.cuda._sleep(rng.randrange(200_000))
                check(tensor, its, other)
            del tensor
    for tensor, its, where in held:
        check(tensor, its, where)
    torch.cuda.synchronize()
    held_bytes = sum((4 * t.numel() + 511) // 512 * 512 for t, _, _ in held) + 512 * len(wrong)
    from dymem import _core

    stats = _core.abi.stats(0)
    print(json.dumps({"wrong": sum(int(w) for w in wrong), "held_bytes": held_bytes,
                      "allocated_bytes": torch.cuda.memory_allocated(), "stitched": stats["num_stitches"],
                      "reserved_peak_bytes": torch.cuda.max_memory_reserved(),
                      "occupied_peak_bytes": torch.cuda.memory_stats()["active_bytes.all.peak"],
                      "audit": _core.abi.pool(0).audit()}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 2 << 30)
