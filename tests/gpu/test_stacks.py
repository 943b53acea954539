"""Training and serving stacks under `dymem run`, unchanged: they end well, compute the same bits, and dymem serves them all.

Each script of stacks/ runs under PyTorch's allocator and then under dymem, four scripts at once or one for every two cores,
since starting takes most of the time. The scripts know nothing of dymem; each tells, rank by rank, what allocator PyTorch
says it has.

DYMEM_STACKS_ON_CPU=1 runs them without a GPU: what is shown then is that they run and that children inherit dymem.
"""

import concurrent.futures
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = 200  # for one run
TOGETHER = max(4, len(os.sched_getaffinity(0)) // 2)

spec = importlib.util.spec_from_file_location("stacks_catalogue", Path(__file__).resolve().parent / "stacks" / "catalogue.py")
catalogue = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(catalogue)

ON_CPU = os.environ.get("DYMEM_STACKS_ON_CPU") == "1"
pytestmark = [pytest.mark.torch] if ON_CPU else [pytest.mark.torch, pytest.mark.gpu]


def run_once(stack, allocator: str, gpus: int, folder: Path) -> dict:
    """What the script told; {"failed": sentence} if it did not end well."""
    try:
        done = subprocess.run(stack.command(allocator, gpus), env=stack.environment(gpus, folder / "kernels"), cwd=folder,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return {"failed": f"under {allocator}: still running after {SECONDS} s"}
    if done.returncode != 0 or not done.stdout.strip():
        return {"failed": f"under {allocator}: exit status {done.returncode}\n{done.stderr[-3000:]}"}
    return json.loads(done.stdout.strip().splitlines()[-1]) | {"stderr": done.stderr[-3000:]}


def run_both(name: str, gpus: int, folder: Path) -> dict[str, dict]:
    """PyTorch's first: kernels that it compiled and chose are then dymem's, too."""
    folder.mkdir()
    told = {}
    for allocator in ("native", "dymem"):
        told[allocator] = run_once(catalogue.STACKS[name], allocator, gpus, folder)
        if "failed" in told[allocator]:
            break
    return told


@pytest.fixture(scope="module")
def runs(request, tmp_path_factory):
    """The runs of every stack that this session wants, all started at the first call."""
    wanted = [item.callspec.params["name"] for item in request.session.items
              if item.path == Path(__file__) and hasattr(item, "callspec")]
    wanted.sort(key=lambda name: not catalogue.STACKS[name].compiles)
    folder, gpus = tmp_path_factory.mktemp("stacks"), 0 if ON_CPU else catalogue.gpu_count()
    with concurrent.futures.ThreadPoolExecutor(TOGETHER) as pool:
        yield {name: pool.submit(run_both, name, gpus, folder / name) for name in dict.fromkeys(wanted)
               if not catalogue.STACKS[name].missing()}


@pytest.mark.parametrize("name", catalogue.STACKS)
def test_a_stack_runs_unchanged_and_computes_the_same(runs, name):
    if reason := catalogue.STACKS[name].missing():
        pytest.skip(reason)
    told = runs[name].result()
    for allocator, one in told.items():
        assert "failed" not in one, one["failed"]
        assert {rank["backend"] for rank in one["ranks"]} == {allocator}, "a rank runs under another allocator"
        assert set(one.get("workers", [allocator])) == {allocator}, "a worker runs under another allocator"
    native, dymem = told["native"], told["dymem"]
    assert len(native["losses"]) >= 6 and len(set(native["losses"])) > 1, "the losses say nothing"
    if native["exact"]:
        assert dymem["losses"] == native["losses"]
        assert [rank["digest"] for rank in dymem["ranks"]] == [rank["digest"] for rank in native["ranks"]]
    else:
        assert [*map(float.fromhex, dymem["losses"])] == pytest.approx([*map(float.fromhex, native["losses"])], rel=2e-3)
    if native["device"] != "cpu" and native["exact"] and not catalogue.STACKS[name].peaks_vary:
        assert native["max_memory_allocated"] > 0
        # PyTorch counts what it does not split off a block; beside that, the same work holds the same bytes.
        assert dymem["max_memory_allocated"] <= 1.02 * native["max_memory_allocated"] + (4 << 20)
        assert dymem["max_memory_allocated"] >= 0.7 * native["max_memory_allocated"] - (64 << 20)
    if native.get("graphs") is not None:
        assert dymem["graphs"] <= native["graphs"], "dymem makes PyTorch record more graphs"
