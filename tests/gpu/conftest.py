"""Scripts for the card, each in a process of its own: under dymem, or under PyTorch's own allocator."""

import pytest

NATIVE = """
import gc, json, os, sys, threading
import torch
MIB = 1 << 20
def skip(why):
    print(f"skipped: {why}", flush=True)
    sys.exit()
def standard(t):
    return torch._C._has_Standard_Deleter(t.untyped_storage()._cdata)
"""
DYMEM = """
import dymem; dymem.install()
""" + NATIVE + """
from dymem import _core
def holds():  # reserved by dymem's pool, and by PyTorch's allocator for private pools
    s = dymem.memory_stats()
    return s["reserved_bytes.all.current"], s["forwarded_bytes.current"]
def sound():
    torch.cuda.synchronize()
    assert _core.abi.pool(0).audit() == []
    assert torch.cuda.memory_reserved() == sum(holds())
"""


@pytest.fixture
def on_card(python):
    """Runs code after the lines above; returns the finished process."""

    def run(code, *arguments, native=False, **env):
        done = python("-c", (NATIVE if native else DYMEM) + code, *arguments, env=env)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        if done.stdout.startswith("skipped: "):
            pytest.skip(done.stdout.removeprefix("skipped: ").strip())
        return done

    return run
