"""Patterns run by worker processes: the limit found, what crashes cost, the budget; over machines without a card."""

import json
import sys
import time
from types import SimpleNamespace

import pytest
from machines import FakeDevice, MIB, ROUND

from dymem.cli.stress_tables import card_stress_notes, card_stress_words, card_time_table
from dymem.stress import PATTERNS, bisect
from dymem.stress import on_workers
from dymem.stress.execute import READ_EVERY, run, value_of
from dymem.stress.on_workers import Bench, Job, WorkerDied, WorkerProcess, measure_all
from dymem.stress.program import DONE, FREE, MAKE, PAUSE, USE, program_of
from dymem.stress.script import Script

SCALE = 256 * MIB


def program(name="comb", scale=SCALE):
    return program_of(PATTERNS[name].script(scale).recording(name))


def job(name="comb", scale=SCALE):
    held, peak = {}, 0
    for kind, block, size, _ in program(name, scale).operations:
        if kind == MAKE:
            held[block] = -(-size // 512) * 512
            peak = max(peak, sum(held.values()))
        elif kind == FREE:
            held.pop(block)
    return Job(name, scale, 0, peak)


def measure(start, habits, jobs=None, budget=600.0, precision=0.01, clock=time.monotonic):
    with Bench(start, {}, precision=precision, clock=clock) as bench:
        return measure_all(bench, jobs or [job()], habits, budget)


# --- programs


@pytest.mark.parametrize("name", PATTERNS)
def test_a_program_makes_and_frees_each_block_once(name):
    made, freed = set(), set()
    for kind, block, size, _ in program(name).operations:
        if kind == MAKE:
            assert block not in made and size > 0
            made.add(block)
        elif kind == FREE:
            assert block in made and block not in freed
            freed.add(block)
    assert made == freed and len(made) == program(name).blocks
    assert program(name).calls == 2 * len(made)


def test_work_of_another_stream_lasts_as_long_as_the_script_says_ten_times_faster():
    script = Script()
    block = script.alloc(MIB)
    script.use_on(block, 7)
    script.free(block, done_after_ms=4)
    script.wait(30)
    script.free(script.alloc(MIB))
    kinds = [operation[0] for operation in program_of(script.recording("x")).operations]
    assert kinds == [MAKE, USE, FREE, DONE, PAUSE, MAKE, FREE]
    assert program_of(script.recording("x")).operations[1] == (USE, block, 7, pytest.approx(0.4))


def test_short_pauses_do_not_stop_the_host():
    assert PAUSE not in [kind for kind, *_ in program("comb").operations]
    assert PAUSE in [kind for kind, *_ in program("one_shot_streams").operations]


# --- runs


@pytest.mark.parametrize("name", PATTERNS)
def test_a_run_counts_calls_and_reads_bytes_back(name):
    device = FakeDevice("fits")
    device.limit = 1 << 40
    outcome = run(program(name), device)
    assert outcome.oom is None and outcome.damaged == 0 and not device.held
    assert outcome.calls == program(name).calls and outcome.readings >= program(name).blocks // READ_EVERY


def test_a_block_that_lost_its_bytes_is_noticed():
    device = FakeDevice("damages")
    device.limit = 1 << 40
    outcome = run(program(), device)
    assert outcome.damaged == outcome.readings > 0
    assert run(program(), device, touch=False).damaged == 0, "nothing was written, so nothing can be lost"


def test_memory_that_runs_out_ends_the_run_and_leaves_nothing_behind():
    device = FakeDevice("fits")
    device.limit = job().occupied_peak_bytes - 1
    outcome = run(program(), device)
    assert outcome.oom.startswith("no room for") and not device.held
    assert program().operations[outcome.oom_operation][0] == MAKE


def test_any_other_error_is_not_taken_for_memory():
    device = FakeDevice("fits")
    device.limit = 1 << 40
    device.fill = lambda token, value: 1 / 0
    with pytest.raises(ZeroDivisionError):
        run(program(), device)


def test_neighbours_have_different_bytes():
    assert all(value_of(n) != value_of(n + 1) and 0 < value_of(n) < 256 for n in range(2000))


# --- the search


def test_bisection_ends_within_its_precision_and_says_so():
    for needed in (1.0, 1.003, 1.2, 1.31, 3.9):
        ratio, kept, exactly = bisect(lambda r: r if r >= needed else None, 1.3, 0.01)
        assert needed <= ratio <= needed + 0.01 and kept == ratio and exactly
    assert bisect(lambda r: None, 1.3, 0.01) == (None, None, True)


def test_bisection_keeps_what_it_has_when_it_is_stopped():
    asked = []

    def attempt(ratio):
        asked.append(ratio)
        if len(asked) == 3:
            raise StopIteration
        return ratio if ratio >= 1.2 else None

    assert bisect(attempt, 1.5, 0.001) == (1.5, 1.5, False)


# --- worker processes


@pytest.mark.parametrize("code, words", [
    ("os.write(1, b'{\"ready\": tr'); os.kill(os.getpid(), 9)", "killed by signal 9: "),
    ("os.write(1, b'{\"ready\": tr'); sys.exit('enough')", "ended with code 1: enough"),
    ("os.write(1, b'what \\xff?\\n'); time.sleep(600)", "no JSON but 'what \ufffd?': "),
    ("os.close(1); time.sleep(600)", "closed its output and went on: ")])
def test_an_end_amid_an_answer_is_told_as_any_other(code, words, monkeypatch):
    monkeypatch.setattr(on_workers, "END_SECONDS", 1.0 if "close" in code else 60.0)
    worker = WorkerProcess([sys.executable, "-c", f"import os, sys, time\n{code}"], None)
    try:
        with pytest.raises(WorkerDied) as death:
            worker.ready()
        assert str(death.value).startswith(words)
    finally:
        worker.close()


def test_without_dymem_no_adapter_is_built(monkeypatch):
    from dymem.rivals import ALLOCATORS, of_dymem

    built = []
    monkeypatch.setattr(of_dymem.subprocess, "Popen", lambda command, **more: built.append(command) or SimpleNamespace(wait=int))
    of_dymem.build_adapter([ALLOCATORS["native"]])
    assert built == []
    of_dymem.build_adapter([ALLOCATORS["native"], ALLOCATORS["dymem"]])
    assert len(built) == 1


def test_each_allocator_gets_its_smallest_limit_and_its_times(start):
    cells = measure(start, ["fits", "wasteful", "greedy"])["comb"]
    assert cells["fits"].ratio == 1.0 and cells["fits"].status == "done"
    assert 1.3 <= cells["wasteful"].ratio <= 1.311
    assert cells["greedy"].status == "none" and cells["greedy"].ratio is None
    for cell in (cells["fits"], cells["wasteful"]):
        assert cell.limit_bytes == int(job().occupied_peak_bytes * cell.ratio)
        assert 0 < cell.bare_seconds and 0 < cell.seconds and 0 < cell.near_seconds and cell.calls_per_second > 0
    assert start.started == ["fits", "wasteful", "greedy"], "one process each"


def test_a_limit_that_an_allocator_rounds_up_is_not_what_it_needs(start):
    cell = measure(start, ["rounds"])["comb"]["rounds"]
    occupied = job().occupied_peak_bytes
    assert occupied % ROUND, "else nothing is rounded"
    assert cell.limit_bytes == occupied, "the limit that it was given would have sufficed for one that keeps it"
    assert cell.held_bytes == -(-occupied // ROUND) * ROUND and cell.ratio == cell.held_bytes / occupied


@pytest.mark.parametrize("habit, words", [("crasher", "killed by signal 11"), ("exits", "the allocator lost its mind")])
def test_a_crash_costs_its_own_cell(start, habit, words):
    cells = measure(start, [habit, "fits"], [job("comb"), job("checkerboard")])
    assert cells["comb"][habit].status == "crashed" and words in cells["comb"][habit].detail
    assert "\n" not in cells["comb"][habit].detail
    assert cells["comb"]["fits"].status == cells["checkerboard"]["fits"].status == "done"
    assert cells["checkerboard"][habit].status == "done"
    assert start.started.count(habit) == 2, "it is started again for the next pattern"


def test_no_answer_is_given_up(start, monkeypatch):
    ask = WorkerProcess.ask
    monkeypatch.setattr(WorkerProcess, "ask", lambda self, question: ask(self, question, 1.0 if self.hangs else 300.0))

    def start_one(habit):
        worker = start(habit)
        worker.hangs = habit == "hangs"
        return worker

    cells = measure(start_one, ["hangs", "fits"])["comb"]
    assert cells["hangs"].status == "slow" and cells["fits"].status == "done"


def test_what_keeps_its_memory_gets_a_process_for_every_try(start):
    cell = measure(start, ["sticky"])["comb"]["sticky"]
    assert cell.ratio == 1.0 and cell.status == "done"
    assert len(start.started) == cell.tries


def test_lost_bytes_are_counted(start):
    assert measure(start, ["damages"])["comb"]["damages"].damaged > 0


def test_what_a_library_prints_is_no_answer(start):
    assert measure(start, ["noisy"])["comb"]["noisy"].status == "done"


def test_the_budget_is_kept_and_what_was_measured_stays(start, monkeypatch):
    """By a clock that only answers move: 1 s each, of the second one 10 s."""
    now = [0.0]
    ask = WorkerProcess.ask

    def ask_and_tick(self, question):
        now[0] += self.takes
        return ask(self, question)

    def start_one(habit):
        worker = start(habit)
        worker.takes = 10.0 if habit == "noisy" else 1.0
        return worker

    monkeypatch.setattr(WorkerProcess, "ask", ask_and_tick)
    jobs = [job("comb"), job("growing_batch"), job("train_eval")]
    cells = measure(start_one, ["fits", "noisy"], jobs, budget=100.0, precision=0.0005, clock=lambda: now[0])
    assert cells["comb"]["fits"].ratio == cells["comb"]["noisy"].ratio == 1.0
    assert cells["train_eval"]["noisy"].status == "budget"
    assert now[0] <= 100 + 3 * 10, "what was begun in time may end later"


def test_patterns_that_have_more_to_do_may_take_more_of_the_budget():
    class Spends:
        now, took = 0.0, {}

        def _clock(self):
            return self.now

        def measure(self, job, allocator, until):
            self.took[job.pattern] = until - self.now
            self.now += (until - self.now) / 6  # half a share
            return on_workers.Cell("done")

    bench = Spends()
    jobs = [Job("light", SCALE, 0, SCALE, 500), Job("heavy", SCALE, 0, SCALE, 23_000)]
    measure_all(bench, jobs, ["dymem"], 275.0)
    assert bench.took["light"] == pytest.approx(3 * 275 * 2500 / 27_500)
    assert bench.took["heavy"] == pytest.approx(275 - 37.5 / 3), "all that is left, not three times that"


def test_what_is_missing_says_why_and_starts_nothing(start):
    with Bench(start, {"rmm_pool": "RMM is not installed"}, precision=0.01) as bench:
        bench.start_all(["rmm_pool"])
        cells = measure_all(bench, [job()], ["rmm_pool"], 600.0)
    assert cells["comb"]["rmm_pool"].status == "missing" and start.started == []


def test_the_cells_say_what_is_known():
    def cell(**keys):
        return {"status": "done", "ratio": 1.25, "damaged": 0, "detail": "", **keys}

    row = {"pattern": "comb", "allocators": {
        "native": cell(), "async": cell(status="roughly"), "rmm_pool": cell(damaged=3),
        "dymem": cell(status="crashed", ratio=None), "expandable": cell(status="missing", ratio=None, detail="not here")}}
    assert card_stress_words(row) == ["1.250", "<= 1.250", "1.250 !", "crashed", "absent"]
    titles = dict.fromkeys(row["allocators"], "title")
    notes = card_stress_notes([row], titles, {"native": "is slow"})
    assert notes == ["native: is slow", "! rmm_pool (title): blocks lost their bytes in comb.", "expandable: not here"]


def test_times_are_over_the_fastest_that_lost_nothing():
    def cell(seconds, near, damaged=0):
        return {"status": "done", "ratio": 1.0, "damaged": damaged, "seconds": seconds, "near_seconds": near}

    row = {"pattern": "comb", "allocators": {"native": cell(0.02, 0.1), "rmm_pool": cell(0.001, None, damaged=2),
                                             "dymem": cell(0.01, None), "async": cell(None, None)}}
    table = card_time_table([row], "a card")
    words = [str(list(column.cells)[0]) for column in table.columns]
    assert words == ["comb", "10.0 ms", "2.00/10.0", "0.10/-", "1.00/-", "-/-"]


# --- the command


@pytest.fixture
def on_fake_card(start, monkeypatch):
    """The command as where a GPU is, its workers those of machines.py: `habits` by allocator."""
    from dymem.cli import stress

    def command(habits, **options):
        monkeypatch.setattr(stress, "gpu_count", lambda: 1)
        monkeypatch.setattr(stress, "_start_worker", lambda allocator: start(habits[allocator]))
        monkeypatch.setattr("dymem.rivals.of_rmm.RmmPool.missing", lambda self: None)
        monkeypatch.setattr(stress, "build_adapter", lambda allocators: start.started.append("adapter"))
        given = {"driver": None, "scale": "256MiB", "seed": 0, "precision": 0.01, "settings": None,
                 "allocators": list(habits), "budget_seconds": 600.0, "json_file": None, "picture": None, "listed": False,
                 "markdown": False}
        return stress.main(["comb"], **(given | options))

    return command


def test_the_command_shows_and_writes_every_allocator(on_fake_card, start, capsys, tmp_path):
    target, picture = tmp_path / "stress.json", tmp_path / "stress.png"
    pytest.importorskip("matplotlib")
    code = on_fake_card({"native": "wasteful", "dymem": "fits", "rmm_pool": "damages"}, json_file=target, picture=picture)
    assert code == 0 and picture.read_bytes().startswith(b"\x89PNG")
    report = json.loads(target.read_text())
    assert start.started[0] == "adapter", "else it is built within the time that a worker has to start"
    assert report["driver"] == "cuda" and report["machine"]["gpu"] == "a card of cardboard"
    cells = report["patterns"][0]["allocators"]
    assert list(cells) == ["native", "rmm_pool", "dymem"] and cells["dymem"]["ratio"] == 1.0
    from dymem.cli.stress_tables import card_stress_table
    from rich.console import Console

    console = Console(width=200, record=True, file=open("/dev/null", "w"))
    console.print(card_stress_table(report["patterns"], "card"))
    text = console.export_text(styles=True)
    assert "\x1b[1;32m1.000\x1b[0m" in text and "1.000 !" in text and "\x1b[1;32m1.000 !" not in text


def test_the_command_says_what_crashed_and_goes_on(on_fake_card, capfd):
    assert on_fake_card({"native": "crasher", "dymem": "fits"}) == 0, "a rival's crash is a figure"
    assert "comb under native: killed by signal 11" in capfd.readouterr().err
    assert on_fake_card({"native": "fits", "dymem": "exits"}) == 1
    assert on_fake_card({"dymem": "damages"}) == 1 and on_fake_card({"dymem": "greedy"}) == 1


def test_a_budget_that_is_too_short_is_said(on_fake_card, capfd):
    assert on_fake_card({"dymem": "fits"}, budget_seconds=1e-6) == 1
    assert "1 of 1 were not measured within the budget" in capfd.readouterr().err


@pytest.mark.parametrize("arguments, sentence", [
    (["--driver", "cuda"], "there is no GPU here"),
    (["--driver", "metal"], "there is no driver 'metal'"),
    (["--allocator", "native"], "there is no GPU here"),
    (["--allocator", "tcmalloc"], "there is no allocator 'tcmalloc'; there are native"),
    (["--allocator", "native", "--setting", "vmm"], "use one of the two"),
    (["--driver", "cuda", "--setting", "vmm"], "choose with --allocator"),
    (["--driver", "emulated", "--allocator", "native"], "choose with --setting"),
    (["--budget-seconds", "0"], "more than 0 seconds"),
    (["--picture", "/nowhere/at/all.png"], "/nowhere/at"),
    (["--scale", "256MiB", "--setting", "vmm", "--picture", "x.text"], "no name for a picture"),
])
def test_bad_input_gets_one_sentence(python, arguments, sentence):
    if "x.text" in arguments:
        pytest.importorskip("matplotlib")
    done = python("-m", "dymem", "stress", "comb", *arguments, env={"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 2 and sentence in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1
