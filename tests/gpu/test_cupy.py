"""CuPy and PyTorch out of one pool on a card: contents, streams, frees, who holds what, one limit for both.

Each test is a script in a process of its own; dymem.install() comes first, then CuPy takes dymem's allocator.
"""

import importlib.util

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.torch,
              pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="needs cupy")]

BEGIN = """
import gc
import dymem
dymem.install(%s)
import cupy, torch
cupy.cuda.set_allocator(dymem.cupy_allocator)
MIB = 1 << 20
def held():
    gc.collect()
    stats = dymem.memory_stats()
    assert stats["held_bytes.torch"] + stats.get("held_bytes.cupy", 0) == stats["allocated_bytes.all.current"]
    return stats["held_bytes.torch"], stats.get("held_bytes.cupy", 0)
"""
END = """
from dymem import _core
torch.cuda.synchronize()
assert _core.abi.pool(0).audit() == []
print("ok")
"""


@pytest.fixture
def script(python):
    def run(text, keys=""):
        done = python("-c", BEGIN % keys + text + END)
        assert done.returncode == 0 and done.stdout.endswith("ok\n"), done.stdout + done.stderr
        assert "dymem" not in done.stderr, done.stderr  # nothing is complained of at exit either

    return run


def test_arrays_cross_both_ways_without_a_copy(script):
    script("""
a = cupy.arange(MIB, dtype=cupy.float32)
t = torch.from_dlpack(a)
assert t.data_ptr() == a.data.ptr and held() == (0, 4 * MIB)
t.mul_(2)
torch.cuda.synchronize()
assert int(a[12345]) == 24690
del a
assert held() == (0, 4 * MIB), "the tensor views it"
assert float(t[777]) == 1554
del t
assert held() == (0, 0)
u = torch.arange(MIB, dtype=torch.float32, device="cuda")
b = cupy.from_dlpack(u)
assert b.data.ptr == u.data_ptr() and held() == (4 * MIB, 0)
b += 1
cupy.cuda.Device().synchronize()
assert float(u[99]) == 100
del u
assert held() == (4 * MIB, 0)
assert int(b[5]) == 6
del b
assert held() == (0, 0)
""")


def test_what_one_frees_the_other_uses(script):
    script("""
torch.cuda.init()  # before, PyTorch answers zeros for all statistics
a = cupy.full(256 * MIB, 3, dtype=cupy.uint8)
reserved = torch.cuda.memory_reserved()
del a
t = torch.full((256 * MIB,), 5, dtype=torch.uint8, device="cuda")
assert torch.cuda.memory_reserved() == reserved, "the pool did not grow"
assert int(t.max()) == 5 == int(t.min())
del t
reserved = torch.cuda.memory_reserved()
b = cupy.zeros(256 * MIB, dtype=cupy.uint8)
assert torch.cuda.memory_reserved() == reserved and int(b.max()) == 0
""")


def test_cupys_current_stream_owns_the_block(script):
    """Freed on a stream that is busy, a block is not handed to another one."""
    script("""
from dymem import _core
side = cupy.cuda.Stream(non_blocking=True)
with side:
    a = cupy.zeros(48 * MIB, dtype=cupy.uint8)
    big = cupy.ones((4096, 4096), dtype=cupy.float32)
    [block] = [b for b in _core.abi.pool(0).blocks() if b["state"] == "live" and b["size"] == 48 * MIB]
    assert block["stream"] == side.ptr
    for _ in range(40):
        big = big @ big * 1e-4
    a += 1
    address = a.data.ptr
    del a                              # freed while the stream is busy
t = torch.full((48 * MIB,), 9, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
assert int(t.min()) == 9 == int(t.max()), "CuPy's late kernel wrote into it"
with side:
    b = cupy.zeros(48 * MIB, dtype=cupy.uint8)
side.synchronize()
assert int(t.min()) == 9
""")


def test_recorded_streams_are_waited_for(script):
    script("""
side = cupy.cuda.Stream(non_blocking=True)
wrong = 0
for k in range(20):
    a = cupy.full(32 * MIB, 1, dtype=cupy.uint8)
    cupy.cuda.get_current_stream().synchronize()
    with side:
        big = cupy.ones((4096, 4096), dtype=cupy.float32)
        for _ in range(10):
            big = big @ big * 1e-4
        total = a.sum(dtype=cupy.int64)  # reads `a` late
        dymem.cupy_record_stream(a)
    del a
    t = torch.full((32 * MIB,), 7, dtype=torch.uint8, device="cuda")
    side.synchronize()
    wrong += int(total) != 32 * MIB
    del t
assert wrong == 0
""")


def test_one_limit_for_both_and_cupys_own_error(script):
    script("""
kept = torch.zeros(600 * MIB, dtype=torch.uint8, device="cuda")
try:
    cupy.zeros(600 * MIB, dtype=cupy.uint8)
    raise AssertionError("it fitted")
except cupy.cuda.memory.OutOfMemoryError as error:
    assert "limit" in str(error) and isinstance(error.__cause__, dymem.OutOfMemory)
a = cupy.zeros(300 * MIB, dtype=cupy.uint8)
try:
    torch.zeros(300 * MIB, dtype=torch.uint8, device="cuda")
    raise AssertionError("it fitted")
except torch.OutOfMemoryError:
    pass
assert held() == (600 * MIB, 300 * MIB)
assert torch.cuda.max_memory_reserved() <= 1024 * MIB
""", keys='limit="1GiB"')


def test_cupys_libraries_work(script):
    """What allocates inside CuPy: matrix products, sorting, FFT plans with their workspace, empty arrays, views."""
    script("""
x = cupy.random.default_rng(1).random((512, 512))
assert cupy.allclose(x @ cupy.linalg.inv(x), cupy.eye(512), atol=1e-6)
assert cupy.allclose(cupy.fft.ifft2(cupy.fft.fft2(x)).real, x)
assert bool((cupy.diff(cupy.sort(x.ravel())) >= 0).all())
assert cupy.empty(0).size == 0 and float(x[::2, 1:].sum()) > 0
del x
cupy.fft.config.get_plan_cache().clear()
""")
