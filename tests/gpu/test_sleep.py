"""Sleeping on a card: the driver has its memory, values and addresses are kept, captured graphs replay."""

import json
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
pytestmark = [pytest.mark.gpu, pytest.mark.torch, pytest.mark.alone]

START = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import dymem; dymem.install()
import torch
from graphs import Captured
from dymem import _core
free = lambda: torch.cuda.mem_get_info()[0]
MIB = 1 << 20
"""


def run(python, code):
    done = python("-c", START + code)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]


def test_a_captured_graph_replays_on_the_same_addresses(python):
    run(python, """
with dymem.tagged("weights"):
    w = torch.randn(2048, 2048, device="cuda")
x, y, z = (torch.randn(512, 2048, device="cuda") for _ in range(3))
torch.mm(x, w, out=y)  # cuBLAS takes its workspace
def step():
    torch.mm(x, w, out=y)
    torch.nn.functional.silu(y, inplace=True)
    torch.mm(y, w, out=z)
graph = Captured(step)
graph.launch()
torch.cuda.synchronize()
wanted = z.cpu()
assert wanted.abs().max() > 0
pointers = [t.data_ptr() for t in (w, x, y, z)]
for round in range(3):
    before = free()
    report = dymem.sleep()
    assert report.memory_bytes > 0 and free() - before >= report.memory_bytes, (free() - before, report)
    assert torch.cuda.memory_reserved() == 0
    woken = dymem.wake()
    assert woken.memory_bytes == report.memory_bytes
    z.zero_()
    graph.launch()
    torch.cuda.synchronize()
    assert torch.equal(z.cpu(), wanted), "the graph gave another result after waking"
    x.copy_(x)  # and eager work goes on
assert pointers == [t.data_ptr() for t in (w, x, y, z)]
assert _core.abi.pool(0).audit() == []
""")


def test_stitched_blocks_keep_their_values(python):
    run(python, """
blocks = [torch.full((n * MIB // 4,), n, dtype=torch.int32, device="cuda") for n in range(30, 90)]
keep = blocks[::2]
del blocks
big = [torch.full((n * MIB // 4,), n, dtype=torch.int32, device="cuda") for n in (300, 200, 150)]
assert dymem.memory_stats()["num_stitches"] > 0, "nothing is stitched: the test means less"
for how in ({}, {"keep": "host"}):
    dymem.sleep(**how)
    dymem.wake()
    for t in keep + big:
        assert bool((t == t.numel() * 4 // MIB).all())
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    torch.cuda._sleep(200_000_000)
    late = torch.full((64 * MIB // 4,), 5, dtype=torch.int32, device="cuda")
dymem.sleep()  # waits for what is still running
dymem.wake()
assert bool((late == 5).all())
assert _core.abi.pool(0).audit() == []
""")


def test_levels_and_partial_waking(python):
    run(python, """
with dymem.tagged("weights"):
    w = torch.full((256 * MIB // 4,), 3, dtype=torch.int32, device="cuda")
with dymem.tagged("kv_cache"):
    kv = torch.zeros(512 * MIB // 4, dtype=torch.int32, device="cuda")
before = free()
level1 = dymem.sleep(keep=("weights",))
assert level1.dropped_bytes == 512 * MIB and free() - before >= 760 * MIB
dymem.wake(tags=("weights",))
assert bool((w == 3).all())
asleep = dymem.memory_stats()["asleep_bytes"]
assert asleep >= 480 * MIB
temporary = torch.ones(128 * MIB, dtype=torch.uint8, device="cuda")  # weights are updated before the cache is back
w.add_(int(temporary[0]))
dymem.wake(tags=("kv_cache",))
kv.fill_(9)
assert bool((w == 4).all()) and bool((kv == 9).all())
half = dymem.sleep(tags=("kv_cache",), keep="drop")
assert half.memory_bytes >= 480 * MIB
others = [torch.ones(64 * MIB, dtype=torch.uint8, device="cuda") for _ in range(8)]
assert bool((w == 4).all())
dymem.wake()
kv.fill_(1)
torch.cuda.synchronize()
assert _core.abi.pool(0).audit() == []
""")


def test_waking_without_memory_says_so_and_can_be_tried_again(python):
    run(python, """
import ctypes
w = torch.full((1024 * MIB // 4,), 3, dtype=torch.int32, device="cuda")
dymem.sleep()
cuda, other = ctypes.CDLL("libcuda.so.1"), ctypes.c_ulonglong()
assert cuda.cuMemAlloc_v2(ctypes.byref(other), ctypes.c_size_t(free() - 256 * MIB)) == 0  # another tenant
for _ in range(2):
    try:
        dymem.wake()
        raise SystemExit("it woke without memory")
    except dymem.OutOfMemory as error:
        assert "stays asleep" in str(error) and "\\n" not in str(error)
assert free() >= 250 * MIB, "a failed wake kept memory"
assert cuda.cuMemFree_v2(other) == 0
dymem.wake()
assert bool((w == 3).all())
""")


def test_refused_during_a_capture(python):
    run(python, """
x = torch.ones(1024, device="cuda")
def step():
    x.add_(1)
    if torch.cuda.is_current_stream_capturing():
        torch.empty(100, device="cuda").record_stream(torch.cuda.current_stream())
        try:
            dymem.sleep()
            raise SystemExit("it slept during a capture")
        except dymem.SleepError as error:
            assert "captured" in str(error)
graph = Captured(step)
graph.launch()
torch.cuda.synchronize()
assert float(x[0]) == 3.0  # once to load kernels, once replayed
""")


def test_the_bench_runs_small(python, root, tmp_path):
    done = python(root / "bench" / "sleep.py", "--gib", 1, "--rounds", 2, "--json", tmp_path / "sleep.json")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    result = json.loads((tmp_path / "sleep.json").read_text())
    assert result["failed"] == [] and result["worst_of_link_warm"] > 0.5
