"""A stand-in for bench/train.py that needs neither torch nor a GPU, and takes its turns as the real one does."""

import pytest

FAKE_TRAIN = '''
import argparse, json, os, sys, time
NEEDS = {"native": 150, "expandable": 110, "async": 120, "dymem": 102, "dymem_remap": 103, "dymem_contiguous": 130}
SECONDS = {"native": 0.002, "expandable": 0.003, "async": 0.004, "dymem": 0.002, "dymem_remap": 0.005, "dymem_contiguous": 0.002}
parser = argparse.ArgumentParser()
parser.add_argument("workload", nargs="?")
for name in ("--allocator", "--iterations", "--shapes", "--limit-bytes", "--history"):
    parser.add_argument(name)
for name in ("--lockstep", "--call-cost", "--list", "--list-all"):
    parser.add_argument(name, action="store_true")
a = parser.parse_args()
if a.list or a.list_all:
    print("resnet50_b128" if a.list else "resnet50_b128\\nunet_b16\\nunknown_one")
    sys.exit()
with open(os.environ["FAKE_LOG"], "a") as log:
    print(a.allocator, a.limit_bytes or 0, "built", file=log)
mib, limit = 1 << 20, int(a.limit_bytes or 0)
if a.history:
    sys.exit("no history in a stand-in")
if a.allocator == os.environ.get("FAKE_CRASH"):
    print("Traceback (most recent call last):", "  in a kernel", "RuntimeError: the card caught fire", sep="\\n", file=sys.stderr)
    sys.exit(1)
result = {"allocator": a.allocator, "workload": a.workload, "gpu": "a card", "torch": "2.11", "warm_from": 2,
          "live_peak_bytes": 100 * mib, "occupied_peak_bytes": 101 * mib, "requested_peak_bytes": 99 * mib,
          "reserved_peak_bytes": NEEDS[a.allocator] * mib, "calls": 900, "calls_per_step": 90.0, "device_allocations": 7,
          "device_frees": 1, "call_ns": 400.0 if a.call_cost else None, "step_seconds": [], "step_ms": None}
print("ready", flush=True)
for i in range(int(a.iterations)):
    if not sys.stdin.readline():
        sys.exit("the other end of --lockstep has gone")
    if limit and limit < NEEDS[a.allocator] * mib and i == 3:
        result |= {"out_of_memory": "CUDA out of memory. Tried to allocate", "failed_at_step": i}
        print(json.dumps(result))
        sys.exit(1)
    with open(os.environ["FAKE_LOG"], "a") as log:
        print(a.allocator, limit, i, file=log)
    result["step_seconds"].append(SECONDS[a.allocator] * (1 + 0.01 * (i % 3)))
    print("step", flush=True)
sys.stdin.readline()
result["step_ms"] = 1e3 * SECONDS[a.allocator]
print(json.dumps(result))
'''


@pytest.fixture
def fake_train(tmp_path, monkeypatch):
    """The stand-in's path; FAKE_LOG tells what was run in which order."""
    path = tmp_path / "train.py"
    path.write_text(FAKE_TRAIN)
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log.txt"))
    return path


@pytest.fixture
def log(tmp_path):
    """Lines that the stand-ins wrote so far: (allocator, limit, step or "built")."""
    return lambda: [tuple(line.split()) for line in (tmp_path / "log.txt").read_text().splitlines()]
