"""Recordings replayed in workers: what is killed or interrupted costs no other recording, and at most a try."""

import contextlib
import json
import os
import signal
import time

import pytest

from processes import gone, workers_of

NAMES = ("vgg16_b128", "unet_b16", "llama_accum", "bert_varlen")


def only(*names):
    return [word for name in names for word in ("--only", name)]


@pytest.mark.parametrize("delay, killed", [(0, 1), (0.1, 1), (0.3, 1), (0.5, 1), (0.2, 2)])
def test_workers_that_are_killed_cost_nothing(start, tmp_path, delay, killed):
    """At whatever moment, also while the next one is being started."""
    process = start("compare", "--recordings", *only(*NAMES), "--json", "out.json")
    assert workers_of(process)
    time.sleep(delay)
    for worker in workers_of(process)[:killed]:  # none where the machine was faster than that
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    content = json.loads((tmp_path / "out.json").read_text())
    assert len(content["traces"]) == len(NAMES) and content["errors"] == []


def test_ctrl_c_ends_a_comparison_and_its_workers(start):
    process = start("compare", "--recordings", *only(*NAMES), start_new_session=True,
                    preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))  # ignored where tests run behind
    workers = workers_of(process)
    assert workers
    os.killpg(process.pid, signal.SIGINT)
    told, said = process.communicate(timeout=120)
    assert process.returncode == 130 and said == "dymem: stopped.\n" and told == ""
    assert all(gone(pid) for pid in workers)


# --- one after the other, with workers that do as a test says

PLAYED = """
import os, signal, struct, sys, time
from pathlib import Path
from subprocess import CompletedProcess
from dymem.cli import replay_workers as workers
from dymem.trace import child
real, asked = workers._serve, workers._replay_file

def serve(link, *settings):
    {serve}
    real(link, *settings)

def replayed(*names):
    told = []
    def tell(name, rows, error=""):
        told.append((name, rows and len(rows), error))
        {tell}
    workers._serve = serve
    os.sched_getaffinity = lambda _: {{0}}
    workers.replay_apart({{name: Path(sys.argv[1]) / (name + ".pickle.xz") for name in names}}, 10.0, {{}}, tell)
    return told

if __name__ == "__main__":
    import multiprocessing
    for line in replayed("unet_b16", "kmeans"):
        print(line)
"""
BOTH = "('unet_b16', 1, '')\n('kmeans', 1, '')\n"


@pytest.fixture
def played(python, traces, tmp_path):
    """Two recordings in one worker at a time. `serve` is what each worker does first, `tell` follows each answer."""

    def played(serve="pass", tell="pass"):
        (tmp_path / "played.py").write_text(PLAYED.format(serve=serve, tell=tell))
        return python("played.py", traces, timeout=120)

    return played


def test_a_worker_that_is_killed_while_idle_is_replaced(played):
    run = played(tell="[process] = multiprocessing.active_children(); os.kill(process.pid, 9); process.join()")
    assert run.stdout == BOTH and run.stderr == "", run.stderr


def test_a_worker_that_is_killed_as_it_is_asked_costs_a_try(played):
    """What it was given it has not read: the pipe breaks in another way."""
    run = played(serve="os.path.exists('asked') or (open('asked', 'w'), time.sleep(1), os.kill(os.getpid(), 9))")
    assert sorted(run.stdout.splitlines()) == sorted(BOTH.splitlines()) and run.stderr == "", run.stderr


def test_a_worker_that_dies_in_the_midst_of_its_answer_costs_a_try(played, tmp_path):
    run = played(serve="os.path.exists('half') or (link.recv(), open('half', 'w'), "
                 "os.write(link.fileno(), struct.pack('!i', 1000) + b'half'), os.kill(os.getpid(), 9))")
    assert (tmp_path / "half").exists() and run.stderr == "", run.stderr
    assert sorted(run.stdout.splitlines()) == sorted(BOTH.splitlines())


def test_a_recording_whose_workers_all_die_is_told_once(played):
    run = played(serve="os.kill(os.getpid(), 9)")
    told = run.stdout.splitlines()
    assert len(told) == 2 and all("None, 'the process that replayed it died; `dymem" in line for line in told), run


KILLED = "CompletedProcess([], -9, b'', b'')"


def test_a_recording_whose_reader_was_killed_is_replayed_once_more(played, tmp_path):
    run = played(serve="os.path.exists('read') or (open('read', 'w'), "
                 f"setattr(child.subprocess, 'run', lambda *_, **__: {KILLED}))")
    assert (tmp_path / "read").exists() and run.stderr == "", run.stderr
    assert sorted(run.stdout.splitlines()) == sorted(BOTH.splitlines())


def test_a_recording_whose_readers_are_all_killed_says_so_once(played):
    run = played(serve=f"child.subprocess.run = lambda *_, **__: {KILLED}")
    told = run.stdout.splitlines()
    assert len(told) == 2 and all("None, " in line and "its reader was killed" in line for line in told), run


@pytest.mark.parametrize("raised, words", [("ValueError('not ours')", ["ValueError: not ours", "RemoteTraceback"]),
                                           ("type('Local', (Exception,), {})('lost')", ["PicklingError", "Local"]),
                                           ("SystemExit('left')", ["left"])])
def test_an_error_that_is_not_dymems_reaches_the_user(played, raised, words):
    run = played(serve=f"workers._replay_file = lambda *_: (_ for _ in ()).throw({raised})")
    assert run.returncode == 1 and all(word in run.stderr for word in words), run.stderr
