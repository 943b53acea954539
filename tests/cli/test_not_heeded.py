"""Nothing that a user said is passed over in silence: DYMEM_CONF is heeded by whatever replays, and options that mean
nothing on this machine, or for this input, are refused in one line."""

import json

import pytest

from dymem.compare import card
from snapshots import MIB, snapshot, steps, write


@pytest.fixture
def trace(tmp_path):
    return write(tmp_path / "run.pickle", snapshot(steps()))


def replayed(dymem_command, tmp_path, trace, *arguments, conf=""):
    run = dymem_command("replay", trace, "--json", tmp_path / "out.json", *arguments, env={"DYMEM_CONF": conf})
    return run, json.loads((tmp_path / "out.json").read_text())["traces"][0]


def test_replay_heeds_the_configuration(dymem_command, tmp_path, trace):
    run, result = replayed(dymem_command, tmp_path, trace, conf="alias:off,limit:900MiB,debug:on")
    assert result["alias"] is False and result["limit_bytes"] == 900 * MIB
    assert run.stderr == "dymem: DYMEM_CONF is heeded: limit:943718400,alias:off. Its debug means nothing here.\n"


def test_options_win_over_the_configuration(dymem_command, tmp_path, trace):
    _, result = replayed(dymem_command, tmp_path, trace, "--alias", "on", "--limit", "1GiB", conf="alias:off,limit:1MiB")
    assert result["alias"] is True and result["limit_bytes"] == 1 << 30 and not result["oom"]


def test_without_a_configuration_nothing_is_said(dymem_command, tmp_path, trace):
    assert replayed(dymem_command, tmp_path, trace)[0].stderr == ""
    assert replayed(dymem_command, tmp_path, trace, conf="alias:on")[0].stderr == "", "that is the default"


@pytest.mark.parametrize("command", [["replay"], ["plot", "--replay"], ["compare", "--recordings", "--only", "kmeans"],
                                     ["stress", "comb", "--driver", "emulated"]])
def test_a_configuration_that_means_nothing_is_refused(dymem_command, trace, command):
    if command[0] == "plot":
        pytest.importorskip("matplotlib")
    run = dymem_command(*command, *([trace] if command[0] in ("replay", "plot") else []), env={"DYMEM_CONF": "limt:3"})
    assert run.returncode == 2 and run.stderr.startswith("dymem: DYMEM_CONF: 'limt'") and run.stderr.count("\n") == 1


def test_plot_compare_and_stress_heed_it_too(dymem_command, tmp_path, trace):
    def said(*arguments, conf="backing:contiguous,limit:800MiB"):
        run = dymem_command(*arguments, env={"DYMEM_CONF": conf})
        assert run.returncode == 0, run.stderr
        return run

    run = said("compare", "--recordings", "--only", "kmeans", "--json", "out.json")
    assert json.loads((tmp_path / "out.json").read_text())["traces"][0]["backing"] == "contiguous"
    assert "heeded: backing:contiguous." in run.stderr and "limit" in run.stderr
    run = said("stress", "comb", "--scale", "256MiB", "--setting", "vmm", "--json", "out.json", "--precision", "0.5",
               conf="wait:off,trace:on")
    assert "heeded: wait:off. Its trace" in run.stderr
    pytest.importorskip("matplotlib")
    assert "heeded: limit:838860800,backing:contiguous." in said("plot", trace, "--replay").stderr
    assert said("plot", trace).stderr == "", "as recorded: nothing is replayed"


@pytest.mark.parametrize("arguments, words", [
    (["--seconds", "60"], "--seconds means nothing here"),
    (["--repeats", "2", "--iterations", "5", "--shapes", "0"], "--repeats and --iterations and --shapes mean nothing here")])
def test_compare_of_recordings_refuses_what_it_does_not_do(dymem_command, arguments, words):
    run = dymem_command("compare", "--recordings", "--only", "kmeans", *arguments)
    assert run.returncode == 2 and words in run.stderr and run.stderr.count("\n") == 1 and not run.stdout, run.stderr


def test_stress_without_a_gpu_has_no_budget(dymem_command):
    if card.gpu_count():
        pytest.skip("a GPU is here")
    run = dymem_command("stress", "comb", "--scale", "256MiB", "--setting", "vmm", "--precision", "0.5", "--budget-seconds",
                        "10")
    assert run.returncode == 2 and "--budget-seconds is for a GPU" in run.stderr and not run.stdout


def test_a_list_of_patterns_is_written_nowhere(dymem_command, tmp_path):
    run = dymem_command("stress", "--list", "--json", "out.json")
    assert run.returncode == 2 and "leave --json and --picture out" in run.stderr and not list(tmp_path.iterdir())


def test_a_list_is_of_the_patterns_that_are_named(dymem_command):
    run = dymem_command("stress", "--list", "comb")
    assert run.returncode == 0 and "comb" in run.stdout and "checkerboard" not in run.stdout
    run = dymem_command("stress", "--list", "nosuch")
    assert run.returncode == 2 and "there is no pattern 'nosuch'" in run.stderr


@pytest.mark.parametrize("more, words", [
    (["--scale", "1"], "--scale means nothing beside it; leave it out"),
    (["--seed", "3", "--setting", "vmm", "--budget-seconds", "9"], "--seed and --setting and --budget-seconds mean nothing")])
def test_a_list_refuses_what_it_does_not_heed(dymem_command, more, words):
    run = dymem_command("stress", "--list", *more)
    assert run.returncode == 2 and words in run.stderr and run.stderr.count("\n") == 1 and not run.stdout


@pytest.mark.parametrize("command", [["replay"], ["compare", "--recordings"], ["stress", "comb"], ["doctor"]])
def test_a_dash_is_no_file(dymem_command, tmp_path, trace, command):
    run = dymem_command(*command, *([trace] if command == ["replay"] else []), "--json", "-")
    assert run.returncode == 2 and "name /dev/stdout" in run.stderr and run.stderr.count("\n") == 1 and not run.stdout
    assert not (tmp_path / "-").exists()


def test_plot_without_a_replay_has_no_limit(dymem_command, trace):
    pytest.importorskip("matplotlib")
    for more in (["--limit", "1GiB"], ["--lag", "3"], ["--limit", "1GiB", "--allocators", "recorded"]):
        run = dymem_command("plot", trace, "--out", "x.png", *more)
        assert run.returncode == 2 and "--limit and --lag are for replays" in run.stderr and run.stderr.count("\n") == 1
        assert not (trace.parent / "x.png").exists()
    assert dymem_command("plot", trace, "--limit", "1GiB", "--replay").stderr == ""


def test_plot_says_where_a_limit_was_not_enough(dymem_command, trace):
    pytest.importorskip("matplotlib")
    run = dymem_command("plot", trace, "--replay", "--limit", "12MiB")
    assert run.returncode == 1 and "drawn up to event" in run.stderr and "--limit" in run.stderr, run.stderr


def test_the_help_says_what_needs_a_gpu_or_a_checkout(dymem_command):
    help_ = {name: " ".join(dymem_command(*name.split(), "--help").stdout.replace("│", " ").split())
             for name in ("", "replay", "compare")}
    assert "Only training needs a GPU" in help_[""] and "needs no GPU" in help_["replay"]
    assert "as DYMEM_CONF says, but for its mobility" in help_["replay"]
    assert "which are in bench/ of a checkout" in help_["compare"] and "without a GPU, recordings of it" in help_["compare"]
