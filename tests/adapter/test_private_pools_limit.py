"""The limit covers our pool and the private pools that are forwarded to PyTorch's own allocator (a stand-in here); nobody
fails for bytes that a call has claimed and does not take. Every interleaving of the steps of calls, on a model:
tests/pool/test_pool_forwarded.py.
"""

import pytest

pytestmark = pytest.mark.torch

LIMITED = "driver='emulated', emulated_capacity='256MiB', limit='64MiB'"


def test_the_limit_covers_both(pools):
    pools("""
        _torch.begin_pool(GRAPH, stream=5)
        held = []
        def fill(stream):
            while True:
                held.append(_torch.allocate_on(4 * MiB, stream=stream))
        held += [_torch.allocate_on(4 * MiB, stream=5) for _ in range(8)]
        raises(torch.OutOfMemoryError, lambda: fill(6), "limit 64.0 MiB", "in private pools 32.0 MiB")
        total = lambda: own("reserved_bytes.all.current") + facts()["reserved"]
        assert 60 * MiB <= total() <= 64 * MiB
        assert facts()["cap"] <= 64 * MiB - own("reserved_bytes.all.current") + 20 * MiB
        raises(torch.OutOfMemoryError, lambda: fill(5), "in a private pool", "private pools hold", "limit 64.0 MiB")
        assert total() <= 64 * MiB
        # The other way round: what our pool holds the private pool cannot have, until it is idle.
        for data in held: data.free()
        held.clear()
        assert own("allocated_bytes.all.current") == 0 < own("reserved_bytes.all.current")
        held += [_torch.allocate_on(4 * MiB, stream=5) for _ in range(15)]  # trims our pool
        assert total() <= 64 * MiB and facts()["reserved"] >= 60 * MiB
        _torch.end_pool(GRAPH)
        assert stats()["num_ooms"] == 2, stats()["num_ooms"]
        torch._C._cuda_resetAccumulatedMemoryStats(0)  # one of each side: what has been is not forgotten by a profile
        assert stats()["num_ooms"] == 0 and _core.abi.stats(0)["num_ooms_before_reset"] == 2
        assert _core.abi.pool(0).audit() == []
    """, conf=LIMITED)


def test_what_a_call_claimed_and_did_not_take_is_not_taken_by_another(pools):
    pools("""
        _torch.begin_pool(GRAPH, stream=5)
        held = [_torch.allocate_on(4 * MiB, stream=5)]
        cached = _torch.allocate_on(2 * MiB, stream=5)
        ours = []
        def fill():
            while True:
                ours.append(_torch.allocate_on(4 * MiB, stream=6))
        raises(torch.OutOfMemoryError, fill)
        total = lambda: own("reserved_bytes.all.current") + facts()["reserved"]
        assert total() > 60 * MiB
        cached.free()
        def meanwhile():
            # The call in whose midst this is has found nothing to claim. Now there is room; another call claims it, and
            # is served from what is idle; then our pool takes the room.
            ours.pop().free()
            _core.abi.trim()
            held.append(_torch.allocate_on(2 * MiB, stream=5))
            raises(torch.OutOfMemoryError, fill)
        _torch.stand_in_before("malloc", lambda: apart(meanwhile))
        raises(torch.OutOfMemoryError, lambda: _torch.allocate_on(4 * MiB, stream=5))
        assert total() <= 64 * MiB, total() / MiB
        assert len(held) == 2
        _torch.end_pool(GRAPH)
        for data in held + ours: data.free()
        assert own("forwarded_bytes.current") == facts()["reserved"]
        assert _core.abi.pool(0).audit() == []
    """, conf=LIMITED)


def test_our_pool_gets_what_dead_pools_hold(pools):
    pools("""
        _torch.begin_pool(GRAPH, stream=5)
        held = [_torch.allocate_on(4 * MiB, stream=5) for _ in range(12)]
        _torch.end_pool(GRAPH)
        for data in held: data.free()
        raises(torch.OutOfMemoryError, lambda: _torch.allocate_on(40 * MiB))  # its graph still lives
        _torch.release_pool(GRAPH)
        data = _torch.allocate_on(40 * MiB)
        assert facts()["reserved"] == 0 and own("reserved_bytes.all.current") <= 64 * MiB
    """, conf=LIMITED)


def test_a_full_device_without_a_limit(pools):
    pools("""
        kept = _torch.allocate_on(48 * MiB)
        kept.free()
        _torch.begin_pool(GRAPH, stream=5)
        held = [_torch.allocate_on(8 * MiB, stream=5) for _ in range(6)]
        assert own("reserved_bytes.all.current") <= 16 * MiB and facts()["cap"] == -1
        raises(torch.OutOfMemoryError, lambda: [_torch.allocate_on(8 * MiB, stream=5) for _ in range(9)
                                                if held.append(_torch.allocate_on(8 * MiB, stream=5)) or True],
               "private pool", "limit none")
        _torch.end_pool(GRAPH)
        held.clear(); gc.collect()
        _torch.release_pool(GRAPH)
        _torch.allocate_on(60 * MiB).free()
    """)


def test_use_on_oom(pools):
    pools("""
        _torch.create_pool(OTHER)
        _torch.begin_pool(OTHER)
        spare = _torch.allocate_on(16 * MiB)
        _torch.end_pool(OTHER)
        at = spare.address
        spare.free()
        full = _torch.allocate_on(44 * MiB)
        raises(torch.OutOfMemoryError, lambda: _torch.allocate_on(16 * MiB))
        _torch.set_use_on_oom(OTHER, True)
        torch._C._cuda_resetAccumulatedMemoryStats(0)
        data = _torch.allocate_on(16 * MiB)
        assert data.address == at and data.has_deleter and stats()["num_ooms"] == 0
        raises(torch.OutOfMemoryError, lambda: _torch.allocate_on(16 * MiB))  # taken
        assert stats()["num_ooms"] == 1
        data.free()
        _torch.set_use_on_oom(OTHER, False)
        raises(torch.OutOfMemoryError, lambda: _torch.allocate_on(16 * MiB))
    """, conf=LIMITED)


def test_callbacks_and_observers_run_without_locks(pools):
    pools("""
        seen, freed = [], []
        _torch.attach_out_of_memory_observer(lambda *figures: seen.append(figures))
        kept = [_torch.allocate_on(4 * MiB) for _ in range(15)]
        def callback():  # runs under the other allocator's lock, and frees memory of ours and of its
            if not kept: return False
            data = kept.pop()
            freed.append(data.address)
            data.free()
            return True
        _torch.set_free_callback(callback)
        _torch.begin_pool(GRAPH, stream=5)
        a = _torch.allocate_on(4 * MiB, stream=5)
        kept.append(a); a_at = a.address
        b = _torch.allocate_on(4 * MiB, stream=5)
        assert a_at in freed and facts()["live"] == 1
        assert not seen
        kept.clear(); gc.collect()
        raises(torch.OutOfMemoryError, lambda: _torch.allocate_on(100 * MiB, stream=5))
        assert seen == [(0, 100 * MiB, 64 * MiB, seen[0][3])]
    """, conf=LIMITED)


def test_whichever_call_fails_nothing_is_lost(pools):
    pools("""
        def scenario():
            pool = (1, scenario.number)
            scenario.number += 1
            begun = False
            held = [_torch.allocate_on(MiB)]
            try:
                _torch.begin_pool(pool, stream=5)
                begun = True
                held += [_torch.allocate_on(MiB, stream=5) for _ in range(3)]
                held[-1].record_stream(4096)
                held.pop().free()
                state = _torch.checkpoint(pool)
            finally:
                try:
                    if begun: _torch.end_pool(pool)
                finally:
                    for data in held: data.free()
                    if begun: _torch.release_pool(pool)
                    _torch.empty_pool((0, 0))
        scenario.number = 1
        scenario()
        failures = 0
        for call in range(1, 40):
            _torch.stand_in_fail_call(call)
            try:
                scenario()
            except RuntimeError as error:
                assert "as it was told" in str(error) or "not currently" in str(error), error
                failures += 1
            _torch.stand_in_fail_call(0)
            assert own("allocation.all.current") == 0
            assert _core.abi.pool(0).audit() == []
        assert failures > 10
        scenario()
        # What the other allocator failed to free it keeps; beyond that nothing was left behind, and no claim.
        held = _torch.allocate_on(60 * MiB - facts()["reserved"])
    """, conf=LIMITED)


def test_threads_free_and_allocate_on_both_sides(pools):
    pools("""
        import random, threading
        shared, lock, errors = [], threading.Lock(), []
        def work(number):
            r = random.Random(number)
            pool = (1, 100 + number)
            try:
                for _ in range(30):
                    _torch.begin_pool(pool)
                    mine = [_torch.allocate_on(r.choice((1, 3)) * MiB // 4) for _ in range(r.randrange(6))]
                    _torch.end_pool(pool)
                    mine += [_torch.allocate_on(MiB // 2) for _ in range(r.randrange(3))]
                    with lock:
                        shared.extend(mine)
                        r.shuffle(shared)
                        taken, shared[:] = shared[:len(shared) // 2], shared[len(shared) // 2:]
                    for data in taken: data.free()
                    _torch.release_pool(pool)
                    stats()
                    figures = dymem.memory_stats()  # of one moment
                    total = figures["reserved_bytes.all.current"] + figures["forwarded_bytes.current"]
                    if total > 64 * MiB: errors.append(total)
            except torch.OutOfMemoryError:
                pass
            except BaseException as error:
                errors.append(error)
        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        [t.start() for t in threads]; [t.join() for t in threads]
        assert not errors, errors
        for data in shared: data.free()
        assert facts()["live"] == 0 == stats()["allocated_bytes.all.current"]
        assert own("forwarded_bytes.current") == facts()["reserved"]
        assert _core.abi.pool(0).audit() == []
    """, conf=LIMITED)


def test_the_first_call_at_a_limit_that_is_used_up_is_refused(pools):
    pools("""
        held = [_torch.allocate_on(4 * MiB) for _ in range(16)]
        _torch.begin_pool(GRAPH, stream=5)
        raises(torch.OutOfMemoryError, lambda: _torch.allocate_on(100 * MiB, stream=5))
        assert facts()["reserved"] == 0 == facts()["cap"]
    """, conf=LIMITED)


def test_a_limit_that_is_set_while_a_call_runs_without_one(pools):
    pools("""
        _torch.begin_pool(GRAPH, stream=5)
        ours = []
        def meanwhile():
            torch._C._cuda_setMemoryFraction(0.25, 0)  # 64 MiB
            raises(torch.OutOfMemoryError, lambda: [ours.append(_torch.allocate_on(4 * MiB, stream=6)) for _ in range(20)])
        _torch.stand_in_before("malloc", lambda: apart(meanwhile))
        captured = _torch.allocate_on(40 * MiB, stream=5)
        assert own("reserved_bytes.all.current") + facts()["reserved"] <= 64 * MiB
        ours.append(_torch.allocate_on(20 * MiB, stream=6))  # nothing is set aside any more
    """, conf="driver='emulated', emulated_capacity='256MiB'")


def test_what_a_call_took_stays_set_aside_until_figures_of_it_come(pools):
    pools("""
        _torch.begin_pool(GRAPH, stream=5)
        first = _torch.allocate_on(2 * MiB, stream=5)
        _torch.stand_in_before("malloc", lambda: _torch.stand_in_fail_call(2))  # the figures asked for after it
        captured = _torch.allocate_on(40 * MiB, stream=5)
        ours = []
        def fill():
            while True:
                ours.append(_torch.allocate_on(4 * MiB, stream=6))
        raises(torch.OutOfMemoryError, fill)
        assert own("reserved_bytes.all.current") + facts()["reserved"] <= 64 * MiB
        ours.clear()
        stats()
        assert own("forwarded_bytes.current") == facts()["reserved"] == 42 * MiB
        _core.abi.trim()
        ours.append(_torch.allocate_on(22 * MiB, stream=6))
    """, conf=LIMITED)


def test_what_a_call_claimed_and_never_told_of_comes_back_when_our_pool_is_short(pools):
    pools("""
        _torch.begin_pool(GRAPH, stream=5)
        _torch.stand_in_before("malloc", lambda: _torch.stand_in_fail_call(2))  # the figures asked for after it
        captured = _torch.allocate_on(2 * MiB, stream=5)  # claims 20
        data = _torch.allocate_on(60 * MiB, stream=6)
        assert facts()["reserved"] == 2 * MiB and own("reserved_bytes.all.current") == 60 * MiB
    """, conf=LIMITED)


# A call that claims 20 MiB, is slow, and is served from what is idle.
SLOW = """
import contextlib, threading, time
_torch.allocate_on(MiB, stream=5).free()  # the pool knows the stream
_core.abi.trim()
_torch.begin_pool(GRAPH, stream=5)
_torch.allocate_on(20 * MiB, stream=5).free()
captured = []
@contextlib.contextmanager
def a_call_under_way(seconds=None):  # None: until the block ends
    began, over = threading.Event(), threading.Event()
    def slow():
        began.set()
        over.wait(seconds)  # as PyTorch's own does for the GPU; needs the GIL to go on
    _torch.stand_in_before("malloc", slow)
    thread = threading.Thread(target=lambda: captured.append(_torch.allocate_on(20 * MiB, stream=5)))
    thread.start()
    began.wait()
    try:
        yield
    finally:
        if seconds is None:
            over.set()
        thread.join()
    assert facts()["reserved"] == 20 * MiB and len(captured) == 1
def shortest(tries):
    seconds = []
    for attempt in tries:
        began = time.monotonic()
        attempt()
        seconds.append(time.monotonic() - began)
    return min(seconds)
"""


@pytest.mark.parametrize("capturing", [False, True])
def test_our_pool_waits_for_a_call_that_claimed_more_than_it_takes(pools, capturing):
    pools(SLOW + f"""
_core.abi.driver(0).set_capturing(5, {capturing})
with a_call_under_way(0.3):
    data = _torch.allocate_on(40 * MiB, stream=6)
assert own("reserved_bytes.all.current") == 40 * MiB
_core.abi.driver(0).set_capturing(5, False)
""", conf=LIMITED)


def test_so_does_one_slab(pools):
    pools(SLOW + """
with a_call_under_way(0.3):
    data = _torch.allocate_on(40 * MiB, stream=6)
assert own("reserved_bytes.all.current") <= 44 * MiB
""", conf=LIMITED + ", backing='contiguous'")


def test_so_does_waking(pools):
    pools(SLOW + """
_torch.end_pool(GRAPH)
data = _torch.allocate_on(40 * MiB, stream=6)
dymem.sleep()
_torch.begin_pool(GRAPH, stream=5)
with a_call_under_way(0.3):
    dymem.wake()
assert own("reserved_bytes.all.current") == 40 * MiB
""", conf=LIMITED)


def test_with_the_gil_held_the_wait_is_short(pools):
    pools(SLOW + """
import ctypes
library = ctypes.PyDLL(str(__import__("pathlib").Path(_core.__file__).with_name("libdymem.so")))
library.dymem_last_error.restype = ctypes.c_char_p
address = ctypes.c_void_p()
def refused():
    assert library.dymem_hold(ctypes.byref(address), ctypes.c_size_t(40 * MiB), 0, None, b"me") == 1, library.dymem_last_error()
with a_call_under_way():
    assert shortest([refused] * 3) < 1.5  # two seconds where it is not held
""", conf=LIMITED)


def test_nobody_waits_for_claims_that_would_not_do(pools):
    pools(SLOW + """
def refused():  # 20 are held, whatever is claimed
    raises(torch.OutOfMemoryError, lambda: _torch.allocate_on(46 * MiB, stream=6))
with a_call_under_way():
    assert shortest([refused] * 3) < 1.5
""", conf=LIMITED)
