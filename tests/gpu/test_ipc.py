"""Tensors sent to other processes on a card, by what users send them with: queues, reduce_tensor, DataLoader."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
pytestmark = [pytest.mark.gpu, pytest.mark.torch]

# (sender, receiver, everything?): "native" or a configuration of dymem.
SLABS = "backing:contiguous,limit:4GiB"  # without a limit, each would take three quarters of the card
PAIRS = {
    "granules": ("", "", True), "slabs": (SLABS, SLABS, False), "alias=off": ("alias:off", "", False),
    "granules to slabs": ("", SLABS, False), "slabs to native": (SLABS, "native", False),
    "native to granules": ("native", "", False), "native to slabs": ("native", SLABS, False),
    "granules to native": ("", "native", False), "expandable segments to granules": ("native", "", False),
}
REFUSED = {"granules to native": "future version of torch", "expandable segments to granules": "expandable_segments:False"}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """All of them at once: most of the time is spent on importing."""
    folder = tmp_path_factory.mktemp("pairs")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("DYMEM_CONF", "PYTORCH_"))}
    subprocess.run([sys.executable, "-c", "import dymem; dymem.install()"], env=clean, check=True, timeout=300)  # builds
    jobs = {}
    for name, (sender, receiver, whole) in PAIRS.items():
        env = {**clean, **({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} if "expandable" in name else {})}
        out = [open(folder / f"{name}.{stream}", "w+") for stream in ("out", "err")]
        command = [sys.executable, str(HERE / "ipc_pair.py"), sender, receiver, *([] if whole else ["--brief"])]
        jobs[name] = subprocess.Popen(command, env=env, stdout=out[0], stderr=out[1], text=True, cwd=folder), out
    done = {}
    for name, (job, out) in jobs.items():
        try:
            job.wait(timeout=150)
        except subprocess.TimeoutExpired:
            job.kill()
            job.wait()
        for file in out:
            file.seek(0)
        done[name] = job.returncode, out[0].read(), out[1].read()
    return done


@pytest.mark.parametrize("name", [name for name in PAIRS if name not in REFUSED])
def test_two_processes_share_tensors(pairs, name):
    code, out, err = pairs[name]
    assert code == 0, err[-3000:]
    result = json.loads(out.strip().splitlines()[-1])
    sender, receiver, whole = PAIRS[name]
    assert result["backend"] == ("native" if sender == "native" else "dymem")
    assert all(result["right"]) and all(result["late"]) and result["written"] and result["bare"]
    assert all(result["sender_freed_first"]) and result["small"]
    assert result["exitcode"] == 0
    if whole:
        assert all(result["wide"]) and result["theirs"]
        assert result["stitches"] > 0, "the test must send a stitched block to mean anything"
    for side, allocator in (("sender", sender), ("receiver", receiver)):
        assert result[side]["allocated"] == 0
        if allocator != "native":
            assert result[side] == {"allocated": 0, "imported_bytes": 0, "imported_mappings": 0, "imported_waiting": 0,
                                    "exported_bytes": 0, "audit": []}
    if receiver != "native":
        assert 0 < result["small_mappings"] <= 20, "small tensors of one granule are mapped together"


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_cannot_be_received_says_why(pairs, name):
    code, _, err = pairs[name]
    assert code == 1 and "the receiver ended" in err and REFUSED[name] in err, err[-3000:]


SENDER_DIES = """
import os, signal
import dymem; dymem.install()
import torch, torch.multiprocessing as mp
from torch.multiprocessing.reductions import reduce_tensor

def send(pipe):
    held = [torch.arange(8 << 20, dtype=torch.int32, device="cuda") + i for i in (0, 1)]
    torch.cuda.synchronize()
    pipe.send([reduce_tensor(t) for t in held])
    pipe.recv()

if __name__ == "__main__":
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=send, args=(theirs,))
    process.start()
    (rebuild, first), (_, second) = ours.recv()
    mine = torch.zeros(1 << 20, device="cuda")
    tensor = rebuild(*first)
    assert tensor[-1].item() == (8 << 20) - 1
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert torch.equal(tensor.cpu(), torch.arange(8 << 20, dtype=torch.int32)), "what is mapped stays readable"
    for receive in (lambda: dymem._torch.receive(second[7]), lambda: rebuild(*second)):
        try:
            receive()
            raise SystemExit("a dead process shared a tensor")
        except RuntimeError as error:  # PyTorch opens the sender's event first, which fails in words of CUDA's
            print(error)
    del tensor
    mine += 1
    assert mine.sum().item() == 1 << 20
    assert dymem.memory_stats()["imported_bytes"] == 0
    print("fine")
"""


def as_program(python, tmp_path, code, **more):
    """Spawned processes import the main module: it must be a file."""
    script = tmp_path / "program.py"
    script.write_text(code)
    done = python(script, **more)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done


def test_what_is_mapped_outlives_the_sender(python, tmp_path):
    out = as_program(python, tmp_path, SENDER_DIES).stdout
    assert "fine" in out and "has ended" in out and "keep the sender alive" in out


LOADERS = """
import dymem; dymem.install()
import torch
from torch.utils.data import DataLoader, Dataset

class Squares(Dataset):
    def __init__(self, device): self.device = device
    def __len__(self): return 64
    def __getitem__(self, i): return torch.full((256, 256), i * i, dtype=torch.int32, device=self.device)

if __name__ == "__main__":
    wanted = sum(i * i for i in range(64)) * 256 * 256
    kept = torch.ones(5 << 20, device="cuda")  # every forked worker inherits it
    for context, device, pinned in (("fork", "cpu", True), ("spawn", "cpu", True), ("spawn", "cuda", False)):
        loader = DataLoader(Squares(device), batch_size=8, num_workers=2, pin_memory=pinned,
                            multiprocessing_context=context)
        total = 0
        for batch in loader:
            total += batch.cuda(non_blocking=True).sum(dtype=torch.int64).item()
            del batch
        assert total == wanted, (context, device, total, wanted)
    assert kept.sum().item() == 5 << 20
    torch.cuda.ipc_collect()
    assert dymem.memory_stats()["imported_bytes"] == 0, dymem.memory_stats()["imported_bytes"]
    from dymem import _core
    assert _core.abi.pool(0).audit() == []
    print("fine")
"""


def test_loaders_with_forked_and_spawned_workers(python, tmp_path):
    done = as_program(python, tmp_path, LOADERS)
    assert "fine" in done.stdout
    assert "dymem:" not in done.stderr, done.stderr[-2000:]


TWO_DEVICES = """
import dymem; dymem.install()
import torch, torch.multiprocessing as mp

def receive(inbox, outbox):
    torch.cuda.set_device(0)
    for tensor in iter(inbox.get, None):
        outbox.put((tensor.device.index, tensor.sum().item(), tensor.cpu().sum().item()))
        del tensor

if __name__ == "__main__":
    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=receive, args=(inbox, outbox))
    process.start()
    for device in (1, 0):
        tensor = torch.full((3 << 20,), device + 1, device=f"cuda:{device}", dtype=torch.int32)
        inbox.put(tensor)
        assert outbox.get(timeout=60) == (device, (device + 1) * (3 << 20), (device + 1) * (3 << 20))
    inbox.put(None)
    process.join()
    # Copies both ways, with peer access and by the form that needs none; frees while the other device is current.
    a = torch.arange(4 << 20, device="cuda:0")
    with torch.cuda.device(1):
        b = a.to("cuda:1")
        c = b.flip(0)
        del a
        back = c.to("cuda:0")
    assert torch.equal(back.cpu().flip(0), torch.arange(4 << 20))
    side = torch.cuda.Stream(device=1)
    b.record_stream(side)
    with torch.cuda.device(0):
        del b, c
    torch.cuda.synchronize(0); torch.cuda.synchronize(1)
    from dymem import _core
    assert _core.abi.pool(0).audit() == [] and _core.abi.pool(1).audit() == []
    print("fine")
"""


def test_two_devices(python, tmp_path):
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    assert "fine" in as_program(python, tmp_path, TWO_DEVICES).stdout
