"""`dymem compare --cap` with a script of the user's, on the card: who trains under which cap."""

import json

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.torch]

SCRIPT = """
import torch
net = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(6)]).cuda()
optimizer = torch.optim.Adam(net.parameters())
for step in range(8):
    net(torch.randn(4096, 2048, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_caps_of_a_script_are_kept_and_told(python, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    run = python("-m", "dymem", "compare", "--allocators", "native,dymem", "--cap", "0.5x,2x", "--json", tmp_path / "caps.json",
                 tmp_path / "train.py", timeout=300)
    assert run.returncode == 0, run.stderr
    content = json.loads((tmp_path / "caps.json").read_text())
    (row,) = content["workloads"]
    assert content["kind"] == "capped" and row["workload"] == "train.py" and row["live_peak_bytes"] > 300 << 20
    narrow, wide = row["caps"]
    for name in ("native", "dymem"):
        assert wide[name]["trains"] and wide[name]["kept_the_cap"] and wide[name]["ratio"] > 0, name
        assert narrow[name]["trains"] is False, name
        assert narrow[name]["reserved_peak_bytes"] <= narrow["limit_bytes"], name
    assert "out of memory" in run.stdout
