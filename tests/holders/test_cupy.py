"""dymem.cupy_allocator over the emulated driver, with a stand-in for CuPy; tests/gpu/test_cupy.py has the real one."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
BEGIN = f"""
import gc, sys
sys.path.insert(0, {str(HERE)!r})
import stand_in, cupy, dymem
from dymem import _core
MIB = 1 << 20
def held(device=0):
    return dymem.memory_stats(device)["held_bytes.cupy"]
cupy.cuda.set_allocator(dymem.cupy_allocator)
"""


@pytest.fixture
def script(python):
    def run(text, conf="driver:emulated,emulated_devices:2"):
        done = python("-c", BEGIN + text, env={"DYMEM_CONF": conf})
        assert done.returncode == 0 and done.stderr == "", done.stderr
        return done.stdout

    return run


def test_memory_lives_as_long_as_whoever_views_it(script):
    script("""
a = cupy.empty(3 * MIB)
assert held() == 3 * MIB and a.data.mem.size == 3 * MIB and a.data.ptr == a.data.mem.ptr
view = a.data.mem          # what a slice, or a consumer of DLPack, keeps
del a; gc.collect()
assert held() == 3 * MIB
del view; gc.collect()
assert held() == 0 and dymem.memory_stats()["allocated_bytes.all.current"] == 0
assert _core.abi.pool(0).audit() == []
""")


def test_an_empty_array_holds_nothing(script):
    script("""
a = cupy.empty(0)
assert a.data.ptr == 0 and dymem.memory_stats().get("held_bytes.cupy", 0) == 0
dymem.cupy_record_stream(a)
""")


def test_the_current_device_and_stream_are_cupys(script):
    script("""
cupy.cuda.device, cupy.cuda.Stream.current = 1, cupy.cuda.Stream(7)
a = cupy.empty(MIB)
assert held(1) == MIB and a.data.mem.device_id == 1
assert "held_bytes.cupy" not in dymem.memory_stats(0)
[block] = [b for b in _core.abi.pool(1).blocks() if b["state"] == "live"]
assert block["stream"] == 7
""")


def test_out_of_memory_is_cupys_own_with_dymems_sentence(script):
    script("""
kept = cupy.empty(20 * MIB)
try:
    cupy.empty(20 * MIB)
    raise AssertionError("it fitted")
except cupy.cuda.memory.OutOfMemoryError as error:
    assert "limit" in str(error) and str(error).count("\\n") == 0, str(error)
    assert isinstance(error.__cause__, dymem.OutOfMemory) and error.__cause__.figures["limit"] == 32 * MIB
assert held() == 20 * MIB
del kept; gc.collect()
cupy.empty(20 * MIB)       # the pool stays usable
""", conf="driver:emulated,limit:32MiB")


def test_work_on_another_stream_is_waited_for(script):
    script("""
a = cupy.empty(8 * MIB)
driver = _core.abi.driver(0)
driver.set_busy_until(7, driver.now() + 10**13)
dymem.cupy_record_stream(a)                        # the stream that is current: nothing more to wait for
dymem.cupy_record_stream(a, cupy.cuda.Stream(7))
del a; gc.collect()
stats = dymem.memory_stats()
assert stats["pending_bytes.current"] == 8 * MIB and stats["held_bytes.cupy"] == 0 == stats["held_bytes.torch"]
b = cupy.empty(8 * MIB)
del b; gc.collect()
assert dymem.memory_stats()["pending_bytes.current"] == 8 * MIB, "that of its own stream is reused at once"
class Foreign:
    size = 1
    data = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(512, 512, None, 0), 0)
try:
    dymem.cupy_record_stream(Foreign)
    raise AssertionError("it is not dymem's")
except dymem.InvalidArgument as error:
    assert "set_allocator" in str(error)
""")


def test_what_is_no_array_stream_or_size_gets_one_sentence(script):
    script("""
a = cupy.empty(MIB)
for call, word in ((lambda: dymem.cupy_record_stream(None), "NoneType is no array"),
                   (lambda: dymem.cupy_record_stream(b"bytes"), "bytes is no array"),
                   (lambda: dymem.cupy_record_stream(a, 7), "int is no stream"),
                   (lambda: dymem.cupy_allocator("5"), "no number of bytes"),
                   (lambda: dymem.cupy_allocator(-1), "no number of bytes")):
    try:
        call()
        raise AssertionError(word)
    except dymem.InvalidArgument as error:
        assert word in str(error) and "\\n" not in str(error), str(error)
""")


def test_memory_freed_while_the_process_ends(script):
    script("kept = cupy.empty(MIB); kept.itself = kept")


def test_a_release_that_fails_is_not_raised_by_a_destructor(script):
    script("""
a = cupy.empty(MIB)
owner = a.data.mem._owner
_core.abi.release(owner.address)                   # behind its back
owner.__del__()
del a, owner; gc.collect()
assert held() == 0 and _core.abi.pool(0).audit() == []
""")


def test_without_cupy_one_line_says_how_to_get_it(python):
    run = python("-c", "import sys; sys.modules['cupy'] = None; import dymem\n"
                 "try: dymem.cupy_allocator(1)\nexcept dymem.errors.MissingPackage as error: print(error)")
    assert run.returncode == 0 and "pip install cupy" in run.stdout and run.stdout.count("\n") == 1, run.stderr
