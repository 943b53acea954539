"""Layouts: who lay where, from snapshots made by hand (every place known) and from replays (every byte accounted for)."""

import pickle

import pytest
from snapshots import ALLOC, EVENT, MARK, MIB, History, snapshot, steps, write

np = pytest.importorskip("numpy")

from dymem.errors import TraceError  # noqa: E402
from dymem.plotting.layout import Extents, layout_of  # noqa: E402
from dymem.plotting.replayed import replayed_layout  # noqa: E402
from dymem.trace import Recording, load  # noqa: E402

CONFIGURATIONS = [{}, {"alias": "off"}, {"backing": "contiguous"}]


def recording(tmp_path, history):
    [one] = load(write(tmp_path / "one.pickle", snapshot(history)), layout=True)
    return one


def pieces_of(layout, block):
    mine = layout.piece_block == block
    return sorted(zip(layout.piece_low[mine].tolist(), layout.piece_high[mine].tolist()))


def test_blocks_lie_in_their_segments(tmp_path):
    """Two segments far apart, the second taken first: on the axis it comes first, and holes stay where they are."""
    history = History().add("segment_alloc", 0x9000_0000, 8 * MIB).alloc(0x9000_0000 + 2 * MIB, MIB)
    history.add("segment_alloc", 0x1000_0000, 4 * MIB).alloc(0x1000_0000, MIB - 100).free(0x9000_0000 + 2 * MIB, MIB)
    layout = layout_of(recording(tmp_path, history))
    assert pieces_of(layout, 0) == [(2 * MIB, 3 * MIB)] and pieces_of(layout, 1) == [(8 * MIB, 9 * MIB)]
    assert layout.size.tolist() == [MIB, MIB]  # rounded up to 512 bytes
    assert layout.born.tolist() == [1, 3] and layout.ended.tolist() == [4, 5] and len(layout) == 5
    assert layout.top == 12 * MIB
    assert layout.reserved.tolist() == [n * MIB for n in (8, 8, 12, 12, 12)]
    assert layout.occupied.tolist() == [n * MIB for n in (0, 1, 1, 2, 1)]


def test_pending_lies_between_freed_and_ended(tmp_path):
    history = History().alloc(0x1000, MIB).add("free_requested", 0x1000, MIB).alloc(0x900000, MIB)
    history.add("free_completed", 0x1000, MIB)
    layout = layout_of(recording(tmp_path, history))
    assert (layout.freed[0], layout.ended[0]) == (1, 3)
    assert layout.live.tolist() == [MIB, 0, MIB, MIB] and layout.occupied.tolist() == [MIB, MIB, 2 * MIB, MIB]


def test_without_segments_blocks_take_what_they_use_and_reserved_is_not_told(tmp_path):
    layout = layout_of(recording(tmp_path, History().alloc(0x5000_0000, MIB).alloc(0x10, 512)))
    assert layout.reserved is None
    assert pieces_of(layout, 0) == [(0, MIB)] and pieces_of(layout, 1) == [(MIB, MIB + 512)]


def test_expandable_segments_lose_a_part_and_a_block_spans_two(tmp_path):
    history = History().add("segment_map", 0x1000_0000, 4 * MIB).add("segment_map", 0x1000_0000 + 4 * MIB, 4 * MIB)
    history.alloc(0x1000_0000 + 3 * MIB, 2 * MIB).free(0x1000_0000 + 3 * MIB, 2 * MIB)
    history.add("segment_unmap", 0x1000_0000 + MIB, 2 * MIB)
    layout = layout_of(recording(tmp_path, history))
    assert pieces_of(layout, 0) == [(3 * MIB, 4 * MIB), (4 * MIB, 5 * MIB)]
    held = {(low, high) for low, high, ended in zip(layout.extent_low, layout.extent_high, layout.extent_ended)
            if ended == len(layout)}
    assert held == {(0, MIB), (3 * MIB, 4 * MIB), (4 * MIB, 8 * MIB)}
    assert layout.reserved[-1] == 6 * MIB


def test_extents_take_the_lowest_place_that_is_free():
    extents = Extents()
    first, second, third = (extents.take(0, at, size) for at, size in ((0, 10), (100, 20), (200, 30)))
    assert [extents.low[i] for i in (first, second, third)] == [0, 10, 30]
    extents.give_back(1, 0, 10)
    extents.give_back(1, 100, 20)
    fourth, fifth, sixth = (extents.take(2, at, size) for at, size in ((300, 25), (400, 5), (500, 9)))
    assert [extents.low[i] for i in (fourth, fifth, sixth)] == [0, 25, 60]


@pytest.mark.parametrize("name", ["kmeans", "resnet50_prefetch", "resnet32_stochdepth"])
@pytest.mark.parametrize("config", [None, *CONFIGURATIONS])
def test_every_byte_of_a_recording_lies_somewhere_and_nothing_lies_on_it(traces, name, config):
    """At many moments: the pieces of a block have its bytes, lie in extents held then, and no two blocks share a byte."""
    [one] = load(traces / f"{name}.pickle.xz", layout=True)
    layout = layout_of(one) if config is None else replayed_layout(one, config=config)
    total = np.bincount(layout.piece_block, layout.piece_high - layout.piece_low, minlength=len(layout.size))
    assert (total == layout.size).all()
    block = layout.piece_block
    for k in np.linspace(0, len(layout) - 1, 40).astype(int):
        held = (layout.born[block] <= k) & (layout.ended[block] > k)
        low, high = layout.piece_low[held], layout.piece_high[held]
        order = np.argsort(low)
        assert (high[order][:-1] <= low[order][1:]).all(), "two blocks on the same bytes"
        assert (high - low).sum() == layout.occupied[k]
        there = (layout.extent_born <= k) & (layout.extent_ended > k)
        starts = np.sort(layout.extent_low[there])
        ends = layout.extent_high[there][np.argsort(layout.extent_low[there])]
        inside = np.searchsorted(starts, low, "right") - 1
        assert (inside >= 0).all() and (high <= ends[inside]).all(), "a block where nothing is held"
        if config is None or "backing" not in config:
            assert (ends - starts).sum() == layout.reserved[k], "what is held is what is reserved"


def test_a_replay_that_runs_out_of_memory_is_drawn_up_to_there(tmp_path):
    layout = replayed_layout(recording(tmp_path, steps()), limit=12 * MIB)
    assert layout.stopped == len(layout) == len(layout.reserved) and layout.stopped > 0
    assert layout.occupied.max() <= 12 * MIB


def test_no_addresses_and_no_events_are_refused():
    with pytest.raises(TraceError, match="--replay"):
        layout_of(Recording("own", "own.trace", 0, b"\0" * 40))
    with pytest.raises(TraceError, match="no events"):
        layout_of(Recording("own", "own.trace", 0, b""))


def test_a_layout_costs_the_reader_only_when_asked(tmp_path):
    path = write(tmp_path / "one.pickle", snapshot(steps()))
    [plain], [detailed] = load(path), load(path, layout=True)
    assert plain.addresses == plain.frame_of == b"" and plain.frames == []
    assert plain.events == detailed.events and len(detailed.addresses) == 8 * len(detailed)


def test_frames_name_the_users_own_line(tmp_path):
    def frame(file, line, name):
        return {"filename": file, "line": line, "name": name}

    history = History().alloc(0x10, MIB).alloc(0x20, MIB).alloc(0x30, MIB).alloc(0x40, MIB)
    stack = [frame("??", 0, "at::empty"), frame("/x/site-packages/torch/nn/linear.py", 9, "forward"),
             frame("/home/me/model/net.py", 41, "block"), frame("/home/me/train.py", 7, "main")]
    history.entries[0]["frames"], history.entries[1]["frames"] = stack, stack[:2]
    history.entries[2]["frames"] = "damaged"
    [one] = load(write(tmp_path / "one.pickle", pickle.dumps(snapshot(history))), layout=True)
    layout = layout_of(one)
    told = [layout.frames[i - 1] if i else "" for i in layout.frame]
    assert told == ["model/net.py:41 block", "nn/linear.py:9 forward", "", ""]


def test_marks_of_the_program_hold_for_what_follows():
    """In a trace of dymem's own: a mark is an event, and the allocations after it say no iteration."""
    def alloc(block):
        return EVENT.pack(block, block, MIB, 0, ALLOC, 0, 0, -1)

    def mark(iteration, phase):
        return EVENT.pack(0, 0, iteration % (1 << 64), 0, MARK, 0, ord(phase), -1)

    events = alloc(0) + mark(0, "F") + alloc(1) + mark(0, "B") + alloc(2) + mark(1, "F") + alloc(3) + mark(-1, "X") + alloc(4)
    layout = replayed_layout(Recording("own", "own.trace", 0, events))
    assert layout.events["iteration"].tolist() == [-1, 0, 0, 0, 0, 1, 1, -1, -1]
    assert "".join(chr(p or ord(".")) for p in layout.events["phase"][layout.born]) == ".FBFX"
