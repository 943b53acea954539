"""What only a card can show: aliases under real caches and engines, and PyTorch's work under dymem."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
pytestmark = pytest.mark.gpu


def last_json(done: subprocess.CompletedProcess) -> dict:
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_aliased_granules_are_one_piece_of_memory(root, tmp_path):
    done = subprocess.run(["sh", str(root / "bench" / "probe_gpu.sh"), str(tmp_path), "500"], capture_output=True,
                          text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    cases = json.loads((tmp_path / "coherence.json").read_text())["cases"]
    required = [case for case in cases if case["required"]]
    assert len(required) >= 30
    assert [case["case"] for case in required if case["failed_trials"]] == []


@pytest.mark.torch
@pytest.mark.parametrize("conf", ["", "alias:off"], ids=["aliases", "alias=off"])
def test_random_tensors_on_three_streams_keep_their_numbers(python, conf):
    result = last_json(python(HERE / "patterns.py", 3000, 1, env={"DYMEM_CONF": conf} if conf else {}))
    assert result["wrong"] == 0
    assert result["allocated_bytes"] == result["held_bytes"]
    assert result["audit"] == []
    if not conf:
        assert result["stitched"] > 0, "the test must reach stitched blocks to mean anything"


@pytest.mark.torch
@pytest.mark.parametrize("workload", ["resnet32_stochdepth", "unet_b16"])
def test_losses_equal_natives_bit_for_bit(python, root, workload):
    results = {allocator: last_json(python(root / "bench" / "train.py", workload, "--allocator", allocator,
                                           "--deterministic", "--iterations", 6))
               for allocator in ("native", "dymem")}
    assert results["dymem"]["backend"] == "dymem" and results["native"]["backend"] == "native"
    assert results["dymem"]["losses"] == results["native"]["losses"]
    assert len(set(results["native"]["losses"])) > 1
    # The same work holds the same bytes, however they are laid out.
    assert results["dymem"]["live_peak_bytes"] == pytest.approx(results["native"]["live_peak_bytes"], rel=0.01)


OUT_OF_MEMORY = """
import dymem; dymem.install()
import torch
kept = torch.full((64 << 20,), 7, dtype=torch.uint8, device="cuda")
try:
    torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    print("no error")
except torch.OutOfMemoryError as error:
    print(type(error).__name__, str(error).replace("\\n", " "))
again = torch.full((32 << 20,), 3, dtype=torch.uint8, device="cuda")
print(bool((kept == 7).all()), bool((again == 3).all()))
print(torch.cuda.max_memory_reserved() <= 256 << 20)
"""


@pytest.mark.torch
def test_the_limit_raises_pytorchs_error_and_the_pool_goes_on(python):
    done = python("-c", OUT_OF_MEMORY, env={"DYMEM_CONF": "limit:256MiB"})
    assert done.returncode == 0, done.stderr[-3000:]
    sentence, intact, within = done.stdout.strip().splitlines()[-3:]
    assert sentence.startswith("OutOfMemoryError") and "1.00 GiB" in sentence and "256" in sentence
    assert intact == "True True"
    assert within == "True"
