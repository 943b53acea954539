"""The adapter is tested through PyTorch itself, over the emulated driver.

install() is once per process, so each test runs a script in a process of its own (forked from one that has imported
torch and nothing else). All share one built adapter: the first build of the session is made by four processes at
once, as the ranks of a job would.
"""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for what the tests here share: snapshot_rules

PRELUDE = """
import gc, os, sys
import torch, dymem
from dymem import _core

MiB = 1 << 20

def raises(kind, call, *words):
    try:
        call()
    except kind as error:
        text = str(error)
        assert text.count("\\n") == 0, f"more than one line: {text}"
        for word in words:
            assert word in text, f"{word!r} is not in: {text}"
        return error
    raise AssertionError(f"{kind.__name__} was not raised")

def skip(why):
    print(f"skipped: {why}", flush=True)
    raise SystemExit
"""
INSTALL = """
dymem.install({conf})
from dymem import _torch
"""


def environment(cache: Path, **more: str) -> dict:
    clean = {key: value for key, value in os.environ.items()
             if not key.startswith(("DYMEM_", "PYTORCH_CUDA_ALLOC", "PYTORCH_ALLOC"))}
    return {**clean, "DYMEM_CACHE": str(cache), **more}


@pytest.fixture(scope="session")
def zygote():
    """A process with torch in it; see zygote.py."""
    process = subprocess.Popen([sys.executable, str(Path(__file__).parent / "zygote.py")], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True, env=environment(Path("/nonexistent")))
    yield process
    process.stdin.close()
    process.wait(timeout=60)


@pytest.fixture
def script(first_build, zygote, tmp_path):
    """Runs code in a Python of its own that has installed dymem (conf=None: has not) and returns what it printed."""

    def run(code: str, conf: str | None = "driver='emulated', emulated_capacity='64MiB'", cache=None, seconds: int = 300,
            **env: str):
        text = PRELUDE + (INSTALL.format(conf=conf) if conf is not None else "") + textwrap.dedent(code)
        out, err = tmp_path / "out", tmp_path / "err"
        request = {"code": text, "env": environment(cache or first_build.cache, **env), "out": str(out), "err": str(err),
                   "seconds": seconds}
        zygote.stdin.write(json.dumps(request) + "\n")
        zygote.stdin.flush()
        status = int(zygote.stdout.readline())
        assert status == 0, f"exit status {status}\n{out.read_text()}\n{err.read_text()}"
        if out.read_text().startswith("skipped: "):  # what the script asked of the machine is not here
            pytest.skip(out.read_text().removeprefix("skipped: ").strip())
        return SimpleNamespace(out=out.read_text(), err=err.read_text())

    return run


# Before scripts about private pools: a stand-in for PyTorch's own allocator, which they are forwarded to.
PRIVATE_POOLS = """
_torch.stand_in()
_torch.init()
GRAPH, OTHER = (1, 0), (0, 7)  # the ids of a graph's pool and of a MemPool
facts = _torch.stand_in_facts
own = lambda name: dymem.memory_stats()[name]
torch.cuda.memory.is_initialized = lambda: True  # memory_stats() answers {} before CUDA is initialised
def stats():
    return torch.cuda.memory_stats(0)
def apart(run):  # in a thread of its own, from beginning to end
    import threading
    thread = threading.Thread(target=run)
    thread.start(); thread.join()
"""


@pytest.fixture
def pools(script):
    def run(code, conf="driver='emulated', emulated_capacity='64MiB'", **env):
        return script(PRIVATE_POOLS + textwrap.dedent(code), conf=conf, **env)

    return run
