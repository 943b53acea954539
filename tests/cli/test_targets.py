"""Where results go: a target that cannot be written is refused before the work, with the reason; asking leaves no trace."""

import os

import pytest

from dymem.errors import InvalidArgument, TraceError
from dymem.trace import load
from dymem.writing import check_apart, check_folder, check_writable, make_folder, write_bytes
from snapshots import snapshot, steps, write


def refusal(call, *arguments):
    with pytest.raises(InvalidArgument) as raised:
        call(*arguments)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_asking_changes_nothing(tmp_path):
    old = tmp_path / "old.json"
    old.write_text("kept")
    stamp = old.stat().st_mtime_ns
    for path in (old, tmp_path / "new.json", None):
        check_writable(path)
    assert os.listdir(tmp_path) == ["old.json"] and old.read_text() == "kept" and old.stat().st_mtime_ns == stamp


def test_a_folder_is_called_a_folder(tmp_path):
    assert refusal(check_writable, tmp_path) == f"{tmp_path} is a folder; name a file in it."


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    assert "is no folder; --pictures names a folder" in refusal(check_folder, tmp_path / "file", "--pictures")
    assert "Not a directory" in refusal(check_folder, tmp_path / "file" / "below", "--pictures")


def test_asking_for_a_folder_leaves_none_and_takes_none_away(tmp_path):
    check_folder(tmp_path / "a" / "b", "--pictures")
    assert os.listdir(tmp_path) == []
    (tmp_path / "a").mkdir()
    check_folder(tmp_path / "a" / "b", "--pictures")
    check_folder(tmp_path / "a", "--pictures")
    assert os.listdir(tmp_path) == ["a"] and os.listdir(tmp_path / "a") == []
    make_folder(tmp_path / "a" / "b", "--pictures")
    assert (tmp_path / "a" / "b").is_dir()


@pytest.mark.parametrize("hidden, more, words", [("matplotlib", [], "pictures need matplotlib"),
                                                 ("nothing", ["--only", "nosuch"], "there is no 'nosuch'")])
def test_a_command_that_does_not_begin_leaves_no_folder(python, tmp_path, hidden, more, words):
    if hidden == "nothing":
        pytest.importorskip("matplotlib")
    run = python("-c", f"import sys; sys.modules[{hidden!r}] = None\n"
                 f"sys.argv = {['dymem', 'compare', '--recordings', '--pictures', 'new/folder', *more]}\n"
                 "from dymem.__main__ import main; main()")
    assert run.returncode == 2 and words in run.stderr and os.listdir(tmp_path) == []


@pytest.mark.parametrize("name, words", [("/proc/x.json", "cannot be written"), ("nowhere/x.json", "there is no folder"),
                                         ("x" * 300, "too long"), ("null\0byte", "no file can have that name"),
                                         ("half\ud800", "no file can have that name")])
def test_what_permissions_do_not_tell(tmp_path, name, words):
    """Not even root makes a file there; writing says what asking said."""
    assert words in refusal(check_writable, tmp_path / name)
    assert words in refusal(write_bytes, tmp_path / name, b"data") and os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["null\0byte", "half\ud800"])
def test_a_trace_of_a_name_that_no_file_can_have(name):
    with pytest.raises(TraceError, match="no file can have that name"):
        load(name)


@pytest.mark.skipif(not os.path.exists("/proc/self"), reason="no /proc")
def test_a_folder_that_takes_no_files():
    assert "cannot be a folder of files" in refusal(check_folder, "/proc/self", "--pictures")


def test_links_and_pipes_are_not_followed_or_waited_for(tmp_path):
    (tmp_path / "link").symlink_to("real")
    os.mkfifo(tmp_path / "pipe")
    check_writable(tmp_path / "link")
    check_writable(tmp_path / "pipe")
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe"]


def test_a_file_for_each_result(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    check_apart([one, None, other], [tmp_path / "read"])
    assert "two results" in refusal(check_apart, [one, tmp_path / "x" / ".." / "one"])
    one.write_text("")
    os.link(one, other)
    assert "two results" in refusal(check_apart, [one, other])
    assert "what is read" in refusal(check_apart, [one], [other])


def test_a_write_that_fails_leaves_nothing(tmp_path):
    refusal(write_bytes, tmp_path / "nowhere" / "x", b"data")
    (tmp_path / "full").symlink_to("/dev/full")
    assert "No space left" in refusal(write_bytes, tmp_path / "full", b"data")
    assert os.listdir(tmp_path) == ["full"]


@pytest.mark.parametrize("command", [["replay", "TRACE", "--json", "BAD"], ["plot", "TRACE", "--out", "BAD.png"],
                                     ["compare", "--recordings", "--html", "BAD"], ["compare", "--recordings", "--json", "BAD"],
                                     ["compare", "--recordings", "--pictures", "BAD"], ["doctor", "--json", "BAD"],
                                     ["stress", "--driver", "emulated", "--json", "BAD"],
                                     ["stress", "--driver", "emulated", "--picture", "BAD.png"]])
def test_every_command_asks_before_it_works(python, tmp_path, command):
    """In a process where nothing can be replayed: what comes to the replay fails with another sentence."""
    trace = write(tmp_path / "run.pickle", snapshot(steps()))
    words = [word.replace("TRACE", str(trace)).replace("BAD", "/proc/bad") for word in command]
    code = ("import sys, dymem.replaying as r, dymem.trace as t\n"
            "def never(*a, **k): raise AssertionError('it worked first')\n"
            "r.replay_recording = t.load = never\n"
            f"sys.argv = {['dymem', *words]!r}\nfrom dymem.__main__ import main; main()")
    run = python("-c", code)
    assert run.returncode == 2 and "/proc/bad" in run.stderr and run.stderr.count("\n") == 1, run.stderr


@pytest.mark.parametrize("command", [["compare", "--recordings", "--json", "same", "--html", "./same"],
                                     ["stress", "--driver", "emulated", "--json", "same.png", "--picture", "same.png"],
                                     ["plot", "same.png", "--out", "same.png"]])
def test_two_results_in_one_file(dymem_command, tmp_path, command):
    if command[0] == "plot":
        write(tmp_path / "same.png", snapshot(steps()))
    run = dymem_command(*command)
    assert run.returncode == 2 and "name " in run.stderr and run.stderr.count("\n") == 1, run.stderr
    assert len(os.listdir(tmp_path)) == (command[0] == "plot")


@pytest.mark.parametrize("missing", ["matplotlib", "numpy"])
def test_a_missing_trace_is_told_before_a_missing_package(python, missing):
    run = python("-c", f"import sys; sys.modules['{missing}'] = None; sys.argv = ['dymem', 'plot', 'missing.pickle']\n"
                 "from dymem.__main__ import main; main()")
    assert run.returncode == 2 and run.stderr == "dymem: missing.pickle: there is no such file.\n"


def test_a_page_without_pictures_says_why(python, tmp_path):
    run = python("-c", "import sys; sys.modules['matplotlib'] = None\n"
                 "sys.argv = 'dymem compare --recordings --only kmeans --html out.html'.split()\n"
                 "from dymem.__main__ import main; main()")
    assert run.returncode == 0 and "pip install matplotlib numpy" in run.stderr
    assert "pip install matplotlib numpy" in (tmp_path / "out.html").read_text()
