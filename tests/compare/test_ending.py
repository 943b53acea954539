"""Nothing of a program that was run is left: what it started in sessions of its own, and when this process must end."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from processes import gone

from dymem.compare import ending, script
from dymem.compare.turns import Turns
from dymem.dying import dying_with_this
from dymem.interrupts import Stopped, held, stoppable

SLEEP = "[sys.executable, '-c', 'import time; time.sleep(600)']"
# As torchrun starts ranks; then one whose parent has ended, as daemons do; who they are is in the file.
STARTS = f"""
import os, subprocess, sys, time
pids = [os.getpid(), subprocess.Popen({SLEEP}, start_new_session=True).pid]
again = "import subprocess, sys; print(subprocess.Popen({SLEEP}, start_new_session=True, stdout=-3).pid)"
pids.append(int(subprocess.run([sys.executable, "-c", again], start_new_session=True, stdout=subprocess.PIPE).stdout))
with open("pids.new", "w") as file:
    file.write(" ".join(map(str, pids)))
os.rename("pids.new", "pids")
"""
HANGS = STARTS + "time.sleep(600)\n"


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.setenv("DYMEM_CONF", "driver:emulated")
    monkeypatch.chdir(tmp_path)

    def write(text):
        (tmp_path / "train.py").write_text(text)
        return str(tmp_path / "train.py")

    return write


@pytest.fixture
def pids(tmp_path):
    """Of the processes that were started, as soon as all are."""

    def pids():
        until = time.monotonic() + 120
        while not (tmp_path / "pids").exists():
            assert time.monotonic() < until
            time.sleep(0.01)
        return [int(pid) for pid in (tmp_path / "pids").read_text().split()]

    yield pids
    for pid in pids() if (tmp_path / "pids").exists() else ():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("more", ["", "os.kill(os.getpid(), 9)"], ids=["ends", "dies"])
def test_what_a_script_started_ends_with_it_in_whatever_session(write, pids, more):
    script.run_once([write(STARTS + more)], "native", 300)
    assert all(gone(pid) for pid in pids())


def test_what_a_script_that_hangs_started_ends_with_it(write, pids, monkeypatch):
    def wait(self, timeout=None):
        if timeout is not None:
            pids()
            raise subprocess.TimeoutExpired(self.args, timeout)
        return real(self)

    real = subprocess.Popen.wait
    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    result = script.run_once([write(HANGS)], "native", 300)
    assert "budget of seconds" in result["error"] and all(gone(pid) for pid in pids())


def test_other_children_of_this_process_go_on(write, pids):
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        script.run_once([write(STARTS)], "native", 300)
        assert all(gone(pid) for pid in pids()) and other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_where_nobody_can_be_adopted_the_group_is_ended(write, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError("no such library")

    monkeypatch.setattr(ending.ctypes, "CDLL", refuse)
    text = f"import subprocess, sys\nprint(subprocess.Popen({SLEEP}).pid, file=open('pid', 'w'))"
    assert "without importing torch" in script.run_once([write(text)], "native", 300)["error"]
    assert gone(int((tmp_path / "pid").read_text()))


@pytest.mark.torch
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT], ids=lambda number: number.name)
def test_a_comparison_that_is_told_to_end_leaves_nothing(write, pids, tmp_path, monkeypatch, number):
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    command = subprocess.Popen([sys.executable, "-m", "dymem", "compare", "--allocators", "native", write(HANGS)],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
                               preexec_fn=lambda: signal.signal(number, signal.SIG_DFL))  # else perhaps ignored
    started = pids()
    os.kill(command.pid, number)
    told, said = command.communicate(timeout=120)
    assert command.returncode == 128 + number and said == "dymem: stopped.\n" and told == ""
    assert all(gone(pid) for pid in started) and os.listdir(tmp_path / "scratch") == []


def test_a_script_dies_with_who_runs_it(write, pids):
    path = write(HANGS)
    text = f"from dymem.compare import script; script.run_once([{path!r}], 'native', 600)"
    runner = subprocess.Popen([sys.executable, "-c", text])
    first, *_ = pids()
    runner.kill()
    runner.wait()
    assert gone(first)


def test_a_script_is_not_begun_where_who_runs_it_has_gone(tmp_path):
    command = dying_with_this([sys.executable, "-c", f"open({str(tmp_path / 'ran')!r}, 'w')"])
    assert subprocess.run(command).returncode == 0 and (tmp_path / "ran").exists()
    (tmp_path / "ran").unlink()
    stranger = [str(os.getppid()) if word == str(os.getpid()) else word for word in command]
    assert subprocess.run(stranger).returncode == 1 and not (tmp_path / "ran").exists()


@pytest.mark.parametrize("number, raised", [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Stopped)])
def test_a_signal_that_is_held_is_met_at_the_end_of_the_block(number, raised, monkeypatch):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    reached = []
    try:
        with stoppable():
            with pytest.raises(raised):
                with held():
                    signal.raise_signal(number)
                    reached.append(1)
                reached.append(2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert reached == [1]


def test_signals_are_as_they_were_and_ignored_ones_stay_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN), signal.getsignal(signal.SIGTERM)
    try:
        with stoppable():
            with held():
                signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before[0])
    assert signal.getsignal(signal.SIGTERM) is before[1]


# --- turns

HOLDS = """
import subprocess, sys, time
held = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(90); open('ended', 'w')"],
                        start_new_session={own})
print(held.pid, file=open("pid", "w"), flush=True)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("own", [False, True], ids=["group", "session"])
def test_turns_that_are_cut_off_wait_for_nobody_who_holds_the_pipe(tmp_path, monkeypatch, own):
    monkeypatch.chdir(tmp_path)
    with Turns([sys.executable, "-c", HOLDS.format(own=own)], seconds=300) as turns:
        assert turns.ready()
        turns._cut_off()
        assert "cut off" in turns.result()["error"] and not (tmp_path / "ended").exists()
    assert gone(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize("own", [False, True], ids=["group", "session"])
def test_the_end_of_the_block_ends_what_takes_turns(tmp_path, monkeypatch, own):
    monkeypatch.chdir(tmp_path)
    with Turns([sys.executable, "-c", HOLDS.format(own=own)], seconds=300) as turns:
        assert turns.ready()
    assert gone(int((tmp_path / "pid").read_text())) and not (tmp_path / "ended").exists()
