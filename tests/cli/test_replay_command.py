"""`dymem replay` as a user runs it: the JSON, the exit codes, and one sentence for whatever is wrong."""

import gzip
import json
import lzma
import os
import pickle
import struct
import subprocess

import pytest
from snapshots import MIB, History, snapshot, steps, write

SCHEMA = {
    "name": str, "events": int, "live_peak_bytes": int, "occupied_peak_bytes": int, "reserved_peak_bytes": int,
    "overhead": float, "native_reserved_peak_bytes": (int, type(None)), "driver_calls": int, "driver_calls_warm": int,
    "driver_time_warm_us": (int, float), "trace_time_warm_us": (int, float), "views_max": int, "va_peak_bytes": int,
    "oom": (dict, type(None)), "malloc_ns_median": (int, float), "malloc_ns_p99": (int, float),
    "free_ns_median": (int, float), "free_ns_p99": (int, float), "lag_ms": (int, float),
    "unusable_free": dict, "needed_by_iteration": dict, "placement": str,
}


@pytest.fixture
def trace(tmp_path):
    return write(tmp_path / "small.run.pickle.xz", snapshot(steps()))


def replay(dymem_command, tmp_path, *arguments):
    target = tmp_path / "out.json"
    run = dymem_command("replay", *arguments, "--json", target)
    return run, json.loads(target.read_text())["traces"] if target.exists() else None


def refused(run):
    """Exit code 2, nothing on stdout, one sentence on stderr."""
    assert run.returncode == 2, (run.returncode, run.stderr)
    assert run.stdout == ""
    assert run.stderr.startswith("dymem: ") and run.stderr.count("\n") == 1, run.stderr
    return run.stderr


def test_json_has_every_figure(dymem_command, tmp_path, trace):
    run, traces = replay(dymem_command, tmp_path, trace)
    assert run.returncode == 0, run.stderr
    [result] = traces
    for key, kind in SCHEMA.items():
        assert isinstance(result[key], kind) and not isinstance(result[key], bool), (key, result[key])
    assert result["name"] == "small.run" and result["oom"] is None and result["lag_ms"] == 10
    assert result["events"] == 2 + 6 * 4
    assert result["live_peak_bytes"] == result["occupied_peak_bytes"] == 20 * MIB
    assert result["native_reserved_peak_bytes"] == 32 * MIB
    assert result["reserved_peak_bytes"] >= 20 * MIB
    assert result["overhead"] == pytest.approx(result["reserved_peak_bytes"] / (20 * MIB) - 1)
    assert result["driver_calls"] > 0 and result["driver_calls_warm"] == 0
    assert result["trace_time_warm_us"] == 17  # three warm iterations of six entries each, from first to last event
    assert "small.run" in run.stdout and "20.0 MiB" in run.stdout


def test_without_segment_events_native_is_null(dymem_command, tmp_path):
    path = write(tmp_path / "bare.pickle", snapshot(History().alloc(0x10, MIB)))
    run, [result] = replay(dymem_command, tmp_path, path)
    assert run.returncode == 0 and result["native_reserved_peak_bytes"] is None


def test_too_small_a_limit_is_exit_code_1_and_the_json_is_there(dymem_command, tmp_path, trace):
    run, [result] = replay(dymem_command, tmp_path, trace, "--limit", "12MiB")
    assert run.returncode == 1, run.stderr
    assert result["limit_bytes"] == 12 * MIB
    assert result["oom"]["requested_bytes"] == 8 * MIB and isinstance(result["oom"]["event"], int)
    assert result["live_peak_bytes"] == 20 * MIB  # of the whole trace, though the replay stopped
    assert "does not fit" in run.stderr


@pytest.mark.parametrize("limit, bytes_", [("1GiB", 1 << 30), ("1073741824", 1 << 30), ("2x", 40 * MIB),
                                           ("1.5X", 30 * MIB), ("2.x", 40 * MIB), ("64 mib", 64 * MIB)])
def test_limits(dymem_command, tmp_path, trace, limit, bytes_):
    run, [result] = replay(dymem_command, tmp_path, trace, "--limit", limit)
    assert run.returncode == 0, run.stderr
    assert result["limit_bytes"] == bytes_ and result["reserved_peak_bytes"] <= bytes_


def test_lag_and_alias_are_in_the_json(dymem_command, tmp_path, trace):
    run, [result] = replay(dymem_command, tmp_path, trace, "--lag", "2.5", "--alias", "off")
    assert run.returncode == 0, run.stderr
    assert result["lag_ms"] == 2.5 and result["alias"] is False


def test_several_traces_in_the_order_given(dymem_command, tmp_path, trace):
    other = write(tmp_path / "a.pickle.gz", snapshot(steps(2)))
    run, traces = replay(dymem_command, tmp_path, trace, other)
    assert run.returncode == 0 and [t["name"] for t in traces] == ["small.run", "a"]


def test_a_bad_file_among_good_ones_loses_nothing(dymem_command, tmp_path, trace):
    run, traces = replay(dymem_command, tmp_path, tmp_path / "missing.pickle", trace)
    assert run.returncode == 2 and [t["name"] for t in traces] == ["small.run"]
    assert "missing.pickle" in run.stderr and run.stderr.count("\n") == 1


def test_same_input_same_figures(dymem_command, tmp_path, traces):
    figures = []
    for _ in range(2):
        run, [result] = replay(dymem_command, tmp_path, traces / "vgg16_b128.pickle.xz")
        assert run.returncode == 0, run.stderr
        figures.append({key: value for key, value in result.items() if not key.endswith(("_median", "_p99"))})
    assert figures[0] == figures[1]


def test_frees_from_before_the_recording_are_said(dymem_command, tmp_path):
    path = write(tmp_path / "late.pickle", snapshot(History().free(0x99, 512).alloc(0x10, 512)))
    run, [result] = replay(dymem_command, tmp_path, path)
    assert run.returncode == 0 and result["ignored_frees"] == 1 and "1 frees" in run.stderr


# --- bad input


def test_missing_file(dymem_command, tmp_path):
    assert "no such file" in refused(dymem_command("replay", tmp_path / "none.pickle"))


def test_folder(dymem_command, tmp_path):
    assert "folder" in refused(dymem_command("replay", tmp_path))


def test_empty_file(dymem_command, tmp_path):
    assert "empty" in refused(dymem_command("replay", write(tmp_path / "x.pickle", b"")))


@pytest.mark.parametrize("pack, suffix", [(bytes, ""), (lzma.compress, ".xz"), (gzip.compress, ".gz")])
def test_truncated(dymem_command, tmp_path, pack, suffix):
    data = pack(pickle.dumps(snapshot(steps())))
    path = tmp_path / f"x.pickle{suffix}"
    path.write_bytes(data[:len(data) // 2])
    assert "cut short" in refused(dymem_command("replay", path))


def test_truncated_own_trace(dymem_command, tmp_path):
    from dymem import _core
    from dymem.trace import load

    _core.trace.write(str(tmp_path / "x"), bytes(load(write(tmp_path / "y.pickle", snapshot(steps())))[0].events))
    (tmp_path / "x.dymem").write_bytes((tmp_path / "x").read_bytes()[:-7])
    refused(dymem_command("replay", tmp_path / "x.dymem"))


@pytest.mark.parametrize("pack", [bytes, lzma.compress, gzip.compress])
def test_own_traces_whose_names_are_no_text(dymem_command, tmp_path, pack):
    """They are read, and told of when they are damaged; what was unpacked on the way leaves nothing."""
    (tmp_path / "tmp").mkdir()
    from dymem import _core

    _core.trace.write(str(tmp_path / "t.dymem"), struct.pack("<qQQQBBHi", 0, 0, MIB, 0, 0, 0, 0, -1))
    whole = (tmp_path / "t.dymem").read_bytes()
    good, bad = (os.fsencode(tmp_path) + name for name in (b"/g_\xff.dymem", b"/b_\xff.dymem"))
    for name, content in ((good, whole), (bad, whole[:-1])):
        with open(name, "wb") as file:
            file.write(pack(content))
    environment = {"TMPDIR": str(tmp_path / "tmp")}
    run = dymem_command("replay", os.fsdecode(good), env=environment)
    assert run.returncode == 0 and "g_?" in run.stdout, run.stderr
    assert "is truncated" in refused(dymem_command("replay", os.fsdecode(bad), env=environment))
    assert os.listdir(tmp_path / "tmp") == []


def test_no_room_to_unpack(python, tmp_path):
    """Nowhere, and not enough of it."""
    from dymem import _core

    _core.trace.write(str(tmp_path / "t.dymem"), bytes(40 * 100))
    (tmp_path / "t.dymem.xz").write_bytes(lzma.compress((tmp_path / "t.dymem").read_bytes()))
    for most in (0, 1000):
        run = python("-c", "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
                     f"resource.setrlimit(resource.RLIMIT_FSIZE, ({most}, {most}))\n"
                     f"sys.argv = ['dymem', 'replay', {str(tmp_path / 't.dymem.xz')!r}]\n"
                     "from dymem.__main__ import main; main()")
        assert "TMPDIR" in refused(run)


def test_what_cannot_be_read_twice(dymem_command, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "write it to a file first" in refused(dymem_command("replay", tmp_path / "pipe"))
    assert "write it to a file first" in refused(dymem_command("replay", "/dev/null"))


def test_a_file_named_by_its_descriptor(trace):
    """As /dev/stdin is: the process that reads snapshots has descriptors of its own."""
    from dymem.trace.load import load

    with open(trace, "rb") as file:
        (recording,) = load(f"/proc/self/fd/{file.fileno()}")
    assert recording.events == load(trace)[0].events


def test_a_recording_is_not_written_over(dymem_command, tmp_path, trace):
    before = trace.read_bytes()
    (tmp_path / "link").symlink_to(trace)
    for name in (trace, tmp_path / "link", trace.name):
        assert "is what is read" in refused(dymem_command("replay", trace, "--json", name))
    assert trace.read_bytes() == before


def test_stopped_while_it_starts(python):
    """Ctrl-C before any command runs: as the commands themselves say it."""
    run = python("-c", "import sys\nclass Stop:\n"
                 "    def find_spec(self, name, *_):\n"
                 "        if name == 'dymem.cli.plot': raise KeyboardInterrupt\n"
                 "sys.meta_path.insert(0, Stop()); sys.argv = ['dymem', 'doctor']\n"
                 "from dymem.__main__ import main; main()")
    assert (run.returncode, run.stdout, run.stderr) == (130, "", "dymem: stopped.\n")


def test_foreign_file(dymem_command, tmp_path):
    path = tmp_path / "picture.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(1000))
    assert "neither a PyTorch snapshot nor a trace of dymem" in refused(dymem_command("replay", path))


def test_snapshot_without_history(dymem_command, tmp_path):
    said = refused(dymem_command("replay", write(tmp_path / "x.pickle", snapshot([], []))))
    assert "without history" in said and "_record_memory_history" in said


class Touch:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_malicious_pickle_touches_nothing(dymem_command, tmp_path):
    victim = tmp_path / "touched"
    path = write(tmp_path / "x.pickle.xz", {"device_traces": [[Touch(victim)]]})
    assert "not plain data" in refused(dymem_command("replay", path))
    assert not victim.exists()


@pytest.mark.parametrize("arguments", [
    ["--limit", "lots"], ["--limit", "-1"], ["--limit", "0"], ["--limit", "0x"], ["--limit", "x"], ["--limit", "1.5"],
    ["--lag", "-1"], ["--lag", "nan"], ["--alias", "maybe"], ["--backing", "paper"], ["--grow-ratio", "-1"],
    ["--audit", "-1"], ["--json", "/nonexistent/folder/x.json"],
])
def test_bad_options(dymem_command, trace, arguments):
    refused(dymem_command("replay", trace, *arguments))


def test_bad_options_of_the_parser_itself(dymem_command, trace):
    for arguments in (["--lag", "soon"], ["--nosuch", "1"]):
        run = dymem_command("replay", trace, *arguments)
        assert run.returncode == 2 and run.stdout == "" and arguments[0] in run.stderr


@pytest.mark.parametrize("limit", ["9" * 5000, "9" * 5000 + "x", "9" * 400 + ".5GiB", "1001x"])
def test_absurd_limits(dymem_command, trace, limit):
    assert len(refused(dymem_command("replay", trace, "--limit", limit))) < 200


def test_json_through_a_link_or_pipe_leaves_them_there(dymem_command, tmp_path, trace):
    """A rename would put a file in the place of the link; of /dev/stdout too."""
    (tmp_path / "link.json").symlink_to("real.json")
    assert dymem_command("replay", trace, "--json", tmp_path / "link.json").returncode == 0
    assert (tmp_path / "link.json").is_symlink() and "traces" in json.loads((tmp_path / "real.json").read_text())
    os.mkfifo(tmp_path / "pipe")
    reader = subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE)
    assert dymem_command("replay", trace, "--json", tmp_path / "pipe").returncode == 0
    assert "traces" in json.loads(reader.communicate(timeout=60)[0])
    assert (tmp_path / "pipe").is_fifo() and not list(tmp_path.glob(".dymem-*"))


def test_names_no_file_can_have(dymem_command, trace):
    refused(dymem_command("replay", "x" * 300))
    run = dymem_command("replay", trace, "--json", "x" * 300)
    assert run.returncode == 2 and run.stderr.count("\n") == 1


def test_a_trace_cut_short_by_its_limit_has_no_overhead_in_the_table(dymem_command, trace):
    run = dymem_command("replay", trace, "--limit", "0.5x")
    assert run.returncode == 1 and "-100.0 %" not in run.stdout and "(-" not in run.stdout


def test_brackets_in_a_name_are_shown(dymem_command, tmp_path, trace):
    trace.rename(tmp_path / "a[bold]b[0].pickle.xz")
    run = dymem_command("replay", "a[bold]b[0].pickle.xz")
    assert run.returncode == 0 and "a[bold]b[0]" in run.stdout


def test_a_terminal_that_knows_no_unicode(dymem_command, tmp_path, trace):
    name = os.fsencode(tmp_path) + b"/n\xff.pickle.xz"
    os.rename(trace, name)
    for encoding in ("ascii:strict", "utf-8:strict"):
        for arguments in (["--help"], ["replay", "--help"], ["replay", os.fsdecode(name)]):
            run = dymem_command(*arguments, env={"PYTHONIOENCODING": encoding})
            assert run.returncode == 0, run.stderr


def test_mobility_with_hindsight(dymem_command, tmp_path, trace):
    run, traces = replay(dymem_command, tmp_path, trace, "--mobility", "hindsight", "--backing", "contiguous")
    assert run.returncode == 0 and traces[0]["reserved_peak_bytes"] == 20 * MIB, run.stderr
    unmarked = write(tmp_path / "unmarked.pickle", snapshot(History().alloc(0x10, MIB)))
    assert "no marks of iterations" in refused(dymem_command("replay", unmarked, "--mobility", "hindsight"))
    assert "recorded and hindsight" in refused(dymem_command("replay", trace, "--mobility", "oracle"))
