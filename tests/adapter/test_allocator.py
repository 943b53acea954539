"""What PyTorch calls an allocator for: blocks, streams, statistics, limits, errors; through PyTorch's own functions where
they do not ask for a GPU first, else through the adapter object that PyTorch holds."""

import pytest

pytestmark = pytest.mark.torch


def test_blocks_come_and_go(script):
    script("""
        data = _torch.allocate_on(1000, stream=3)
        assert data.address % 512 == 0 and data.device == 0 and data.has_deleter
        info = _core.abi.pool(0).find(data.address)
        assert info["size"] == 1024 and info["requested"] == 1000 and info["stream"] == 3
        address = data.address
        del data
        gc.collect()
        assert _core.abi.pool(0).find(address) is None
        empty = _torch.allocate_on(0)
        assert empty.address == 0
        assert _torch.allocate(100).address != 0  # where PyTorch would put it: the current device and stream
        assert _core.abi.pool(0).audit() == []
    """)


def test_bytes_are_real_and_blocks_are_apart(script):
    script("""
        import ctypes
        held = [_torch.allocate_on(n, stream=n % 3) for n in (1, 511, 4096, 100_000, MiB + 1, 5 * MiB)]
        sizes = (1, 511, 4096, 100_000, MiB + 1, 5 * MiB)
        for i, (data, size) in enumerate(zip(held, sizes)):
            ctypes.memset(data.address, i + 1, size)
        for i, (data, size) in enumerate(zip(held, sizes)):
            assert ctypes.string_at(data.address, size) == bytes([i + 1]) * size
    """)


def test_raw_blocks(script):
    script("""
        address = _torch.raw_alloc(5000)
        assert _torch.base_allocation(address) == (address, 5120)
        assert _torch.base_allocation(address + 4999) == (address, 5120)
        other = _torch.raw_alloc_with_stream(5000, 42)
        assert _core.abi.pool(0).find(other)["stream"] == 42
        assert _torch.raw_alloc(0) == 0
        _torch.raw_delete(0)
        _torch.raw_delete(other)
        raises(RuntimeError, lambda: _torch.raw_delete(address + 512), "not the address of a block that is held")
        _torch.raw_delete(address)
        raises(RuntimeError, lambda: _torch.raw_delete(address), "freed already")
        raises(RuntimeError, lambda: _torch.raw_delete(12345), "another allocator")
        raises(RuntimeError, lambda: _torch.base_allocation(address), "no block that is held")
        assert _torch.raw_deleter() == _torch.raw_deleter() != 0
        assert dymem.memory_stats()["allocated_bytes.all.current"] == 0
    """)


def test_recorded_streams_hold_a_block_back(script):
    script("""
        data = _torch.allocate_on(3 * MiB, stream=1)
        driver = _core.abi.driver(0)
        driver.set_busy_until(2, driver.now() + 3600 * 10**9)  # an hour of work
        data.record_stream(2)
        address = data.address
        data.free()
        stats = torch._C._cuda_memoryStats(0)
        assert stats["allocated_bytes"]["all"]["current"] == 0
        assert stats["active_bytes"]["all"]["current"] == 3 * MiB
        assert dymem.memory_stats()["pending_bytes.current"] == 3 * MiB
        assert _torch.allocate_on(3 * MiB, stream=1).address != address
        _torch.allocate_on(0).record_stream(2)  # an empty tensor: nothing to hold
        assert _core.abi.pool(0).audit() == []
    """)


def test_several_devices(script):
    script("""
        first, second = _torch.allocate_on(3 * MiB, device=0), _torch.allocate_on(5 * MiB, device=1)
        assert (first.device, second.device) == (0, 1)
        used = lambda device: torch._C._cuda_memoryStats(device)["allocated_bytes"]["all"]["current"]
        assert (used(0), used(1)) == (3 * MiB, 5 * MiB)
        second.record_stream(9)
        second.free()
        assert (used(0), used(1)) == (3 * MiB, 0)
        first.free()
        assert (used(0), used(1)) == (0, 0)
        raises(RuntimeError, lambda: _torch.raw_delete(4096), "not the address")
        raises(RuntimeError, lambda: _torch.allocate_on(1, device=2), "no device 2", "0 to 1")
        raises(RuntimeError, lambda: _torch.allocate_on(1, device=-1), "no device -1")
    """, conf="driver='emulated', emulated_devices=2, emulated_capacity='64MiB'")


def test_statistics_have_pytorchs_names_and_the_right_values(script):
    script("""
        def stats():
            return torch._C._cuda_memoryStats(0)
        kinds = ("allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes", "active_bytes",
                 "inactive_split_bytes", "requested_bytes")
        zero = stats()
        assert all(zero[kind][pool][what] == 0 for kind in kinds for pool in ("all", "small_pool", "large_pool")
                   for what in ("current", "peak", "allocated", "freed"))
        small, large = _torch.allocate_on(1000), _torch.allocate_on(3 * MiB)
        now = stats()
        assert now["allocated_bytes"]["all"]["current"] == 1024 + 3 * MiB
        assert now["allocated_bytes"]["small_pool"]["current"] == 1024
        assert now["allocated_bytes"]["large_pool"]["current"] == 3 * MiB
        assert now["requested_bytes"]["all"]["current"] == 1000 + 3 * MiB
        assert now["allocation"]["all"]["current"] == now["active"]["all"]["current"] == 2
        assert now["active_bytes"]["all"]["current"] == 1024 + 3 * MiB
        assert now["reserved_bytes"]["all"]["current"] == _core.abi.driver(0).physical_in_use() >= 1024 + 3 * MiB
        assert now["segment"]["all"]["current"] >= 1 and now["num_device_alloc"] >= 1
        assert now["oversize_allocations"]["current"] == now["oversize_segments"]["allocated"] == 0
        assert now["max_split_size"] == -1 and now["num_ooms"] == 0 and now["num_alloc_retries"] == 0
        large.free()
        now = stats()["allocated_bytes"]["all"]
        assert (now["current"], now["peak"], now["freed"]) == (1024, 1024 + 3 * MiB, 3 * MiB)
        torch.cuda.reset_peak_memory_stats(0)
        assert stats()["allocated_bytes"]["all"]["peak"] == 1024
        torch.cuda.reset_accumulated_memory_stats(0)
        assert stats()["allocated_bytes"]["all"]["freed"] == 0
        # PyTorch's reports, computed from these; they ask first whether CUDA is in use.
        torch.cuda.memory.is_initialized = lambda: True
        assert torch.cuda.memory_allocated(0) == 1024 == torch.cuda.max_memory_allocated(0)
        assert torch.cuda.memory_reserved(0) == stats()["reserved_bytes"]["all"]["current"]
        flat = torch.cuda.memory_stats(0)
        ours = dymem.memory_stats()
        for key in ours.keys() & flat.keys() - {"max_split_size"}:
            assert ours[key] == flat[key], key
        missing = {key for key in flat if not key.startswith("oversize") and key not in ours}
        assert missing <= {"num_oom_rejections"}, missing
        assert "Allocated memory" in torch.cuda.memory_summary(0) and "1024 B" in torch.cuda.memory_summary(0)
        raises(RuntimeError, lambda: torch._C._cuda_memoryStats(100), "no device 100")
    """)


def test_torch_accelerator_asks_the_same_allocator(script):
    script("""
        data = _torch.allocate_on(3 * MiB)
        assert not torch._C._accelerator_isAllocatorInitialized()
        _torch.init()
        assert torch._C._accelerator_isAllocatorInitialized()
        assert torch._C._accelerator_getDeviceStats(0)["allocated_bytes"]["all"]["current"] == 3 * MiB
        data.free()
        torch._C._accelerator_resetPeakStats(0)
        assert torch._C._accelerator_getDeviceStats(0)["allocated_bytes"]["all"]["peak"] == 0
        torch._C._accelerator_resetAccumulatedStats(0)
        assert torch._C._accelerator_getDeviceStats(0)["allocated_bytes"]["all"]["freed"] == 0
        torch._C._accelerator_emptyCache()
        assert torch._C._accelerator_getDeviceStats(0)["reserved_bytes"]["all"]["current"] == 0
    """)


def test_slabs_through_pytorch(script):
    """The contiguous backing: reserved is how far up the slab was used, and a second slab is told of in one line."""
    run = script("""
        def figures():
            stats, pool = torch._C._cuda_memoryStats(0), _core.abi.pool(0).stats()
            return stats["reserved_bytes"]["all"]["current"], stats["segment"]["all"]["current"], pool["slab_bytes"]["current"]

        first = _torch.allocate_on(60 * MiB)
        assert figures() == (60 * MiB, 1, 72 * MiB)
        second = _torch.allocate_on(20 * MiB)
        assert figures() == (80 * MiB, 2, 92 * MiB)
        del second
        gc.collect()
        torch._C._cuda_emptyCache()
        assert figures() == (60 * MiB, 1, 72 * MiB)
        del first
        gc.collect()
        torch._C._cuda_emptyCache()
        assert figures() == (0, 0, 0) and _core.abi.pool(0).audit() == []
    """, conf="driver='emulated', emulated_capacity='96MiB', backing='contiguous', limit=None")
    assert run.err.count("\n") == 1 and run.err.startswith("dymem: 1 contiguous slab")


def test_empty_cache_gives_idle_memory_back(script):
    script("""
        held, idle = _torch.allocate_on(1000), _torch.allocate_on(20 * MiB)
        idle.free()
        assert _core.abi.driver(0).physical_in_use() >= 20 * MiB
        torch._C._cuda_emptyCache()
        assert 0 < _core.abi.driver(0).physical_in_use() < 20 * MiB
        held.free()
        torch._C._cuda_emptyCache()
        assert _core.abi.driver(0).physical_in_use() == 0
        assert torch._C._cuda_memoryStats(0)["num_device_free"] >= 2
    """)


def test_a_fraction_is_a_limit_and_the_error_has_the_figures(script):
    script("""
        torch._C._cuda_setMemoryFraction(0.5, 0)
        assert torch._C._cuda_getMemoryFraction(0) == 0.5 and _core.abi.pool(0).limit() == 32 * MiB
        held = _torch.allocate_on(20 * MiB)
        error = raises(torch.OutOfMemoryError, lambda: _torch.allocate_on(20 * MiB), "CUDA out of memory (dymem)",
                       "Tried to allocate 20.0 MiB on GPU 0", "live 20.0 MiB", "limit 32.0 MiB", "smaller batch")
        assert isinstance(error, RuntimeError)
        assert torch._C._cuda_memoryStats(0)["num_ooms"] == 1
        held.free()
        assert _torch.allocate_on(20 * MiB).address  # the pool stays usable
        torch._C._cuda_setMemoryFraction(1.0, 0)
        assert _core.abi.pool(0).limit() == 48 * MiB  # the configured limit stays
        raises((RuntimeError, ValueError), lambda: torch._C._cuda_setMemoryFraction(1.5, 0))
        raises(RuntimeError, lambda: torch._C._cuda_setMemoryFraction(0.5, 100), "no device 100")
        assert _core.abi.pool(0).audit() == []
    """, conf="driver='emulated', emulated_capacity='64MiB', limit='48MiB'")


def test_no_size_is_too_strange(script):
    script("""
        held = []
        for size in (1, 65 * MiB, 1 << 40, 1 << 46, (1 << 46) + 1, 1 << 60, (1 << 63) - 1, 1 << 63, (1 << 64) - 1):
            try:
                held.append(_torch.allocate_on(size))
            except torch.OutOfMemoryError as error:
                assert "dymem" in str(error)
        assert len(held) == 1
        assert _core.abi.pool(0).audit() == []
    """)


def test_observers_hear_of_every_failure(script):
    script("""
        heard = []
        _torch.attach_out_of_memory_observer(lambda *figures: heard.append(figures))
        # An observer may allocate and ask for statistics: no lock is held.
        _torch.attach_out_of_memory_observer(lambda *figures: (_torch.allocate_on(1), dymem.memory_stats()))
        raises(torch.OutOfMemoryError, lambda: _torch.allocate_on(100 * MiB))
        assert heard == [(0, 100 * MiB, 64 * MiB, 64 * MiB)], heard
        torch._C._cuda_setMemoryFraction(0.25, 0)
        raises(torch.OutOfMemoryError, lambda: _torch.allocate_on(50 * MiB))
        assert heard[1][:3] == (0, 50 * MiB, 16 * MiB), heard
    """)


def test_free_memory_callbacks_run_before_failing(script):
    script("""
        cache = [_torch.allocate_on(30 * MiB)]
        calls = []
        def let_go():
            calls.append(len(cache))
            had = bool(cache)
            cache.clear()
            return had
        _torch.set_free_callback(let_go)
        assert _torch.allocate_on(50 * MiB).address
        assert calls and calls[0] == 1
        assert torch._C._cuda_memoryStats(0)["num_ooms"] == 0
        del calls[:]
        raises(torch.OutOfMemoryError, lambda: _torch.allocate_on(100 * MiB))
    """)


def test_cudnn_is_told_what_it_can_have(script):
    script("""
        assert _torch.cache_info(0, 7) == 7  # no pool yet: none is made for a question with an answer
        data = _torch.allocate_on(30 * MiB)
        assert 30 * MiB <= _torch.cache_info(0) <= 34 * MiB  # what the device could still give
        data.free()
        assert 30 * MiB <= _torch.cache_info(0, 1) < 40 * MiB  # the largest block that lies ready
        torch._C._cuda_setMemoryFraction(0.5, 0)
        assert 30 * MiB <= _torch.cache_info(0) <= 32 * MiB
    """)


def test_the_profiler_sees_memory(script):
    script("""
        from torch.profiler import profile, ProfilerActivity, record_function
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            with record_function("here"):
                data = _torch.allocate_on(3 * MiB)
                data.free()
                held = _torch.allocate_on(5 * MiB)
        rows = {row.key: row for row in profiler.key_averages()}
        memory = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
        assert sorted(event.nbytes() for event in memory if event.device_type() == torch.autograd.DeviceType.CUDA) == \\
            [-3 * MiB, 3 * MiB, 5 * MiB]
    """)


def test_many_threads(script):
    script("""
        import random, threading
        failures = []
        def work(seed):
            rng, held = random.Random(seed), []
            try:
                for _ in range(400):
                    if held and rng.random() < 0.5:
                        data = held.pop(rng.randrange(len(held)))
                        if rng.random() < 0.2:
                            data.record_stream(rng.randrange(4))
                        data.free()
                    else:
                        held.append(_torch.allocate_on(rng.choice((100, 5000, 300_000)), stream=seed))
            except BaseException as error:
                failures.append(error)
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert not failures, failures
        gc.collect()
        assert dymem.memory_stats()["allocated_bytes.all.current"] == 0
        assert _core.abi.pool(0).audit() == []
    """)


def test_it_is_on_for_good(script):
    script("""
        _torch.enable(True)
        raises(RuntimeError, lambda: _torch.enable(False), "cannot be switched off")
    """)
