"""What pictures show: pixels, columns, bins and rows of traces whose every figure is known."""

import dataclasses
import time

import pytest
from snapshots import EVENT, MIB, History, snapshot, steps, write

np = pytest.importorskip("numpy")
pytest.importorskip("matplotlib")

from dymem.errors import InvalidArgument  # noqa: E402
from dymem.plotting import axis, colours, histograms, over_time, peak, raster  # noqa: E402
from dymem.plotting.address import address_picture, draw_addresses  # noqa: E402
from dymem.plotting.layout import layout_of  # noqa: E402
from dymem.plotting.page import page  # noqa: E402
from dymem.plotting.pictures import Options  # noqa: E402
from dymem.plotting.replayed import replayed_layout  # noqa: E402
from dymem.trace import Recording, load  # noqa: E402


def layout_from(tmp_path, history):
    [one] = load(write(tmp_path / "one.pickle", snapshot(history)), layout=True)
    return layout_of(one)


def pixels(layout, rows, by="phase", columns=None, first=None, last=None):
    """A column for each event unless told otherwise."""
    span = axis.chosen_events(layout, first, last)
    across = axis.make_axis(layout, "event", columns or span[1] - span[0], span)
    return raster.rasterise(layout, across, colours.classify(layout, by), rows, layout.top)


def test_pixels_are_blocks_idle_memory_and_nothing(tmp_path):
    """Rows from the bottom, a MiB each; a 4 MiB segment, two blocks in it, and a hole between them."""
    history = History()
    history.mark = "0:F"
    history.add("segment_alloc", 0, 4 * MIB).alloc(0, MIB)
    history.mark = "0:B"
    history.alloc(2 * MIB, 2 * MIB).add("free_requested", 0, MIB).alloc(1 * MIB, MIB)
    history.add("free_completed", 0, MIB).add("segment_alloc", 9 * MIB, MIB)
    n, i, p, f, b = colours.NOTHING, colours.IDLE, colours.PENDING, colours.FIRST, colours.FIRST + 1
    assert pixels(layout_from(tmp_path, history), 5).tolist() == [
        [i, f, f, p, p, i, i],
        [i, i, i, i, b, b, b],
        [i, i, b, b, b, b, b],
        [i, i, b, b, b, b, b],
        [n, n, n, n, n, n, i],
    ]


def test_a_block_thinner_than_a_row_has_one(tmp_path):
    """Where memory is free else: within it, at its top, beside a large one; pending, too. Of several pieces no more than one."""
    history = History()
    history.mark = "0:F"
    history.add("segment_alloc", 0, 100 * MIB).alloc(0, 20 * MIB)
    history.mark = "0:B"
    history.alloc(43 * MIB, 512).add("free_requested", 43 * MIB, 512).alloc(100 * MIB - 512, 512).alloc(20 * MIB, 512)
    history.add("free_completed", 43 * MIB, 512).alloc(20 * MIB + 512, 12 * MIB)
    f, b, i, p = colours.FIRST, colours.FIRST + 1, colours.IDLE, colours.PENDING
    assert pixels(layout_from(tmp_path, history), 10)[:, 2:].T.tolist() == [
        [f, f, i, i, b, i, i, i, i, i], [f, f, i, i, p, i, i, i, i, i], [f, f, i, i, p, i, i, i, i, b],
        [f, f, b, i, p, i, i, i, i, b], [f, f, b, i, i, i, i, i, i, b], [f, f, b, i, i, i, i, i, i, b]]
    history.alloc(56 * MIB, 9 * MIB).alloc(65 * MIB, 512).alloc(66 * MIB, 9 * MIB)
    assert pixels(layout_from(tmp_path, history), 10)[:, -1].tolist() == [f, f, b, i, i, i, b, b, i, b]
    layout = layout_from(tmp_path, History().alloc(0, MIB))
    pieces = {"piece_low": np.array([0, 30, 70]), "piece_high": np.array([1, 32, 71]), "piece_block": np.array([0, 0, 0]),
              "extent_low": np.array([], int), "extent_high": np.array([], int), "extent_born": np.array([], int),
              "extent_ended": np.array([], int)}
    scattered = dataclasses.replace(layout, **pieces)
    across = axis.make_axis(scattered, "event", 1, (0, 1))
    picture = raster.rasterise(scattered, across, colours.classify(layout, "phase"), 10, 100)
    assert np.flatnonzero(picture[:, 0] != colours.NOTHING).tolist() == [3]


@pytest.mark.parametrize("several", [1, 2, 24])
def test_no_pixel_is_lost_when_a_panel_is_drawn(tmp_path, several):
    """On a page, too: else a block of one row would be seen in one panel, and not in the next."""
    figure = address_picture([layout_from(tmp_path, steps())] * several, title="t")
    figure.set_dpi(120)
    figure.draw_without_rendering()
    for panel in figure.axes:
        rows, columns, _ = panel.images[0].get_array().shape
        drawn = panel.images[0].get_window_extent()
        assert drawn.height >= rows and drawn.width >= columns, (drawn, rows, columns)


def test_a_column_shows_the_fullest_instant_of_its_span(tmp_path):
    """A peak of one event among hundreds is seen however few columns there are."""
    history = History()
    for index in range(400):
        history.alloc(0, MIB).free(0, MIB)
        if index == 222:
            history.alloc(MIB, 9 * MIB).free(MIB, 9 * MIB)
    layout = layout_from(tmp_path, history)
    picture = pixels(layout, 10, columns=7)
    assert (picture[0] >= colours.FIRST).sum() == 6, "and in its own column the byte below it is free"
    assert (picture[5] >= colours.FIRST).sum() == 1


def test_columns_without_events_are_as_before(tmp_path):
    history = History().alloc(0, MIB)
    history.time += 1_000_000
    history.free(0, MIB)
    layout = layout_from(tmp_path, history)
    across = axis.make_axis(layout, "time", 10, (0, len(layout)))
    assert across.instants.tolist()[:-1] == [0] * 9 and across.right == pytest.approx(1.000001, abs=1e-5)
    longer = axis.make_axis(layout, "time", 10, (0, len(layout)), ends=(0.0, 2.0))
    assert longer.instants.tolist()[6:] == [len(layout)] * 4, "after its end, a trace shows nothing"
    assert (raster.rasterise(layout, longer, colours.classify(layout, "phase"), 4, MIB)[:, 6:] == colours.NOTHING).all()


def test_iterations_choose_the_events(tmp_path):
    layout = layout_from(tmp_path, steps())
    a, b = axis.chosen_events(layout, 2, 3)
    assert set(layout.events["iteration"][a:b].tolist()) == {2, 3} and b - a == 8
    assert axis.chosen_events(layout, None, 0) == (0, 6), "from the beginning: what comes before iteration 0 too"
    with pytest.raises(InvalidArgument, match="0 to 5"):
        axis.chosen_events(layout, 7, 9)
    with pytest.raises(InvalidArgument, match="no iterations marked"):
        axis.chosen_events(layout_from(tmp_path, History().alloc(0, 1)), 0, None)


@pytest.mark.parametrize("by, names", [("phase", ["building the model", "forward"]), ("stream", ["default stream"]),
                                       ("size", ["up to 16 MiB"]), ("mobility", ["untagged"])])
def test_classes(tmp_path, by, names):
    classes = colours.classify(layout_from(tmp_path, steps()), by)
    assert classes.names == names and len(classes.of_block) == 13


def test_streams_beyond_the_palette_share_a_class(tmp_path):
    history = History()
    for stream in range(20):
        history.alloc(stream * MIB, MIB, stream=stream)
    classes = colours.classify(layout_from(tmp_path, history), "stream")
    assert len(classes.names) == len(colours.PALETTE) and classes.names[-1] == "12 more streams"
    assert classes.of_block.max() == len(colours.PALETTE) - 1


def test_an_unknown_class_is_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="phase, mobility, size, stream"):
        colours.classify(layout_from(tmp_path, steps()), "taste")


def test_stacked_bytes_add_up_to_occupied(traces):
    [one] = load(traces / "resnet50_prefetch.pickle.xz", layout=True)
    layout = layout_of(one)
    across = axis.make_axis(layout, "event", 300, (0, len(layout)))
    rows = over_time.stacked(layout, across, colours.classify(layout, "phase"))
    assert (rows.sum(axis=0) == layout.occupied[across.instants]).all() and (rows >= 0).all()
    assert rows.sum(axis=0).max() == layout.occupied.max(), "the peak is in the picture"


def test_bins_of_sizes_and_lifetimes(tmp_path):
    history = History().alloc(0, 512).alloc(MIB, 513).alloc(2 * MIB, 1 * MIB)
    history.time += 1000 - 2  # a block of 512 B lives 1,002 µs
    history.free(0, 512)
    layout = layout_from(tmp_path, history)
    sizes = histograms.size_bins(layout, (0, len(layout)))
    assert sizes.names[0] == "512 B" and sizes.names[-1] == "1 MiB"
    assert sizes.blocks[0] == sizes.blocks[1] == sizes.blocks[-1] == 1 and sizes.blocks.sum() == 3
    assert sizes.bytes[1] == 1024
    lives = histograms.lifetime_bins(layout, (0, len(layout)))
    assert lives.names[-1] == "kept" and lives.blocks[-1] == 2 and lives.blocks[:-1].sum() == 1
    assert lives.names[int(np.flatnonzero(lives.blocks)[0])] == "1.05 ms"
    assert histograms.size_bins(layout, (1, 2)).blocks.sum() == 1


def test_who_holds_the_peak(tmp_path):
    history = steps()
    layout = layout_from(tmp_path, history)
    found = peak.peak_of(layout)
    assert found.bytes == 20 * MIB and found.iteration == 0 and found.reserved == 32 * MIB
    assert [(g.who, g.blocks, g.bytes) for g in found.groups] == [("forward, iteration 0", 2, 16 * MIB),
                                                                  ("building the model", 1, 4 * MIB)]
    assert [h.bytes for h in found.largest] == [8 * MIB, 8 * MIB, 4 * MIB] and not found.by_line
    assert peak.rows(found)[0] == ("forward, iteration 0", "2", "16.0 MiB", "80.0 %", "8.00 MiB")
    assert peak.rows(found, 1)[1] == ("1 more", "1", "4.00 MiB", "20.0 %", "4.00 MiB")
    assert peak.peak_of(layout, 4, 4).iteration == 4


def test_who_holds_the_peak_by_line(tmp_path):
    history = History()
    for index in range(3):
        history.alloc(index * MIB, MIB)
        history.entries[-1]["frames"] = [{"filename": "/me/net.py", "line": 5 + index // 2, "name": "f"}]
    found = peak.peak_of(layout_from(tmp_path, history))
    assert found.by_line and [(g.who, g.blocks) for g in found.groups] == [("me/net.py:5 f", 2), ("me/net.py:6 f", 1)]


def big_recording(blocks):
    """A snapshot's worth of events without the detour over a pickle: a ring of blocks, each living for 1,000 others."""
    events, addresses = bytearray(), []
    for index in range(blocks):
        if index >= 1000:
            events += EVENT.pack(index * 10, index - 1000, MIB, 0, 1, 0, ord("B"), index // 20000)
            addresses.append((index - 1000) % 1001 * MIB)
        events += EVENT.pack(index * 10 + 5, index, MIB, 0, 0, 0, ord("F"), index // 20000)
        addresses.append(index % 1001 * MIB)
    return Recording("big", "big.pickle", 0, events, addresses=np.array(addresses, "<u8").tobytes())


def test_a_hundred_thousand_blocks_are_drawn_in_seconds(tmp_path):
    start = time.process_time()
    address_picture(big_recording(100_000), tmp_path / "big.png", title="big")
    assert time.process_time() - start < 20
    assert (tmp_path / "big.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def image_of(panel):
    """The pixels of a panel's image as colours in hex, rows from the bottom."""
    from matplotlib.colors import to_hex

    return [[to_hex(pixel / 255) for pixel in row] for row in np.asarray(panel.images[0].get_array())[::350, ::600]]


def test_the_picture_has_the_colours_of_its_legend(tmp_path):
    """One block in the lower half of a segment: below its colour, above grey; the lines and the caption say the bytes."""
    history = History()
    history.mark = "0:F"
    history.add("segment_alloc", 0, 4 * MIB).alloc(0, 2 * MIB)
    history.mark = "0:B"
    history.free(0, 2 * MIB)
    figure = address_picture(layout_from(tmp_path, history), title="t")
    [panel] = figure.axes
    [legend] = [text.get_text() for text in panel.get_legend().get_texts()][:1]
    assert legend == "forward"
    forward, idle = colours.PALETTE[0], colours.IDLE_COLOUR
    assert image_of(panel) == [[idle, forward, idle], [idle, idle, idle]]
    assert "occupied peak 2.00 MiB, reserved peak 4.00 MiB, overhead +100.0 %" in panel.get_title(loc="left")
    assert [line.get_color() for line in panel.lines[:2]] == [colours.LIVE_LINE, colours.RESERVED_LINE]
    assert panel.lines[1].get_ydata().max() == 4.0


def test_panels_share_scale_time_and_colours(tmp_path):
    from matplotlib.figure import Figure

    small, large = steps(size=MIB), History()
    large.mark = "0:B"
    large.add("segment_alloc", 0, 64 * MIB).alloc(0, 64 * MIB)
    layouts = [layout_from(tmp_path, small), layout_from(tmp_path, large)]
    panels = Figure().subplots(2, 1)
    draw_addresses(panels, layouts, colour="phase", kind="time")
    assert panels[0].get_ylim() == panels[1].get_ylim() and panels[0].get_xlim() == panels[1].get_xlim()
    names = [text.get_text() for text in panels[0].get_legend().get_texts()]
    assert names[:3] == ["building the model", "forward", "backward"] and panels[1].get_legend() is None


def test_the_same_trace_gives_the_same_bytes(tmp_path):
    for name in ("a.png", "b.png"):
        address_picture(layout_from(tmp_path, steps()), tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


@pytest.mark.parametrize("history", [History().alloc(0x10, 1), History().add("segment_alloc", 0x10, MIB),
                                     History().alloc(0x10, 0).free(0x10, 0)], ids=["block", "segment", "empty block"])
@pytest.mark.parametrize("x", ["event", "time"])
def test_the_smallest_recordings_make_a_page(tmp_path, history, x):
    [one] = load(write(tmp_path / "one.pickle", snapshot(history)), layout=True)
    content = page([layout_of(one, "recorded"), replayed_layout(one, "dymem")], "small", Options(x=x))
    assert content.count(b"data:image/png;base64,") == 4 and content.count(b"<table>") == 5


def test_the_line_of_occupied_bytes_keeps_its_peaks():
    from dymem.plotting.address import peaks

    line = [0, 1, 2, 9, 2, 9, 9, 2, 2, 9, 3, 3, 3, 2, 1]
    assert peaks(np.array(line), 3).tolist() == [0, 1, 2, 9, 9, 9, 9, 9, 9, 9, 3, 3, 3, 2, 1], "slopes stay, dips of 2 go"
    assert peaks(np.array([1, 9, 2]), 1).tolist() == [1, 9, 2] and peaks(np.array([]), 6).tolist() == []
