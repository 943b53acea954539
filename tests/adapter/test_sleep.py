"""dymem.sleep() and dymem.wake() through PyTorch's allocator object, over the emulated driver with real bytes."""

import textwrap

import pytest

pytestmark = pytest.mark.torch

BLOCKS = """
import ctypes

def block(size, number, stream=0):
    data = _torch.allocate_on(size, stream=stream)
    ctypes.memset(data.address, number, size)
    return data, size, number

def intact(held):
    data, size, number = held
    return ctypes.string_at(data.address, size) == bytes([number]) * size

def physical():
    return _core.abi.driver(0).physical_in_use()
"""


@pytest.fixture
def sleeper(script):
    """Runs code with the functions above in it."""
    return lambda code, **more: script(BLOCKS + textwrap.dedent(code), **more)


def test_values_survive_and_the_device_has_its_memory_meanwhile(sleeper):
    sleeper("""
        held = [block(n, i + 1, i % 3) for i, n in enumerate((100, 70_000, MiB + 1, 5 * MiB, 9 * MiB, 300))]
        del held[2]
        gc.collect()
        held.append(block(4 * MiB, 99))
        addresses = [h[0].address for h in held]
        taken = physical()
        report = dymem.sleep()
        assert physical() == 0 and 0 < report.memory_bytes <= taken
        assert report.action == "sleep" and report.devices == (0,) and report.dropped_bytes == 0
        assert report.copied_bytes == dymem.memory_stats()["allocated_bytes.all.current"]
        assert dymem.memory_stats()["reserved_bytes.all.current"] == 0
        assert dymem.memory_stats()["asleep_bytes"] == report.memory_bytes
        assert "given back by GPU 0" in str(report) and "GB/s" in str(report)
        raises(RuntimeError, lambda: _torch.allocate_on(100), "asleep", "dymem.wake()")
        held.pop(0)  # a tensor that dies while its memory sleeps
        gc.collect()
        woken = dymem.wake()
        assert woken.action == "wake" and physical() == woken.memory_bytes == report.memory_bytes
        assert woken.gb_per_s > 0
        assert [h[0].address for h in held] == addresses[1:] and all(map(intact, held))
        assert _core.abi.pool(0).audit() == []
        assert dymem.memory_stats()["host_bytes"] > 0
        assert dymem.free_host_slabs() > 0 and dymem.memory_stats()["host_bytes"] == 0
    """)


def test_levels_and_tags_of_a_serving_engine(sleeper):
    sleeper("""
        with dymem.tagged("weights"):
            weights = [block(n * MiB, n) for n in (6, 3, 1)]
        with dymem.tagged("kv_cache"):
            cache = block(20 * MiB, 50)
            with dymem.tagged("weights"):
                weights.append(block(1000, 7))
        buffers = block(5000, 8)

        level1 = dymem.sleep(keep=("weights",))
        assert physical() == 0 and level1.dropped_bytes == 20 * MiB
        assert level1.copied_bytes == sum((s + 511) // 512 * 512 for _, s, _ in weights + [buffers])
        some = dymem.wake(tags=("weights",))
        assert some.memory_bytes < level1.memory_bytes and all(map(intact, weights)) and intact(buffers)
        fresh = block(2 * MiB, 77)  # room to load new weights before the cache comes back
        rest = dymem.wake("kv_cache")
        assert rest.copied_bytes == 0 and some.memory_bytes + rest.memory_bytes == level1.memory_bytes
        ctypes.memset(cache[0].address, 50, 20 * MiB)
        assert intact(cache) and intact(fresh)

        level2 = dymem.sleep(keep=())  # what has no tag is kept, as buffers must be
        assert level2.dropped_bytes == 20 * MiB + sum((s + 511) // 512 * 512 for _, s, _ in weights)
        dymem.wake()
        assert intact(buffers) and intact(fresh)

        nothing = dymem.sleep("drop")
        assert nothing.copied_bytes == 0
        assert dymem.sleep().memory_bytes == 0  # asleep already
        dymem.wake()
        assert dymem.wake().memory_bytes == 0

        half = dymem.sleep(tags="kv_cache", keep="drop")
        assert half.memory_bytes > 0 and half.dropped_bytes + half.stayed_bytes == 20 * MiB
        more = [block(3 * MiB, 11) for _ in range(3)]  # the rest of the process goes on
        assert all(map(intact, more))
        dymem.wake()
        assert _core.abi.pool(0).audit() == []
    """)


def test_what_is_refused_is_said_in_one_sentence(sleeper):
    sleeper("""
        assert dymem.sleep().devices == () and dymem.wake().memory_bytes == 0  # nothing was used yet
        with dymem.tagged("weights"):
            held = block(3 * MiB, 5)
        raises(dymem.InvalidArgument, lambda: dymem.sleep("hots"), "'host', 'drop'")
        raises(dymem.InvalidArgument, lambda: dymem.sleep(keep=("wieghts",)), "wieghts", "weights")
        raises(dymem.InvalidArgument, lambda: dymem.wake(tags=("x",)), "'x'")
        raises(dymem.InvalidArgument, lambda: dymem.sleep(device="cuda"), "device")
        raises(dymem.InvalidArgument, lambda: dymem.sleep(device=-1), "device")
        raises(dymem.InvalidArgument, lambda: dymem.tagged(3).__enter__(), "a tag is a name")
        _core.abi.driver(0).set_capturing(0, True)
        raises(dymem.SleepError, dymem.sleep, "captured")
        _core.abi.driver(0).set_capturing(0, False)
        assert dymem.sleep(device=torch.device("cuda", 0)).devices == (0,)
        raises(dymem.InvalidArgument, lambda: dymem.sleep(device=5), "no device 5")
        _core.abi.driver(0).take_memory(_core.abi.driver(0).memory()[0])
        error = raises(dymem.OutOfMemory, dymem.wake, "stays asleep", "call wake again")
        assert error.figures["device_free"] == 0
        _core.abi.driver(0).give_memory(_core.abi.driver(0).memory()[1])
        dymem.wake()
        assert intact(held)
    """)


def test_a_name_counts_once_something_was_allocated_under_it(sleeper):
    """Entering the block is not enough: sleep(keep=("weigths",)) would drop what is tagged "weights"."""
    sleeper("""
        def known(name):
            try:
                dymem.sleep(tags=(name,))
            except dymem.InvalidArgument as error:
                assert f"nothing was allocated under dymem.tagged('{name}')" in str(error)
                return False
            dymem.wake()
            return True
        with dymem.tagged("weights"):
            assert not known("weights")
            held = [block(3 * MiB, 5)]
            assert known("weights")  # while the block is still open
        with dymem.tagged("weigths"):
            pass
        raises(dymem.InvalidArgument, lambda: dymem.sleep(keep=("weigths",)), "the tags used are: weights")
        raises(dymem.InvalidArgument, lambda: dymem.wake(tags=("weigths",)), "weigths")
        assert intact(held[0])
        with dymem.tagged("outer"):
            held.append(block(MiB, 6))
            with dymem.tagged("only around another"):
                with dymem.tagged("inner"):
                    held.append(block(MiB, 7))
        assert known("outer") and known("inner") and not known("only around another")
        with dymem.tagged("frees only"):
            held.pop()[0].free()
        assert not known("frees only")
        try:
            with dymem.tagged("failed"):
                _torch.allocate_on(1 << 40)
        except torch.OutOfMemoryError:
            pass
        assert not known("failed")
        with dymem.tagged("gone"):
            _torch.allocate_on(5000).free()
        assert known("gone")  # what it named was freed since: still a name that was meant
        torch._C._cuda_resetAccumulatedMemoryStats(0)
        with dymem.tagged("counts reset"):
            held.append(block(MiB, 8))
            torch._C._cuda_resetAccumulatedMemoryStats(0)
        assert known("counts reset")
    """)


def test_a_contiguous_pool_says_why_not(sleeper):
    sleeper("""
        held = block(3 * MiB, 5)
        raises(dymem.SleepError, dymem.sleep, "backing:vmm")
        assert intact(held)
    """, conf="driver='emulated', emulated_capacity='512MiB', backing='contiguous'")


def test_several_devices_sleep_and_wake_together(sleeper):
    sleeper("""
        held = [_torch.allocate_on(3 * MiB, device=d) for d in (0, 2)]
        for data, number in zip(held, (3, 4)):
            ctypes.memset(data.address, number, 3 * MiB)
        report = dymem.sleep()
        assert report.devices == (0, 2) and report.copied_bytes == 6 * MiB
        assert dymem.wake(device=2).memory_bytes * 2 == report.memory_bytes
        # One that cannot sleep keeps the others awake.
        dymem.wake()
        _core.abi.driver(2).set_capturing(0, True)
        raises(dymem.SleepError, dymem.sleep, "captured")
        assert all(_core.abi.stats(d)["asleep_bytes"] == 0 for d in (0, 2))
        _core.abi.driver(2).set_capturing(0, False)
        assert [ctypes.string_at(d.address, 1) for d in held] == [b"\\3", b"\\4"]
    """, conf="driver='emulated', emulated_capacity='64MiB', emulated_devices=3")


def test_a_sleep_that_fails_undoes_what_it_did_and_no_more(sleeper):
    """Whichever device fails, and when: before anything changed (a pinned block), or half-way (the driver)."""
    sleeper("""
        with dymem.tagged("weights"):
            weights = _torch.allocate_on(32 * MiB, device=0)
        ctypes.memset(weights.address, 5, 32 * MiB)
        rest = _torch.allocate_on(32 * MiB, device=0)
        empty = _torch.allocate_on(4 * MiB, device=1)
        empty.free()
        last = _torch.allocate_on(4 * MiB, device=2)
        dymem.sleep(tags="weights", device=0)

        def figures():
            reserved = lambda d: _core.abi.pool(d).stats()["reserved_bytes"]["all"]["current"]
            return [(_core.abi.stats(d)["asleep_bytes"], reserved(d)) for d in (0, 2)]

        before = figures()
        _core.abi.pool(2).pin(last.address)
        raises(dymem.SleepError, dymem.sleep, "pinned")
        assert figures() == before
        _core.abi.pool(2).unpin(last.address)
        real = dymem.sleeping._pools

        class Fails:
            refuse_sleep = lambda self, **options: None

            def sleep(self, **options):
                raise dymem.DriverError("dymem: half-way")

        dymem.sleeping._pools = lambda device: [*real(device), (3, Fails())]
        raises(dymem.DriverError, dymem.sleep, "half-way")
        dymem.sleeping._pools = real
        assert figures() == before
        for device in (0, 1, 2):
            _torch.allocate_on(MiB, device=device).free()
        dymem.wake()
        assert ctypes.string_at(weights.address, 1) == b"\\5"
    """, conf="driver='emulated', emulated_capacity='256MiB', emulated_devices=3")
