"""Private pools (CUDA graphs, MemPool) are forwarded to PyTorch's own allocator; here a stand-in takes its place, which
serves memory of the host and hangs when it is called under a lock of dymem's. Calls go through PyTorch's entry points.
The limit over both: test_private_pools_limit.py.
"""

import pytest

pytestmark = pytest.mark.torch


def test_the_filter_decides_who_is_forwarded(pools):
    pools("""
        before = _torch.allocate_on(MiB, stream=5)
        assert facts().get("malloc", 0) == 0
        _torch.begin_pool(GRAPH, stream=5)
        captured, eager = _torch.allocate_on(MiB, stream=5), _torch.allocate_on(MiB, stream=6)
        assert facts()["malloc"] == 1 and facts()["live"] == 1
        assert own("allocation.all.current") == 2
        _torch.end_pool(GRAPH)
        after = _torch.allocate_on(MiB, stream=5)
        assert facts()["malloc"] == 1 and own("allocation.all.current") == 3
        # a MemPool: this thread's allocations, on any stream; the other thread's go on
        _torch.begin_pool(OTHER)
        elsewhere = []
        apart(lambda: elsewhere.append(_torch.allocate_on(MiB)))
        mine = [_torch.allocate_on(MiB, stream=s) for s in (0, 5, 6)]
        assert facts()["malloc"] == 4 and own("allocation.all.current") == 4
        _torch.end_pool(OTHER)
        assert facts()["open"] == 0
        for data in (before, captured, eager, after, *mine, *elsewhere):
            assert data.has_deleter
            data.free()
        assert facts()["live"] == 0 and own("allocation.all.current") == 0
        assert _core.abi.pool(0).audit() == []
    """)


def test_nested_pools_and_two_devices(pools):
    pools("""
        _torch.begin_pool(GRAPH)
        _torch.begin_pool(OTHER)  # the latest wins
        raises(RuntimeError, lambda: _torch.begin_pool(OTHER), "already recording")
        inner = _torch.allocate_on(MiB)
        _torch.end_pool(OTHER)
        outer = _torch.allocate_on(MiB)
        # Another device has no open pool: nothing of it is forwarded.
        there = _torch.allocate_on(MiB, device=1)
        assert facts()["malloc"] == 2 and dymem.memory_stats(1)["allocation.all.current"] == 1
        _torch.end_pool(GRAPH)
        raises(RuntimeError, lambda: _torch.end_pool(GRAPH), "not currently recording")
        assert _torch.segments_of_pool(OTHER) == 1 and _torch.segments_of_pool(GRAPH) == 1
        assert _torch.check_live(OTHER, [inner.address]) and not _torch.check_live(OTHER, [])
    """, conf="driver='emulated', emulated_capacity='64MiB', emulated_devices=2")


def test_snapshots_and_histories_cover_both(pools):
    """What was asked of the history before the first private pool reaches the other allocator with it."""
    pools("""
        _torch.record_history(True)
        ours = _torch.allocate_on(MiB)
        assert facts().get("history", 0) == 0 and len(torch._C._cuda_memorySnapshot(None)["segments"]) == 1
        _torch.begin_pool(GRAPH)
        theirs = [_torch.allocate_on(MiB) for _ in range(3)]
        _torch.end_pool(GRAPH)
        assert facts()["history"] == 1 and len(torch._C._cuda_memorySnapshot(None)["segments"]) == 1 + 3
        _torch.record_history(False)
        assert facts()["history"] == 2
    """)


def test_addresses_tell_whose_they_are(pools):
    pools("""
        ours = _torch.allocate_on(MiB)
        _torch.begin_pool(OTHER)
        theirs = _torch.allocate_on(3 * MiB)
        raw = _torch.raw_alloc(MiB)
        _torch.end_pool(OTHER)
        assert _torch.base_allocation(theirs.address) == (theirs.address, 4 * MiB)
        assert _torch.base_allocation(ours.address)[0] == ours.address
        theirs.record_stream(4096)
        assert _torch.stand_in_streams_of(theirs.address) == {4096}
        ours.record_stream(4096)
        _torch.raw_delete(raw)
        raises(RuntimeError, lambda: _torch.raw_delete(raw), "freed already")
        address = theirs.address
        apart(theirs.free)  # by another thread, with no pool open
        raises(RuntimeError, lambda: _torch.raw_delete(address), "freed already")
        raises(RuntimeError, lambda: _torch.base_allocation(address))
        assert facts()["live"] == 0
    """)


def test_use_counts_and_pools_that_were_never_made(pools):
    pools("""
        _torch.release_pool(OTHER)  # destructors of pools that could not be made
        _torch.create_pool(OTHER)
        _torch.set_no_split(OTHER)
        assert _torch.use_count(OTHER) == 1
        _torch.begin_pool(OTHER)
        assert _torch.use_count(OTHER) == 2
        data = _torch.allocate_on(MiB)
        _torch.end_pool(OTHER)
        _torch.release_pool(OTHER)
        data.free()
        _torch.empty_pool(OTHER)  # still used: nothing goes
        assert facts()["reserved"] == 2 * MiB
        _torch.release_pool(OTHER)
        _torch.empty_pool(OTHER)
        assert facts()["reserved"] == 0 == own("forwarded_bytes.current")
    """)


def test_without_a_gpu_or_a_stand_in_it_says_so(script):
    script("""
        for call in (lambda: _torch.begin_pool((1, 0)), lambda: _torch.create_pool((1, 0)),
                     lambda: _torch.set_use_on_oom((1, 0), True), lambda: _torch.checkpoint((1, 0))):
            raises(NotImplementedError, call, "private pools", "GPU", "emulated")
        _torch.release_pool((1, 0))
        assert _torch.use_count((1, 0)) == 0
        _torch.attach_tracker()
        assert _torch.allocate_on(MiB).has_deleter
    """)


def test_a_checkpoint_is_restored_with_the_one_deleter(pools):
    pools("""
        _torch.begin_pool(GRAPH)
        kept, dropped = _torch.allocate_on(MiB), _torch.allocate_on(MiB)
        state = _torch.checkpoint(GRAPH)
        later = _torch.allocate_on(5 * MiB)
        _torch.end_pool(GRAPH)
        addresses = {kept.address, dropped.address, later.address}
        dropped_at = dropped.address
        dropped.free()
        freed, made, ours = _torch.restore(state)
        assert set(freed) == addresses - {dropped_at}
        assert set(made) == {kept.address, dropped_at} and ours
        assert _torch.check_live(GRAPH, made)
        # What came back is freed by address; what the restoring freed is not held any more.
        _torch.raw_delete(dropped_at)
        raises(RuntimeError, lambda: _torch.raw_delete(later.address), "freed already")
        kept.free()
        assert facts()["live"] == 0 == own("forwarded_live_bytes.current")
    """)


def test_frees_by_another_thread_while_a_checkpoint_is_restored_are_not_lost(pools):
    """From when the other allocator has restored it, what was held and is again may be freed; ours learns of it later."""
    pools("""
        import threading
        for turn in range(12):
            pool = (turn + 2, 0)
            _torch.begin_pool(pool)
            kept = sorted((_torch.allocate_on(MiB) for _ in range(600)), key=lambda data: data.address)
            state = _torch.checkpoint(pool)
            _torch.end_pool(pool)
            before = facts()["live"] - len(kept)
            other = threading.Thread(target=lambda: _torch.restore(state))
            other.start()
            while facts().get("restore", 0) <= turn:
                pass
            for data in kept:
                data.free()
            other.join()
            assert facts()["live"] == before and own("forwarded_live_bytes.current") == before * MiB
    """, conf="driver='emulated', emulated_capacity='64GiB'")


def test_what_another_thread_is_handed_while_a_checkpoint_is_restored_stays_its_own(pools):
    """At addresses that the restoring has just freed, before ours has learnt that it did."""
    pools("""
        import threading
        reused = 0
        for turn in range(3):
            pool = (turn + 2, 0)
            _torch.begin_pool(pool)
            kept = [_torch.allocate_on(512) for _ in range(3000)]  # ours is busy for a while with these
            state = _torch.checkpoint(pool)
            later = {_torch.raw_alloc(512) for _ in range(50)}
            before = facts()["live"] - len(later)
            other = threading.Thread(target=lambda: _torch.restore(state))
            other.start()
            while facts().get("restore", 0) <= turn:
                pass
            handed = [_torch.raw_alloc(512) for _ in range(20)]
            other.join()
            _torch.end_pool(pool)
            reused += len(later & set(handed))
            assert facts()["live"] == before + len(handed)
            for address in handed:
                _torch.raw_delete(address)
            assert facts()["live"] == before and own("forwarded_live_bytes.current") == before * 512
        assert reused, "nothing was handed out again: this tests nothing"
    """, conf="driver='emulated', emulated_capacity='64GiB'")


def test_statistics_of_both_with_their_joint_peak(pools):
    pools("""
        eager = [_torch.allocate_on(8 * MiB)]
        _torch.begin_pool(GRAPH, stream=5)
        a = _torch.allocate_on(4 * MiB, stream=5)
        eager.append(_torch.allocate_on(8 * MiB))
        s = stats()
        assert s["allocated_bytes.all.current"] == 20 * MiB and s["allocation.all.current"] == 3
        assert s["reserved_bytes.all.current"] == own("reserved_bytes.all.current") + 4 * MiB
        assert s["allocated_bytes.all.peak"] == 20 * MiB
        # Peaks that never were at the same time are not added: ours falls, then theirs rises.
        eager.clear(); gc.collect()
        b = _torch.allocate_on(6 * MiB, stream=5)
        assert stats()["allocated_bytes.all.peak"] == 20 * MiB
        assert own("allocated_bytes.all.peak") == 16 * MiB  # of our pool alone
        # In between, with nobody looking: ours rises again while theirs is 10 MiB.
        _torch.allocate_on(12 * MiB).free()
        assert stats()["allocated_bytes.all.peak"] == 22 * MiB
        a.free(); b.free()
        _torch.end_pool(GRAPH)
        s = stats()
        assert s["allocated_bytes.all.peak"] == 22 * MiB and s["allocated_bytes.all.current"] == 0
        assert s["allocated_bytes.all.allocated"] == s["allocated_bytes.all.freed"] == 38 * MiB
        torch._C._cuda_resetPeakMemoryStats(0); torch._C._cuda_resetAccumulatedMemoryStats(0)
        s = stats()
        assert s["allocated_bytes.all.peak"] == 0 == s["allocated_bytes.all.allocated"]
        assert s["reserved_bytes.all.peak"] == s["reserved_bytes.all.current"] > 0
        _torch.allocate_on(MiB).free()
        assert stats()["allocated_bytes.all.peak"] == MiB == stats()["allocated_bytes.all.freed"]
        assert own("forwarded_bytes.current") == facts()["reserved"] == 10 * MiB
        assert f"{stats()['reserved_bytes.all.current'] // 1024} KiB" in torch.cuda.memory_summary(0)
    """)


def test_the_fraction_caps_both_and_can_change(pools):
    pools("""
        torch._C._cuda_setMemoryFraction(0.25, 0)
        _torch.begin_pool(GRAPH, stream=5)
        held = [_torch.allocate_on(4 * MiB, stream=5) for _ in range(10)]
        assert 0 < facts()["cap"] <= 64 * MiB
        raises(torch.OutOfMemoryError, lambda: _torch.allocate_on(28 * MiB, stream=6))
        torch._C._cuda_setMemoryFraction(1.0, 0)
        held.append(_torch.allocate_on(28 * MiB, stream=6))
        held += [_torch.allocate_on(4 * MiB, stream=5) for _ in range(10)]
        assert facts()["cap"] == -1
    """, conf="driver='emulated', emulated_capacity='256MiB'")


def test_a_source_that_is_dymem_itself_is_no_source(pools):
    pools("""
        _torch.create_pool(OTHER, from_dymem=True)
        _torch.begin_pool(OTHER)
        data = _torch.allocate_on(MiB)
        _torch.end_pool(OTHER)
        assert own("allocation.all.current") == 0 and facts()["live"] == 1
        data.free()
    """)


def test_a_forked_child_frees_nothing(pools):
    pools("""
        _torch.begin_pool(GRAPH)
        data = _torch.allocate_on(MiB)
        _torch.end_pool(GRAPH)
        child = os.fork()
        if child == 0:
            data.free()
            _torch.release_pool(GRAPH)
            os._exit(0 if facts()["live"] == 1 else 3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        data.free()
        assert facts()["live"] == 0
    """)


def test_figures_from_before_a_reset_do_not_count(pools):
    # Another thread may reset the totals between the moment when the other allocator says what it holds and the moment
    # when dymem books that: such figures look newer than all that come later.
    pools("""
        _torch.begin_pool(OTHER)
        for _ in range(20):
            _torch.allocate_on(MiB).free()
        _torch.stand_in_reset_during_stats()
        first = _torch.allocate_on(MiB)
        second = _torch.allocate_on(20 * MiB)
        assert own("forwarded_bytes.current") == facts()["reserved"] > 20 * MiB
        assert own("forwarded_live_bytes.current") == 21 * MiB
        _torch.end_pool(OTHER)
        second.free()
        assert own("forwarded_live_bytes.current") == MiB == stats()["allocated_bytes.all.current"]
    """)


def test_peaks_from_before_a_reset_do_not_come_back(pools):
    pools("""
        def use():
            _torch.begin_pool(OTHER)
            _torch.allocate_on(40 * MiB).free()
            _torch.empty_pool((0, 0))
        use()
        # Another thread resets the peaks between the moment when the other says what it holds and when dymem books that.
        _torch.stand_in_reset_during_stats(peaks=True)
        _torch.end_pool(OTHER)
        assert stats()["allocated_bytes.all.current"] == 0 == stats()["allocated_bytes.all.peak"]
        use()
        _torch.end_pool(OTHER)
        assert stats()["allocated_bytes.all.peak"] == 40 * MiB
    """)


def test_settings_that_waited_for_the_other_allocator_do_not_overtake_later_ones(pools):
    pools("""
        _torch.record_history(True)  # the other has not started: it is told later
        def off():
            apart(lambda: _torch.record_history(False))
            seen.append(facts().get("history", 0))
        seen = []
        _torch.stand_in_before("history", off)  # in the midst of the first
        _torch.begin_pool(GRAPH, stream=5)
        assert seen == [0] and facts()["history"] == 2 and facts()["recording"] == 0, (seen, facts())
    """)


def test_settings_reach_an_allocator_that_has_started(pools):
    pools("""
        _torch.begin_pool(GRAPH, stream=5)  # nothing had waited for it
        _torch.record_history(True)
        _torch.attach_tracker()
        assert facts()["history"] == 1 == facts()["tracker"] == facts()["recording"]
    """)


def test_a_setting_that_fails_when_the_allocator_starts_keeps_no_other_from_it(pools):
    pools("""
        _torch.record_history(True)
        _torch.attach_tracker()
        _torch.stand_in_before("history", lambda: _torch.stand_in_fail_call(1))
        raises(RuntimeError, lambda: _torch.begin_pool(GRAPH, stream=5), "as it was told")
        assert facts()["tracker"] == 1
        _torch.record_history(True)
        assert facts()["history"] == 2 and facts()["recording"] == 1
    """)


def test_a_capture_on_a_stream_that_the_pool_never_saw_is_seen(pools):
    # What is allocated on a captured stream is forwarded, so the pool has no work there. Threads that do not go into the
    # relaxed mode (CuPy, programs in C, sleeping, trimming) shall leave CUDA alone all the same.
    pools("""
        pool, driver = _core.abi.pool(0), _core.abi.driver(0)
        _core.abi.pool(0).free(pool.malloc(8 * MiB, 5))
        reserved = pool.stats()["reserved_bytes"]["all"]["current"]
        driver.set_capturing(0, True)
        _torch.begin_pool(GRAPH, stream=0)
        calls = driver.counters()["unmap"]
        assert pool.trim() == 0 and driver.counters()["unmap"] == calls
        raises(dymem.errors.InvalidArgument, lambda: pool.malloc(30 * MiB, 5), "being captured")
        pool.free(pool.malloc(8 * MiB, 5))  # what needs no call is served
        eager = _torch.allocate_on(30 * MiB, stream=5)  # the adapter's threads may map
        eager.free()
        _torch.end_pool(GRAPH)
        driver.set_capturing(0, False)
        assert pool.trim() >= reserved and pool.audit() == []
    """)
