"""Snapshots: every byte in one segment, whatever was done before; PyTorch's tools and dymem's own readers digest them."""

import pytest

from snapshot_rules import ruled  # noqa: F401  a fixture

pytestmark = pytest.mark.torch

# Random use of the adapter: sizes from bytes to half of the device, streams that finish late, record_stream, trim,
# running out. `check` is called in the middle, at random.
RANDOM = """
import random
_torch.record_history(True)
draw = random.Random(SEED)
held, stitched, outs = [], 0, 0
sizes = [512, 5000, 70_000, 900_000, 2 * MiB + 5, 9 * MiB, 17 * MiB, 31 * MiB, 60 * MiB]
_torch.allocate_on(1, stream=0).free()
driver = _core.abi.driver(0)
for step in range(STEPS):
    act = draw.random()
    if act < 0.5 or not held:
        try:
            held.append(_torch.allocate_on(draw.choice(sizes) + draw.randrange(64), stream=draw.choice((0, 0, 3))))
        except torch.OutOfMemoryError:
            outs += 1
            for data in [held.pop(draw.randrange(len(held))) for _ in range(len(held) // 2)]:
                data.free()
    elif act < 0.93:
        data = held.pop(draw.randrange(len(held)))
        if draw.random() < 0.2:
            driver.set_busy_until(7, driver.now() + draw.choice((10_000, 3_000_000)))
            data.record_stream(7)
        data.free()
    elif act < 0.95:
        dymem.empty_cache()
    if draw.random() < 0.04:
        snap = snapshot()
        check(snap)
        stitched += len(_core.abi.pool(0).segments()) and sum(s["stitched"] for s in _core.abi.pool(0).segments())
snap = snapshot()
mapped = check(snap)
made = [e for e in snap["device_traces"][0] if e["action"] == "oom"]
assert len(made) == outs == torch._C._cuda_memoryStats(0)["num_ooms"], (len(made), outs)
assert _core.abi.pool(0).audit() == []
print(stitched, outs, len(snap["device_traces"][0]))
"""


@pytest.mark.parametrize("conf", ["", ", backing='contiguous'", ", alias=False", ", debug=True"])
@pytest.mark.parametrize("seed", [1, 2])
def test_every_byte_is_told_once(ruled, seed, conf):
    run = ruled(RANDOM.replace("SEED", str(seed)).replace("STEPS", "400" if "debug" not in conf else "200"),
                 conf=f"driver='emulated', emulated_capacity='256MiB'{conf}")
    stitched, outs, entries = map(int, run.out.split())
    assert entries > 300
    if conf == "":
        assert stitched > 0, "the case is there to see stitched blocks"
    assert outs > 0 or "debug" in conf


def test_a_stitched_block_is_a_segment_of_its_own(ruled):
    ruled("""
        _torch.record_history(True)
        held = [_torch.allocate_on(n * MiB) for n in (9, 30, 9, 30, 9)]
        held[1].free(), held[3].free()
        big = _torch.allocate_on(58 * MiB)
        snap = snapshot()
        check(snap)
        own, = [s for s in snap["segments"] if s["address"] == big.address]
        assert own["total_size"] == 58 * MiB and [b["state"] for b in own["blocks"]] == ["active_allocated"]
        assert _core.abi.pool(0).find(big.address)["stitched"], "it was not stitched: the case shows nothing"
        moves = [(e["action"], e["size"]) for e in snap["device_traces"][0] if e["action"].startswith("segment")]
        last = len(moves) - 1 - [m[0] for m in moves][::-1].index("segment_map")
        assert moves[last] == ("segment_map", 58 * MiB)
        lent = sum(size for action, size in moves if action == "segment_unmap")
        assert lent == 58 * MiB
        big.free()
        after = snapshot()
        check(after)
        assert own["address"] not in [s["address"] for s in after["segments"]]
        moved = [e for e in after["device_traces"][0] if e["action"].startswith("segment")]
        net = sum(e["size"] if e["action"] == "segment_map" else -e["size"] for e in moved)
        assert net == dymem.memory_stats()["reserved_bytes.all.current"]
        import io, contextlib
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            _memory_viz.compare(snap["segments"], after["segments"], lambda text: text)
        assert str(own["address"]) in told.getvalue()
    """, conf="driver='emulated', emulated_capacity='256MiB'")


def test_pending_blocks_say_so(ruled):
    ruled("""
        _torch.record_history(True)
        data = _torch.allocate_on(3 * MiB, stream=1)
        driver = _core.abi.driver(0)
        done = driver.now() + 3600 * 10**9  # long enough for any machine to look meanwhile
        driver.set_busy_until(2, done)
        data.record_stream(2)
        data.free()
        snap = snapshot()
        check(snap)
        block, = blocks_of(snap).values()
        assert block["state"] == "active_pending_free" and block["size"] == 3 * MiB
        assert [a for a, *_ in actions(snap)] == ["alloc", "free_requested"]
        driver.advance_to(done)
        _torch.allocate_on(60 * MiB).free()
        snap = snapshot()
        check(snap)
        assert [a for a, at, n in actions(snap) if n == 3 * MiB] == ["alloc", "free_requested", "free_completed"]
    """)


def test_sleeping_blocks_keep_their_place(ruled):
    ruled("""
        _torch.record_history(True)
        held = [_torch.allocate_on(9 * MiB), _torch.allocate_on(30 * MiB), _torch.allocate_on(700)]
        before = [(s["address"], s["total_size"]) for s in snapshot()["segments"]]
        dymem.sleep()
        snap = snapshot()
        check(snap)
        assert dymem.memory_stats()["reserved_bytes.all.current"] == 0 and dymem.memory_stats()["asleep_bytes"]
        assert [(s["address"], s["total_size"]) for s in snap["segments"]] == before
        assert sorted(b["requested_size"] for b in blocks_of(snap).values()) == [700, 9 * MiB, 30 * MiB]
        held.pop(1).free()  # its granules sleep: they go when the rest wakes
        check(snapshot())
        dymem.wake()
        check(snapshot())
    """, conf="driver='emulated', emulated_capacity='256MiB'")


def test_before_the_first_allocation_there_is_nothing(ruled):
    ruled("""
        snap = snapshot()
        assert snap["segments"] == [] and not any(snap["device_traces"])
        assert not _core.abi.made(0), "asking makes no pool"
        settings = snap["allocator_settings"]
        assert settings["expandable_segments"] is False and "backend:dymem" in settings["PYTORCH_CUDA_ALLOC_CONF"]
        assert "driver:emulated" in settings["PYTORCH_CUDA_ALLOC_CONF"]
        one = _torch.allocate_on(5)
        snap = snapshot()
        check_sums(snap)
        assert not any(snap["device_traces"]), "history is off"
        assert _memory_viz.segsum(snap)
    """)


def test_several_devices(ruled):
    ruled("""
        _torch.record_history(True)
        first, second = _torch.allocate_on(3 * MiB, device=0), _torch.allocate_on(5 * MiB, device=1)
        snap = snapshot()
        assert {s["device"] for s in snap["segments"]} == {0, 1} and len(snap["device_traces"]) == 2
        for device, size in ((0, 3 * MiB), (1, 5 * MiB)):
            check_sums(snap, device)
            check_playback(snap, device)
            assert [n for a, at, n in actions(snap, device)] == [size]
        check_viz(snap)
    """, conf="driver='emulated', emulated_capacity='64MiB', emulated_devices=2")


def test_a_private_pool_has_none_of_ours(ruled):
    ruled("""
        held = _torch.allocate_on(3 * MiB)
        assert torch._C._cuda_memorySnapshot((0, 7))["segments"] == []
    """)


def test_it_can_be_read_replayed_and_drawn(ruled, tmp_path):
    """Record under dymem, dump, read with dymem's own reader: the same live peak, and reserved as it was."""
    ruled(f"""
        import pickle, random
        from pathlib import Path
        from dymem.trace.load import load
        draw, held = random.Random(7), []
        for _ in range(20):  # what is older than the recording
            held.append(_torch.allocate_on(draw.choice((700, 3 * MiB, 9 * MiB))))
        old = dymem.memory_stats()["requested_bytes.all.current"]
        _torch.record_history(True)
        start = dymem.memory_stats()["reserved_bytes.all.current"]
        live = peak = 0
        sizes = {{}}
        reserved_peak = start
        for step in range(1500):
            if len(held) > 4 and draw.random() < 0.5:
                data = held.pop(draw.randrange(len(held)))
                live -= sizes.pop(data.address, 0)
                data.free()
            else:
                size = draw.choice((700, 5000, 900_000, 3 * MiB, 9 * MiB, 31 * MiB))
                try:
                    data = _torch.allocate_on(size)
                except torch.OutOfMemoryError:
                    continue
                sizes[data.address] = -(-size // 512) * 512
                live += sizes[data.address]
                held.append(data)
            peak = max(peak, live)
            reserved_peak = max(reserved_peak, dymem.memory_stats()["reserved_bytes.all.current"])
        snap = snapshot()
        check(snap)
        path = Path({str(tmp_path)!r}) / "own.pickle"
        path.write_bytes(pickle.dumps(snap))
        recording, = load(path, layout=True)
        assert recording.ignored_frees > 0
        result = _core.replay(recording.events, {{}})
        assert result["live_peak_bytes"] == peak, (result["live_peak_bytes"], peak)
        assert result["oom"] is None and result["native_reserved_peak_bytes"] == reserved_peak
        from dymem.plotting.layout import layout_of
        layout = layout_of(recording)
        assert layout.live.max() == peak and layout.reserved.max() == reserved_peak
        assert layout.reserved[-1] == dymem.memory_stats()["reserved_bytes.all.current"]
    """, conf="driver='emulated', emulated_capacity='160MiB'")
    assert (tmp_path / "own.pickle").exists()


def test_snapshots_while_others_allocate(ruled):
    """Segments and entries are of one moment, so playing back holds whatever runs beside."""
    ruled("""
        import random, threading
        _torch.record_history(True, "alloc", 2_000)
        _torch.allocate_on(600).free()  # the device has a trace, whenever the threads begin
        stop, failures = threading.Event(), []
        def work(seed):
            draw, held = random.Random(seed), []
            try:
                while not stop.is_set():
                    if len(held) > 12 or (held and draw.random() < 0.4):
                        held.pop(draw.randrange(len(held))).free()
                    else:
                        try:
                            held.append(_torch.allocate_on(draw.choice((600, 90_000, 3 * MiB, 13 * MiB)), stream=seed))
                        except torch.OutOfMemoryError:
                            held.clear()
            except BaseException as error:
                failures.append(error)
        threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2, 3)]
        [t.start() for t in threads]
        for _ in range(12):
            snap = snapshot()
            snap["device_traces"][0] = snap["device_traces"][0][-400:]
            check_playback(snap)
        stop.set()
        [t.join() for t in threads]
        assert not failures, failures
        gc.collect()
        check(snapshot())
        assert _core.abi.pool(0).audit() == []
    """, conf="driver='emulated', emulated_capacity='160MiB'")
