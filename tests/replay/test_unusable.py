"""U_f of a replay is of the moment at which reserved came to its peak: against a model that knows addresses only."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dymem import _core
from dymem.trace.snapshot import ALLOC, EVENT, FREE_REQUESTED

MIB = 1 << 20


def as_events(steps):
    """(size or None to free, which) -> events of one stream."""
    out, held, blocks = b"", [], 0
    for time, (size, which) in enumerate(steps):
        if size is None:
            if held:
                block, n = held.pop(which % len(held))
                out += EVENT.pack(time, block, n, 0, FREE_REQUESTED, 0, 0, -1)
        else:
            held.append((blocks, size))
            out += EVENT.pack(time, blocks, size, 0, ALLOC, 0, 0, -1)
            blocks += 1
    return out


def at_the_peak(events):
    """Of a slab: holes between blocks at the event that last raised the highest end, without the pool's help."""
    result = _core.replay(events, {"backing": "contiguous", "layout": True})
    addresses = np.frombuffer(result["layout"]["addresses"], "u8").tolist()
    live, top, holes = {}, 0, []
    for (_, block, size, _, kind, *_), address in zip(EVENT.iter_unpack(events), addresses):
        if kind != ALLOC:
            del live[block]
            continue
        live[block] = address, address + max(512, -(-size // 512) * 512)
        if live[block][1] > top:
            top = live[block][1]
            ends = [min(addresses[0], *(at for at, _ in live.values()))]
            holes = []
            for at, end in sorted(live.values()):
                holes.append(at - ends[-1])
                ends.append(end)
    return result, [hole for hole in holes if hole]


@settings(max_examples=80)
@given(steps=st.lists(st.tuples(st.one_of(st.none(), st.integers(1, 30 * MIB)), st.integers(0, 99)), min_size=1, max_size=60))
def test_it_is_of_the_moment_of_the_peak(steps):
    events = as_events([(steps[0][0] or 1, 0), *steps[1:]])
    result, holes = at_the_peak(events)
    total = sum(holes)
    for j in range(9, 47):
        unusable = sum(hole for hole in holes if hole < 2**j)
        assert result["unusable_free"][f"2^{j}"] == pytest.approx(unusable / total if total else 0)


def test_what_comes_after_the_peak_does_not_count():
    steps = [(8 * MIB, 0), (4 * MIB, 0), (None, 0), (30 * MIB, 0)]  # a hole of 8 MiB below the last
    fragmented = _core.replay(as_events(steps), {"backing": "contiguous"})["unusable_free"]
    assert fragmented == _core.replay(as_events([*steps, (None, 0), (None, 0)]), {"backing": "contiguous"})["unusable_free"]
    assert fragmented["2^23"] == 0 and fragmented["2^24"] == 1
