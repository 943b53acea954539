"""bench/record_facts.py's options, and what it says where it cannot run. Its loop is tested in tests/adapter."""

import pytest

pytestmark = pytest.mark.torch


def test_help_names_what_it_writes(python, root):
    told = python(root / "bench" / "record_facts.py", "--help", env={"PYTHONPATH": str(root / "python")})
    assert told.returncode == 0 and "--own" in told.stdout and "--rule" in told.stdout


@pytest.mark.parametrize("options, words", [(["unet_b16", "--iterations", "2"], "more than --profile"),
                                            (["unet_b16", "--rule", "oracle"], "invalid choice"), ([], "workload"),
                                            (["unet_b16", "--profile", "-1"], "0 or more"),
                                            (["unet_b16", "--conf", "gibberish"], "is not key:value"),
                                            (["nonsense"], "there is no workload 'nonsense'")])
def test_bad_options_are_told_in_a_line(python, root, options, words):
    told = python(root / "bench" / "record_facts.py", *options, env={"PYTHONPATH": str(root / "python")})
    assert told.returncode == 2 and words in told.stderr.splitlines()[-1]
