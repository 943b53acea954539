"""Streams that are full, closed or left by their reader; files that cannot be written: no result is lost, no traceback."""

import json
import os
import signal
import subprocess
import sys

import pytest

from dymem.cli.tables import oom_sentence
from dymem.errors import TraceError
from dymem.trace import child

KMEANS = "kmeans.pickle.xz"
COMMANDS = [("--help",), ("--version",), ("run", "--help"), ("doctor",), ("stress", "split_hole"), ("replay", "{kmeans}"),
            ("compare", "--recordings", "--only", "kmeans")]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_full_stdout_is_one_sentence_and_exit_code_2(start, command):
    with open("/dev/full", "w") as full:
        process = start(*command, stdout=full)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 2 and said == "dymem: stdout cannot be written: No space left on device.\n"


@pytest.mark.parametrize("command", [command for command in COMMANDS if not command[-1].startswith("--")], ids=" ".join)
def test_a_reader_that_has_gone_costs_no_result(start, command, tmp_path):
    process = start(*command, "--json", "out.json")
    process.stdout.close()
    said = process.stderr.read()
    assert process.wait(120) == 141 and said == ""
    assert json.loads((tmp_path / "out.json").read_text())["dymem"]


@pytest.mark.parametrize("stream", ["full", "closed"])
def test_complaints_that_nobody_hears_change_no_exit_code(start, stream):
    with open("/dev/full", "w") as full:
        told = {"stderr": full} if stream == "full" else {"preexec_fn": lambda: os.close(2)}
        process = start("replay", "nothere", **told)
        process.communicate(timeout=60)
    assert process.returncode == 2


def test_commands_run_with_their_streams_closed(start, tmp_path):
    process = start("stress", "split_hole", "--json", "out.json", preexec_fn=lambda: (os.close(1), os.close(2)))
    process.communicate(timeout=60)
    assert process.returncode == 0 and (tmp_path / "out.json").exists()


@pytest.mark.torch
def test_a_script_is_run_with_its_stdout_closed_as_python_runs_it(start, tmp_path):
    (tmp_path / "script.py").write_text("import os, sys; open('ran', 'w').write(str(sys.stdout))")
    process = start("run", "script.py", preexec_fn=lambda: os.close(1))
    assert process.wait(60) == 0 and (tmp_path / "ran").read_text() == "None"


# --- files


@pytest.mark.parametrize("command", [("compare", "--recordings", "--only", "kmeans", "--html"),
                                     ("stress", "split_hole", "--picture")], ids=["compare", "stress"])
def test_a_page_or_picture_that_cannot_be_written_costs_neither_json_nor_table(start, tmp_path, command):
    pytest.importorskip("matplotlib")
    target = tmp_path / "full.png"
    target.symlink_to("/dev/full")
    process = start(*command, target.name, "--json", "out.json")
    told, said = process.communicate(timeout=120)
    assert process.returncode == 2 and "No space left" in said and "Traceback" not in said
    assert json.loads((tmp_path / "out.json").read_text()) and ("kmeans" in told or "split_hole" in told)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full.png", "out.json"]


def test_a_file_that_could_not_be_written_is_said_though_nobody_reads_the_table(start, tmp_path):
    (tmp_path / "full.json").symlink_to("/dev/full")
    process = start("replay", "{kmeans}", "--json", "full.json")
    process.stdout.close()
    said = process.stderr.read()
    assert process.wait(120) == 2 and "full.json cannot be written" in said


@pytest.mark.parametrize("refused", ["BaseContext.Pipe", "SpawnProcess.start", "SpawnProcess._Popen"])
def test_an_error_of_the_system_is_not_taken_for_stdouts(python, refused):
    run = python("-c", "import multiprocessing.context as c\n"
                 "def refuse(*_, **__): raise OSError(28, 'No space left on device')\n"
                 f"c.{refused} = refuse\n"
                 "import sys; sys.argv = ['dymem', 'compare', '--recordings', '--only', 'kmeans']\n"
                 "from dymem.__main__ import main; main()")
    assert run.returncode == 2 and run.stderr == "dymem: the system refused something: No space left on device.\n"


def test_markdown_is_a_line_for_each_row_however_narrow_the_screen(start):
    for command in (("compare", "--recordings", "--only", "kmeans"), ("stress", "--list"), ("stress", "comb")):
        process = start(*command, "--markdown", env={"COLUMNS": "40"})
        told, _ = process.communicate(timeout=120)
        lines = told.splitlines()
        assert all(line.startswith("| ") or set(line) <= set("|-") for line in lines), told
        assert len({line.count("|") for line in lines}) == 1 and set(lines[1]) == set("|-"), told


def test_a_table_in_a_pipe_is_as_wide_as_it_needs(start, traces):
    process = start("replay", traces / "resnet32_nobn_cifar_b100.pickle.xz", "--limit", "1.1x", env={"COLUMNS": ""})
    told, _ = process.communicate(timeout=120)
    assert "390.0 MiB (+52.4 %)" in told and process.returncode == 0


# --- names that mean what they say


@pytest.mark.parametrize("conf", ["backing:contiguous", "alias:off"])
def test_columns_of_stress_are_what_they_are_called(start, tmp_path, conf):
    process = start("stress", "checkerboard", "--json", "out.json", env={"DYMEM_CONF": conf})
    process.communicate(timeout=120)
    (row,) = json.loads((tmp_path / "out.json").read_text())["patterns"]
    at_limit = {name: survival["at_limit"] for name, survival in row["settings"].items()}
    assert row["settings"]["vmm"]["ratio"] < 1.1 and at_limit["vmm"]["alias"] is True
    assert at_limit["alias=off"]["alias"] is False and at_limit["alias=off"]["driver_calls"] > 0
    assert row["settings"]["contiguous"]["ratio"] > 1.4 and at_limit["contiguous"]["backing"] == "contiguous"


def test_without_a_limit_nothing_is_said_of_one():
    oom = dict.fromkeys(("event", "requested_bytes", "live_bytes", "pending_bytes", "reserved_bytes"), 1 << 45)
    result = {"name": "big", "events": 2, "occupied_peak_bytes": 1 << 45, "oom": oom, "limit_bytes": None}
    assert "does not fit on the emulated device" in oom_sentence(result)
    assert "does not fit into 1.00 GiB" in oom_sentence({**result, "limit_bytes": 1 << 30})


# --- killed


def test_a_reader_that_the_host_killed_says_nothing_of_the_file(traces, monkeypatch):
    killed = subprocess.CompletedProcess([], -signal.SIGKILL, b"", b"")
    monkeypatch.setattr(child.subprocess, "run", lambda *_, **__: killed)
    with pytest.raises(TraceError, match="short of memory") as raised:
        child.read_apart(traces / KMEANS)
    assert "damaged" not in str(raised.value)
