"""What stays PyTorch's own under dymem on a card: pinned host memory, its statistics and settings, and the runtime's word
on the device's memory."""

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.torch]

SCRIPT = """
import sys, warnings
warnings.filterwarnings("error", message="dymem")
if sys.argv[1] == "dymem":
    import dymem; dymem.install()
import torch
host = torch.full((64 << 20,), 3, dtype=torch.uint8).pin_memory()
assert host.is_pinned()
device = host.to("cuda", non_blocking=True)
back = torch.empty(64 << 20, dtype=torch.uint8, pin_memory=True)
back.copy_(device, non_blocking=True)
torch.cuda.synchronize()
assert int(back.sum(dtype=torch.int64)) == 3 * (64 << 20)
stats = torch.cuda.host_memory_stats()
print(stats["allocated_bytes.current"], stats["allocated_bytes.peak"], stats["num_host_alloc"])
torch.cuda.reset_peak_host_memory_stats()
free, total = torch.cuda.mem_get_info()
assert 0 < free <= total - torch.cuda.memory_reserved()
"""


@pytest.mark.parametrize("conf", ["", "pinned_use_cuda_host_register:True,pinned_num_register_threads:4"],
                         ids=["defaults", "registered"])
def test_pinned_memory_and_its_settings_are_pytorchs(python, conf):
    env = {"PYTORCH_CUDA_ALLOC_CONF": conf} if conf else {}
    native, ours = (python("-c", SCRIPT, name, env=env) for name in ("native", "dymem"))
    assert native.returncode == 0 and ours.returncode == 0, native.stderr + ours.stderr
    assert ours.stdout == native.stdout and ours.stdout.split()[0] == str(2 * (64 << 20))
