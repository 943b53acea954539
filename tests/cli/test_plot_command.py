"""`dymem plot` as a user runs it: what it writes and says, and one sentence for whatever is wrong."""

import html.parser
import os
import re
import struct
import subprocess
import sys

import pytest
from snapshots import MIB, History, snapshot, steps, write

pytest.importorskip("matplotlib")


@pytest.fixture
def trace(tmp_path):
    return write(tmp_path / "small.run.pickle.xz", snapshot(steps()))


def size_of(png):
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", png[16:24])


def refused(run):
    """Exit code 2, no picture said to be written, one sentence on stderr."""
    assert run.returncode == 2, (run.returncode, run.stderr)
    assert "Written" not in run.stdout
    assert run.stderr.startswith("dymem: ") and run.stderr.count("\n") == 1, run.stderr
    return run.stderr


def test_the_default_picture_lies_in_this_folder_and_says_so(dymem_command, tmp_path, trace):
    run = dymem_command("plot", trace)
    assert run.returncode == 0, run.stderr
    target = tmp_path / "small.run.png"
    assert f"Written to {target}" in run.stdout
    wide, high = size_of(target.read_bytes())
    assert wide > 1500 and high > 500
    for words in ("20.0 MiB", "+60.0 %", "forward, iteration 0", "80.0 %"):
        assert words in run.stdout, words
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".dymem")] == []


@pytest.mark.parametrize("folder", ["fresh", "file/below"])
def test_matplotlibs_own_folders_are_no_news(python, tmp_path, trace, folder):
    """It tells of its font cache after 5 s of building it: here at once. A folder below a file is one for nobody, root too."""
    (tmp_path / "file").write_text("")
    code = ("import threading\n"
            "class AtOnce:\n"
            "    def __init__(self, seconds, call): self.start = call\n"
            "    def cancel(self): print('a timer was there')\n"
            "threading.Timer = AtOnce\n"
            "from dymem.__main__ import main\n"
            "main()\n")
    run = python("-c", code, "plot", trace, "--out", tmp_path / "a.png", env={"MPLCONFIGDIR": str(tmp_path / folder)})
    assert run.returncode == 0 and "a timer was there" in run.stdout, "no font cache was built: the case shows nothing"
    assert run.stderr == ""


def test_panels_are_stacked(dymem_command, tmp_path, trace):
    heights = []
    for names in ("recorded", "recorded,dymem,dymem_remap,dymem_contiguous"):
        run = dymem_command("plot", trace, "--allocators", names, "--out", tmp_path / "a.png")
        assert run.returncode == 0, run.stderr
        assert all(name.replace("recorded", "as recorded") in run.stdout for name in names.split(","))
        heights.append(size_of((tmp_path / "a.png").read_bytes())[1])
    assert heights[1] > 2.5 * heights[0]


@pytest.mark.parametrize("picture", ["address", "bytes", "histogram", "peak"])
@pytest.mark.parametrize("suffix", [".png", ".SVG"])
def test_every_picture_in_every_kind(dymem_command, tmp_path, trace, picture, suffix):
    target = tmp_path / f"out{suffix}"
    run = dymem_command("plot", trace, trace, "--replay", "--picture", picture, "--out", target, "--title", "a < b $x$")
    assert run.returncode == 0 and run.stderr == "", run.stderr
    data = target.read_bytes()
    assert data.startswith(b"\x89PNG") if suffix == ".png" else b"<svg" in data


class Page(html.parser.HTMLParser):
    """Counts what a browser would show, and what it would have to fetch."""

    def __init__(self):
        super().__init__()
        self.images, self.tables, self.fetched, self.text = 0, 0, [], ""

    def handle_starttag(self, tag, attributes):
        self.images += tag == "img"
        self.tables += tag == "table"
        for name, value in attributes:
            if name in ("src", "href") and not value.startswith("data:image/png;base64,"):
                self.fetched.append(value)

    def handle_data(self, data):
        self.text += data


def test_a_page_holds_everything_and_fetches_nothing(dymem_command, tmp_path, trace):
    run = dymem_command("plot", trace, "--allocators", "recorded,dymem", "--out", tmp_path / "p.html", "--title",
                        "<script>alert(1)</script>")
    assert run.returncode == 0, run.stderr
    text = (tmp_path / "p.html").read_text()
    page = Page()
    page.feed(text)
    assert page.images == 4 and page.tables == 1 + 2 * 2 and page.fetched == []
    assert "<script" not in text and "<script>alert(1)</script>" in page.text
    assert "forward, iteration 0" in page.text and "20.0 MiB occupied" in page.text


def test_a_trace_of_dymems_own_is_replayed(dymem_command, tmp_path, trace):
    from dymem import _core
    from dymem.trace import load

    own = tmp_path / "own.trace"
    [recording] = load(trace)
    _core.trace.write(str(own), recording.events)
    run = dymem_command("plot", own)
    assert run.returncode == 0 and (tmp_path / "own.png").exists()
    assert "no addresses" in run.stderr and "own, dymem" in run.stdout
    assert "--replay" in refused(dymem_command("plot", own, "--allocators", "recorded"))


def test_traces_of_one_name_are_told_apart(dymem_command, tmp_path):
    (tmp_path / "far").mkdir()
    text = snapshot(steps())
    for name in ("a.pickle", "a.pickle.gz", "far/a.pickle", "b.pickle"):
        write(tmp_path / name, text)

    def panels(*names):
        run = dymem_command("plot", *names, "--picture", "peak", "--out", "out.png")
        assert run.returncode == 0, run.stderr
        return [name for name in (f"{label}, as recorded" for label in (
            "a", "b", "a.pickle", "a.pickle.gz", "far/a.pickle")) if f" {name}" in run.stdout]

    assert panels("a.pickle", "b.pickle") == ["a, as recorded", "b, as recorded"]
    assert panels("a.pickle", "a.pickle.gz") == ["a.pickle, as recorded", "a.pickle.gz, as recorded"]
    assert panels("a.pickle", "far/a.pickle") == ["a.pickle, as recorded", "far/a.pickle, as recorded"]


def test_each_device_is_a_panel(dymem_command, tmp_path):
    path = write(tmp_path / "two.pickle", snapshot(steps(), steps(size=MIB)))
    run = dymem_command("plot", path, "--allocators", "recorded,dymem", "--from", "2")
    assert run.returncode == 0, run.stderr
    for name in ("two:0, as recorded", "two:0, dymem", "two:1, as recorded", "two:1, dymem"):
        assert name in run.stdout, name


def test_a_limit_that_is_too_small_is_drawn_up_to_there(dymem_command, tmp_path, trace):
    run = dymem_command("plot", trace, "--replay", "--limit", "12MiB", "--out", tmp_path / "oom.html")
    assert run.returncode == 1 and "out of memory" in run.stdout and (tmp_path / "oom.html").exists(), run.stderr


def test_a_limit_below_the_first_allocation(dymem_command, tmp_path):
    path = write(tmp_path / "bare.pickle", snapshot(History().alloc(0x10, 8 * MIB)))
    assert "not even" in refused(dymem_command("plot", path, "--replay", "--limit", "2MiB"))


@pytest.mark.parametrize("arguments, words", [
    (["--out", "picture.jpeg"], [".png, .svg or .html"]),
    (["--out", "nowhere/a.png"], ["nowhere/a.png cannot be written"]),
    (["--out", "."], [".png, .svg or .html"]),
    (["--picture", "cubist"], ["cubist", "address, bytes, histogram, peak"]),
    (["--picture", "bytes", "--picture", "peak", "--out", "a.png"], ["one picture", ".html"]),
    (["--allocators", "tcmalloc"], ["tcmalloc", "recorded, dymem, dymem_remap, dymem_contiguous"]),
    (["--allocators", ","], ["--allocators names none"]),
    (["--replay", "--allocators", "dymem"], ["one of them"]),
    (["--colour", "taste"], ["taste", "phase, mobility, size, stream"]),
    (["--x", "sideways"], ["sideways", "auto, event, time"]),
    (["--from", "4", "--to", "2"], ["--from 4 lies behind --to 2"]),
    (["--from", "17"], ["no iterations from 17", "0 to 5"]),
    (["--limit", "lots"], ["lots", "20GiB"]),
    (["--lag", "nan"], ["--lag 10"]),
])
def test_refuses(dymem_command, tmp_path, trace, arguments, words):
    error = refused(dymem_command("plot", trace, *arguments))
    assert all(word in error for word in words), error
    assert not list(tmp_path.glob("*.png")) and not list(tmp_path.glob("*.html"))


@pytest.mark.parametrize("content, words", [(None, "no such file"), (b"", "empty"), (b"hello world", "neither"),
                                            ("short", "cut short"), ({"device_traces": [[]]}, "without history"),
                                            (b"DYMEMTRC" + bytes(100), "")])
def test_bad_traces_are_one_sentence(dymem_command, tmp_path, content, words):
    path = tmp_path / "bad.pickle"
    if content == "short":
        path = write(tmp_path / "bad.pickle.xz", snapshot(steps()))
        path.write_bytes(path.read_bytes()[:200])
    elif content is not None:
        write(path, content)
    error = refused(dymem_command("plot", path))
    assert str(path) in error and words in error, error
    assert not list(tmp_path.glob("*.png"))


def test_an_empty_trace_of_dymems_own(dymem_command, tmp_path):
    from dymem import _core

    _core.trace.write(str(tmp_path / "empty.trace"), b"")
    assert "no events" in refused(dymem_command("plot", tmp_path / "empty.trace"))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk(dymem_command, tmp_path, trace):
    (tmp_path / "full.png").symlink_to("/dev/full")
    error = refused(dymem_command("plot", trace, "--out", "full.png"))
    assert "No space left" in error and (tmp_path / "full.png").is_symlink()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_takes_no_files(dymem_command, tmp_path, trace):
    (tmp_path / "locked").mkdir(mode=0o500)
    assert "cannot be written" in refused(dymem_command("plot", trace, "--out", "locked/a.png"))


def test_names_that_are_no_utf8(tmp_path):
    """A file name is bytes: it is read, drawn and written all the same."""
    path = os.fsencode(tmp_path) + b"/run-\xff-\xe4.pickle"
    with open(path, "wb") as file:
        file.write(write(tmp_path / "a.pickle", snapshot(steps())).read_bytes())
    for arguments in ([], [b"--out", b"\xfe.html"], [b"--out", b"\xfe.svg"]):
        run = subprocess.run([os.fsencode(sys.executable), b"-m", b"dymem", b"plot", path, *arguments], cwd=tmp_path,
                             capture_output=True, env={**os.environ, "COLUMNS": "200"})
        assert run.returncode == 0 and b"Written to" in run.stdout and b"\xef\xbf\xbd" in run.stdout, run.stderr
    written = set(os.listdir(os.fsencode(tmp_path)))
    assert {b"run-\xff-\xe4.png", b"\xfe.html", b"\xfe.svg"} <= written
    refused_run = subprocess.run([os.fsencode(sys.executable), b"-m", b"dymem", b"plot", b"\xff.pickle"], cwd=tmp_path,
                                 capture_output=True)
    assert refused_run.returncode == 2 and refused_run.stderr.count(b"\n") == 1


@pytest.mark.parametrize("missing", ["matplotlib", "numpy"])
def test_without_matplotlib_one_line_says_how_to_get_it(python, trace, missing):
    run = python("-c", f"import sys; sys.modules['{missing}'] = None; sys.argv = ['dymem', 'plot', '{trace}']\n"
                 "from dymem.__main__ import main; main()")
    assert "pip install matplotlib numpy" in refused(run)


def test_other_commands_need_no_matplotlib(python, trace):
    run = python("-c", "import sys; sys.modules['matplotlib'] = sys.modules['numpy'] = None\n"
                 f"sys.argv = ['dymem', 'replay', '{trace}']\nfrom dymem.__main__ import main; main()")
    assert run.returncode == 0 and run.stderr == "", run.stderr


def test_no_display_is_needed(dymem_command, tmp_path, trace):
    run = dymem_command("plot", trace, env={"DISPLAY": ":99", "MPLBACKEND": "TkAgg"})
    assert run.returncode == 0 and (tmp_path / "small.run.png").exists(), run.stderr


def test_help_teaches_with_examples(dymem_command):
    run = dymem_command("plot", "--help", env={"COLUMNS": "160"})
    assert run.returncode == 0
    text = re.sub(r"\s+", " ", run.stdout)
    for words in ("dymem plot run.pickle --allocators recorded,dymem", "--from 3 --to 4", ".html", "grey"):
        assert words in text, words
