"""Panels below each other: one axis on which each is seen whole, numbers that can be read, names that are true; and
files that are written whole or not at all."""

import os
import re

import pytest
from snapshots import MIB, snapshot, steps, write

np = pytest.importorskip("numpy")
pytest.importorskip("matplotlib")

from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from dymem.compare.pictures import address_over_time, replayed_addresses  # noqa: E402
from dymem.errors import InvalidArgument  # noqa: E402
from dymem.plotting import axis, colours  # noqa: E402
from dymem.plotting.files import save_figure  # noqa: E402
from dymem.plotting.layout import layout_of  # noqa: E402
from dymem.plotting.pictures import Options, draw  # noqa: E402
from dymem.plotting.replayed import replayed_layout  # noqa: E402
from dymem.trace import load  # noqa: E402

PICTURES = ["address", "bytes"]
CONFIGURATIONS = "dymem,dymem_remap,dymem_contiguous"


def recorded(tmp_path, name, iterations):
    [one] = load(write(tmp_path / f"{name}.pickle", snapshot(steps(iterations))), layout=True)
    return one


def ends(figure):
    """The ends of the axis, which all panels share."""
    [only] = {panel.get_xlim() for panel in figure.axes}
    return only


def reach(panel):
    """From where to where reserved bytes are drawn: they are those of every event shown."""
    line = panel.lines[1].get_xdata()
    return line.min(), line.max()


def column_of_pixels(panel, x):
    """The colours of a panel's image at x, rows from the bottom, as 8-bit numbers."""
    image = np.asarray(panel.images[0].get_array())
    left, right = panel.images[0].get_extent()[:2]
    assert (left, right) == panel.get_xlim(), "columns are of what is seen"
    return image[:, int((x - left) / (right - left) * image.shape[1])]


@pytest.mark.parametrize("picture", PICTURES)
@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("options, long, short, words", [
    (Options(x="event"), 182, 22, "time, in events of the allocator"),
    (Options(x="event", last=1), 10, 10, "time, in events of the allocator"),
    (Options(x="event", first=2), 172, 12, "time, in events of the allocator since the first one shown")])
def test_panels_of_different_traces_are_all_whole(tmp_path, picture, order, options, long, short, words):
    """Events are counted from the first that is shown, so that none lies where another trace has nothing."""
    lengths = [long, short][::order]
    layouts = [layout_of(recorded(tmp_path, *each)) for each in [("long", 45), ("short", 5)][::order]]
    figure = draw(picture, layouts, options)
    assert ends(figure) == (0, max(lengths)) and figure.axes[-1].get_xlabel() == words
    for panel, length in zip(figure.axes, lengths):
        first, last = reach(panel)
        assert first == 0 and length - 1 < last < length, (first, last, length)


@pytest.mark.parametrize("picture", PICTURES)
@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("first", [None, 0])
def test_a_replay_that_ends_early_cuts_nothing_off(tmp_path, picture, order, first):
    """The same trace: events keep their numbers."""
    one = recorded(tmp_path, "run", 20)
    stopped = replayed_layout(one, "dymem", limit=12 * MIB)
    assert stopped.stopped is not None and len(stopped) < 10 and len(one) == 82
    figure = draw(picture, [layout_of(one, "recorded"), stopped][::order], Options(first=first))
    begin = 0 if first is None else 2
    assert ends(figure) == (begin, 82) and figure.axes[-1].get_xlabel() == "time, in events of the allocator"
    whole, short = figure.axes[::order]
    assert reach(whole)[0] == reach(short)[0] == begin
    assert 81 < reach(whole)[1] < 82 and len(stopped) - 1 < reach(short)[1] < len(stopped)
    if picture == "address":
        nothing = [int(colours.NOTHING_COLOUR[at:at + 2], 16) for at in (1, 3, 5)]
        assert (column_of_pixels(short, 81.5) == nothing).all()
        assert (column_of_pixels(short, len(stopped) + 0.5) == nothing).all()
        assert not (column_of_pixels(short, len(stopped) - 0.5) == nothing).all()
        assert not (column_of_pixels(whole, 81.5) == nothing).all()


def test_columns_beyond_a_span_show_nothing(tmp_path):
    layout = layout_of(recorded(tmp_path, "run", 3))
    across = axis.make_axis(layout, "event", 20, (5, 8), ends=(0.0, 10.0))
    assert across.instants.tolist() == [-1] * 10 + [5, 5, 6, 6, 7, 7] + [len(layout)] * 4
    assert across.within(layout).tolist() == [False] * 10 + [True] * 6 + [False] * 4


def test_the_picture_of_compare_shows_runs_of_different_length(tmp_path, monkeypatch):
    counts = {"a": 12, "b": 5}
    files = [("native", write(tmp_path / f"{name}.pickle", snapshot(steps(counts[name])))) for name in counts]
    drawn = []
    monkeypatch.setattr("dymem.plotting.files.save_figure", lambda figure, target, dpi=130: drawn.append(figure))
    address_over_time("work", files, tmp_path / "a.png")
    assert ends(drawn[0]) == (0, 50) and 21 < reach(drawn[0].axes[1])[1] < 22
    assert column_of_pixels(drawn[0].axes[1], 40).tolist() == [[255, 255, 255]] * 384


def numbers(panel):
    """The places of the numbers that are drawn, in pixels from the left."""
    renderer = FigureCanvasAgg(panel.figure).get_renderer()
    windows = [text.get_window_extent(renderer) for text in panel.texts if text._check_xy(renderer)]
    return sorted((window.x0, window.x1) for window in windows)


@pytest.mark.parametrize("picture", PICTURES)
@pytest.mark.parametrize("x", ["event", "time"])
@pytest.mark.parametrize("short", [1, 9, 30, 99])
def test_numbers_of_iterations_can_be_read(tmp_path, picture, x, short):
    """However little room a short trace has beside a long one; and the panels are as wide as the figure."""
    layouts = [layout_of(recorded(tmp_path, "long", 200)), layout_of(recorded(tmp_path, "short", short))]
    figure = draw(picture, layouts, Options(x=x))
    figure.draw_without_rendering()
    for panel in figure.axes:
        assert panel.get_position().width > 0.9
        places = numbers(panel)
        assert places and all(right < left for (_, right), (left, _) in zip(places, places[1:])), places
        assert panel.texts[0].get_text() == "iteration 0"
    assert len(numbers(figure.axes[0])) > 10


def test_a_number_outside_of_the_axes_is_not_drawn(tmp_path):
    figure = draw("address", [layout_of(recorded(tmp_path, "run", 20))], Options())
    figure.axes[0].set_xlim(0, 20)  # as who zooms into a figure
    figure.draw_without_rendering()
    assert figure.axes[0].get_position().width > 0.9
    assert len(numbers(figure.axes[0])) < len(figure.axes[0].texts)


# --- names


def test_what_is_said_of_a_panel_names_its_trace(dymem_command, tmp_path):
    path = write(tmp_path / "run.pickle", snapshot(steps()))
    for names, more in (("recorded,dymem", []), ("dymem", []), ("recorded,dymem", [path])):
        run = dymem_command("plot", path, *more, "--allocators", names, "--limit", "12MiB", "--out", "a.png")
        assert run.returncode == 1 and run.stderr.startswith("dymem: run, dymem: drawn up to event "), run.stderr
    run = dymem_command("plot", path, "--allocators", "recorded,dymem", "--from", "7")
    assert run.stderr == "dymem: run, as recorded has no iterations from 7 to the last; it has 0 to 5.\n"
    [one] = load(path, layout=True)
    assert layout_of(one).whole_name == layout_of(one, "run").whole_name == "run"
    assert layout_of(one, "mine").whole_name == "run, mine" and layout_of(one, "run, mine").whole_name == "run, mine"


def rows_of(run):
    """The figures of each panel, as the table says them, by its name."""
    assert run.returncode == 0, run.stderr
    rows = [re.split(r"\s{2,}", line.strip()) for line in run.stdout.splitlines() if line.strip().startswith("dymem")]
    return {row[0]: row[1:] for row in rows if len(row) == 7}


@pytest.mark.parametrize("conf, dymem", [("backing:contiguous", "dymem_contiguous"), ("alias:off", "dymem_remap"),
                                         ("backing:contiguous,alias:off", "dymem_contiguous")])
def test_a_configuration_is_what_its_name_says(dymem_command, traces, conf, dymem):
    """dymem_remap and dymem_contiguous whatever DYMEM_CONF says; "dymem" is as it is configured, and says how."""
    command = "plot", traces / "vgg16_b128.pickle.xz", "--allocators", CONFIGURATIONS, "--out", "a.png"
    plain = rows_of(dymem_command(*command))
    assert list(plain) == CONFIGURATIONS.split(",") and len({tuple(cells) for cells in plain.values()}) == 3
    told = rows_of(dymem_command(*command, env={"DYMEM_CONF": conf}))
    assert told == {f"dymem, {conf}": plain[dymem], "dymem_remap": plain["dymem_remap"],
                    "dymem_contiguous": plain["dymem_contiguous"]}


def test_the_pictures_of_compare_tell_the_form_too(tmp_path, monkeypatch):
    path = write(tmp_path / "run.pickle", snapshot(steps()))
    drawn = []
    monkeypatch.setattr("dymem.plotting.files.save_figure", lambda figure, target, dpi=130: drawn.append(figure))
    for keys, name in (({}, "dymem"), ({"wait": False}, "dymem"), ({"alias": False}, "dymem, alias:off")):
        replayed_addresses(path, tmp_path / "a.png", keys)
        assert drawn[-1].axes[1].get_title(loc="left").startswith(f"run, {name}: occupied peak")


# --- files


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize("suffix", ["pdf", "svg", "png"])
def test_a_picture_of_stress_on_a_full_device(dymem_command, tmp_path, suffix):
    target = tmp_path / f"full.{suffix}"
    target.symlink_to("/dev/full")
    run = dymem_command("stress", "comb", "--driver", "emulated", "--scale", "256MiB", "--setting", "vmm",
                        "--precision", "0.5", "--picture", target)
    assert run.returncode == 2 and target.is_symlink()
    assert run.stderr == f"dymem: {target} cannot be written: No space left on device.\n"


ON_A_FULL_DISK = """
import resource, sys
from pathlib import Path
import matplotlib.font_manager  # reads its cache, which the limit is not for
from dymem.errors import InvalidArgument
from dymem.stress.picture import draw
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))  # as a disk on which no more is free
try:
    draw(Path(sys.argv[1]), ["comb"], ["dymem"], [[1.0]], [["1.000"]], "title")
except InvalidArgument as error:
    print(error)
"""


@pytest.mark.parametrize("suffix", ["pdf", "svg", "png"])
def test_a_full_disk_leaves_no_half_of_a_picture(python, tmp_path, suffix):
    folder = tmp_path / "disk"
    folder.mkdir()
    run = python("-c", ON_A_FULL_DISK, folder / f"a.{suffix}")
    assert run.returncode == 0 and "cannot be written: File too large" in run.stdout, run.stderr
    assert os.listdir(folder) == []


@pytest.mark.parametrize("suffix, begin", [("pdf", b"%PDF"), ("SVG", b"<?xml"), ("png", b"\x89PNG")])
def test_a_figure_is_what_its_name_says(tmp_path, suffix, begin):
    save_figure(Figure(), tmp_path / f"a.{suffix}")
    assert (tmp_path / f"a.{suffix}").read_bytes().startswith(begin)
    with pytest.raises(InvalidArgument, match="write .png, .svg or .pdf"):
        save_figure(Figure(), tmp_path / "a.html")
