"""PyTorch's own tools for memory on the card, under dymem, through PyTorch's own functions: history, snapshots, plots,
summaries, observers, running out. One process does a training step or two for each; all of it takes half a minute."""

from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
pytestmark = [pytest.mark.gpu, pytest.mark.torch]

START = f"""
import sys, pickle, time
from pathlib import Path
sys.path.insert(0, {str(HERE.parent / "adapter")!r})
import dymem; dymem.install()
import torch
from torch import nn
from dymem import _core
from snapshot_rules import RULES
exec(RULES)
MiB = 1 << 20
memory = torch.cuda.memory

def model_and_step():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 4096), nn.GELU(), nn.Linear(4096, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    def step(n):
        loss = model(torch.randn(n, 1024, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, step
"""


def run(python, code):
    done = python("-c", START + code, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done


def test_a_recorded_training_goes_through_every_tool(python, tmp_path):
    run(python, f"""
memory._record_memory_history(max_entries=100_000, stacks="python")
assert torch._C._cuda_isHistoryEnabled()
model, step = model_and_step()
for n in (512, 700, 512, 900):
    step(n)
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    torch.cuda._sleep(100_000_000)
    x = torch.ones(4 * MiB, device="cuda")
    x.record_stream(torch.cuda.current_stream())
kept = [torch.empty(n * 8 * MiB, dtype=torch.uint8, device="cuda") for n in (1, 4, 1, 4, 1, 4, 1)]
del kept[1::2]
big = torch.empty(90 * MiB, dtype=torch.uint8, device="cuda")  # may be stitched
torch.cuda.synchronize()
snap = memory._snapshot()
mapped = check(snap)
assert max(mapped) <= torch.cuda.max_memory_reserved()
assert any("model_and_step" in names(e) for e in snap["device_traces"][0] if e["action"] == "alloc")
weights = {{p.data_ptr() for p in model.parameters()}}
blocks = blocks_of(snap)
assert weights <= set(blocks) and all("model_and_step" in names(blocks[at]) for at in weights)
path = Path({str(tmp_path)!r}) / "snap.pickle"
memory._dump_snapshot(str(path))
dumped = pickle.loads(path.read_bytes())
check(dumped)
assert torch.cuda.memory_snapshot() is not None and len(torch.cuda.memory_snapshot()) == len(dumped["segments"])
from dymem.trace.load import load
recording, = load(path)
result = _core.replay(recording.events, {{}})
peak = torch.cuda.memory_stats()["allocated_bytes.all.peak"]
assert abs(result["live_peak_bytes"] - peak) <= peak // 50, (result["live_peak_bytes"], peak)
assert result["native_reserved_peak_bytes"] == torch.cuda.max_memory_reserved()
memory._record_memory_history(enabled=None)
assert not torch._C._cuda_isHistoryEnabled() and not any(memory._snapshot()["device_traces"])
step(64)
check_sums(memory._snapshot())
assert _core.abi.pool(0).audit() == []
""")
    page = python("-m", "torch.cuda._memory_viz", "trace_plot", tmp_path / "snap.pickle", "-o", tmp_path / "plot.html")
    assert page.returncode == 0, page.stderr
    assert (tmp_path / "plot.html").stat().st_size > 10_000
    told = python("-m", "torch.cuda._memory_viz", "stats", tmp_path / "snap.pickle")
    assert told.returncode == 0 and "total_reserved" in told.stdout, told.stderr
    replayed = python("-m", "dymem", "replay", tmp_path / "snap.pickle")
    assert replayed.returncode == 0, replayed.stderr


def test_backward_threads_with_frames_of_cpp_do_not_lock_up(python):
    """History with frames of every call, from autograd's thread and others, while snapshots are taken."""
    run(python, """
import threading
memory._record_memory_history(context="all", stacks="all", max_entries=20_000)
model, step = model_and_step()
failures = []
def work(seed):
    try:
        with torch.cuda.stream(torch.cuda.Stream()):
            for n in range(30):
                x = torch.randn(256 * (1 + (n + seed) % 5), 1024, device="cuda", requires_grad=True)
                (x * 2).sum().backward()
    except BaseException as error:
        failures.append(error)
threads = [threading.Thread(target=work, args=(s,)) for s in range(3)]
[t.start() for t in threads]
for n in range(4):
    step(128)
[t.join(60) for t in threads]
assert not failures and not any(t.is_alive() for t in threads), failures
snap = memory._snapshot()
check_sums(snap)
check_playback(snap)
assert any(any("backward" in name.lower() for name in names(e)) for e in snap["device_traces"][0])
""")


def test_running_out_tells_observers_and_what_to_do(python):
    run(python, """
heard = []
def observer(device, asked, total, free):
    memory._snapshot()  # what everybody does in there
    heard.append((device, asked, total, free))
memory._record_memory_history()
torch.ones(1, device="cuda")
torch._C._cuda_attach_out_of_memory_observer(observer)
torch.cuda.set_per_process_memory_fraction(0.02)
held = [torch.empty(64 * MiB, dtype=torch.uint8, device="cuda") for _ in range(4)]
try:
    torch.empty(int(torch.cuda.get_device_properties(0).total_memory * 0.02), dtype=torch.uint8, device="cuda")
    raise SystemExit("it fitted")
except torch.OutOfMemoryError as error:
    text = str(error)
for part in ("CUDA out of memory (dymem). Tried to allocate", "live 256.0 MiB", "pending 0 B", "in private pools 0 B",
             "largest free block", "limit", "overhead", "raise it"):
    assert part in text, text
assert len(heard) == 1 and heard[0][0] == 0 and heard[0][1] > 256 * MiB, heard
assert torch.cuda.memory_stats()["num_ooms"] == 1
entry, = [e for e in memory._snapshot()["device_traces"][0] if e["action"] == "oom"]
assert entry["size"] == heard[0][1] and entry["device_free"] == heard[0][3]
check(memory._snapshot())
""")


def test_summaries_and_statistics(python):
    run(python, """
model, step = model_and_step()
step(256)
summary = torch.cuda.memory_summary()
assert "Allocated memory" in summary and "GPU reserved memory" in summary and "CUDA OOMs: 0" in summary
assert "Active memory" in torch.cuda.memory_summary(abbreviated=True)
stats = torch.cuda.memory_stats()
snap = memory._snapshot()
check_sums(snap)
assert sum(s["total_size"] for s in snap["segments"]) == torch.cuda.memory_reserved()
assert sum(s["allocated_size"] for s in snap["segments"]) == torch.cuda.memory_allocated()
torch.cuda.reset_peak_memory_stats()
assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated()
usage = torch._C._cuda_memorySnapshot(None)["allocator_settings"]
assert "backend:dymem" in usage["PYTORCH_CUDA_ALLOC_CONF"]
""")


def test_the_profiler_and_its_memory_view(python):
    run(python, """
model, step = model_and_step()
step(64)
from torch.profiler import profile, ProfilerActivity
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], profile_memory=True, record_shapes=True,
             with_stack=True) as prof:
    step(64)
rows = prof.key_averages()
assert any(getattr(row, "device_memory_usage", getattr(row, "cuda_memory_usage", 0)) for row in rows)
page = _memory_viz.profile_plot(prof)
assert "MemoryViz.js" in page
""")


def test_metadata_on_entries(python):
    run(python, """
memory._record_memory_history(stacks="python")
torch._C._cuda_setMemoryMetadata("3:F")
assert torch._C._cuda_getMemoryMetadata() == "3:F"
x = torch.ones(3 * MiB, device="cuda")
torch._C._cuda_setMemoryMetadata("")
y = torch.ones(5 * MiB, device="cuda")
told = {e["size"]: e.get("user_metadata") for e in memory._snapshot()["device_traces"][0] if e["action"] == "alloc"}
assert told[12 * MiB] == "3:F" and not told[20 * MiB], told
""")


def test_history_that_is_off_records_nothing(python):
    """Before it was ever on, while it is on, and after: what was recorded stays, and nothing comes to it. What a call takes
    then is bench/history_cost.py's to measure."""
    run(python, """
def pairs(n):
    alloc, free = torch._C._cuda_cudaCachingAllocator_raw_alloc, torch._C._cuda_cudaCachingAllocator_raw_delete
    stream = torch.cuda.current_stream().cuda_stream
    for _ in range(n):
        free(alloc(4096, stream))
def recorded():
    return sum(entry["size"] == 4096 for entry in memory._snapshot()["device_traces"][0])
torch.ones(1, device="cuda")
pairs(1000)
assert recorded() == 0
memory._record_memory_history(context=None, max_entries=10_000)
pairs(1000)
assert recorded() == 3000
memory._record_memory_history(enabled=None)
before = recorded()
pairs(1000)
assert recorded() == before
""")
