"""Memory history: what entries say, whose frames they carry, what switching does, who else listens."""

import os
import shutil
import subprocess
import sys

import pytest

from snapshot_rules import ruled  # noqa: F401  a fixture

pytestmark = pytest.mark.torch


def test_entries_follow_what_is_done(ruled):
    ruled("""
        import time
        assert not _torch.is_history_enabled()
        before = _torch.allocate_on(700)
        _torch.record_history(True)
        assert _torch.is_history_enabled()
        began = time.time() * 1e6
        data = _torch.allocate_on(5000, stream=9)
        at, old = data.address, before.address
        data.free(), before.free()
        snap = snapshot()
        assert actions(snap) == [("alloc", at, 5000), ("free_requested", at, 5000), ("free_completed", at, 5000),
                                 ("free_requested", old, 700), ("free_completed", old, 700)]
        entries = snap["device_traces"][0]
        assert entries[-1]["action"] == "snapshot" and {e["stream"] for e in entries if e["addr"] == at} == {9}
        times = [e["time_us"] for e in entries]
        assert times == sorted(times) and abs(times[0] - began) < 60e6
        check(snap)
    """)


def test_the_first_granule_of_a_device_is_told(ruled):
    ruled("""
        _torch.record_history(True)
        _torch.allocate_on(5000)
        assert [e["action"] for e in snapshot()["device_traces"][0]] == ["segment_map", "alloc", "free_requested",
                                                                         "free_completed", "snapshot"]
    """)


FRAMES = """
def maker(n): return _torch.allocate_on(n)
def dropper(data): data.free()
def run(context):
    _torch.record_history(True, context, clear=True)
    kept, gone = maker(5 * MiB), maker(700)
    dropper(gone)
    snap = snapshot()
    check(snap)
    by = {e["action"]: names(e) for e in snap["device_traces"][0] if e["size"] == 700}
    return (names(blocks_of(snap)[kept.address]), by["alloc"], by["free_requested"], by["free_completed"],
            _torch.frames_of(kept.address + 12345))
"""


@pytest.mark.parametrize("context, block, alloc, freed", [
    ("all", "maker", "maker", "dropper"), ("alloc", "maker", "maker", "maker"), ("state", "maker", None, None),
    ("", None, None, None)])
def test_whose_frames_are_kept(ruled, context, block, alloc, freed):
    ruled(FRAMES, f"""
        found = run({context!r})
        for frames, wanted in zip(found, ({block!r}, {alloc!r}, {freed!r}, {freed!r}, {block!r})):
            assert (wanted in (frames or [])) if wanted else not frames, (found, wanted)
    """)


def test_switching_off_clears_and_on_again_goes_on(ruled):
    ruled(FRAMES, """
        kept = run("all")
        _torch.record_history(False)
        assert not _torch.is_history_enabled()
        one = maker(900)
        snap = snapshot()
        assert not any(snap["device_traces"]) and not names(blocks_of(snap)[one.address])
        _torch.record_history(True)
        two = maker(1300)
        one.free()
        snap = snapshot()
        check(snap)
        assert [a for a, *_ in actions(snap)] == ["alloc", "free_requested", "free_completed"]
        _torch.record_history(True)  # on already: goes on
        assert len(snapshot()["device_traces"][0]) > len(snap["device_traces"][0])
        _torch.record_history(True, clear=True)
        assert [e["action"] for e in snapshot()["device_traces"][0]] == ["snapshot"]
        assert "maker" in names(blocks_of(snapshot())[two.address]), "who holds what is not cleared"
    """)


@pytest.mark.parametrize("most", [1, 2, 7, 100])
def test_the_youngest_entries_are_kept(ruled, most):
    ruled(f"""
        _torch.record_history(True, "all", {most})
        held = [_torch.allocate_on(512 * (n + 1)) for n in range(150)]
        snap = snapshot()
        entries = snap["device_traces"][0]
        assert len(entries) == {most} and entries[-1]["action"] == "snapshot"
        sizes = [e["size"] for e in entries if e["action"] == "alloc"]
        assert sizes == [512 * (n + 1) for n in range(150)][-len(sizes):] if sizes else {most} == 1
        check(snap)
        assert all(names(b) for b in blocks_of(snap).values()), "a live block's frames do not depend on the ring"
        _torch.record_history(True, "all", 3)
        assert len(snapshot()["device_traces"][0]) <= 3
    """)


def test_actions_can_be_left_out(ruled):
    ruled("""
        _torch.record_history(True, skip_actions=["free_requested", "segment_map", "snapshot"])
        data = _torch.allocate_on(5000)
        data.free()
        snap = snapshot()
        assert [e["action"] for e in snap["device_traces"][0]] == ["alloc", "free_completed"]
        assert [s["total_size"] for s in snap["segments"]] == [2 * MiB]
        raises(RuntimeError, lambda: _torch.record_history(True, skip_actions=["nonsense"]), "no action", "nonsense")
        assert _torch.is_history_enabled()
    """)


def test_running_out_is_told(ruled):
    ruled("""
        _torch.record_history(True)
        heard, held = [], _torch.allocate_on(20 * MiB)
        _torch.attach_out_of_memory_observer(lambda *figures: heard.append((figures, len(snapshot()["device_traces"][0]))))
        def failing(): _torch.allocate_on(500 * MiB)
        raises(torch.OutOfMemoryError, failing, "CUDA out of memory (dymem)")
        snap = snapshot()
        entry, = [e for e in snap["device_traces"][0] if e["action"] == "oom"]
        assert entry["size"] == 500 * MiB and entry["device_free"] == heard[0][0][3] and "failing" in names(entry)
        assert heard[0][0][:3] == (0, 500 * MiB, 64 * MiB) and torch._C._cuda_memoryStats(0)["num_ooms"] == 1
        check(snap)
    """)


def test_metadata_and_compile_contexts_are_written_onto_entries(ruled):
    ruled("""
        import threading
        _torch.record_history(True)
        def one(n): _torch.allocate_on(n).free()
        one(512)
        _torch.set_metadata("3:F")
        assert _torch.get_metadata() == "3:F"
        _torch.push_compile_context("0/1")
        _torch.push_compile_context("1/0")
        one(1024)
        thread = threading.Thread(target=one, args=(1536,))
        thread.start(), thread.join()
        _torch.pop_compile_context()
        one(2048)
        _torch.pop_compile_context(), _torch.pop_compile_context()
        _torch.set_metadata("")
        one(2560)
        told = {e["size"]: (e["user_metadata"], e["compile_context"]) for e in snapshot()["device_traces"][0]
                if e["action"] == "alloc"}
        of_thread = "" if hasattr(torch._C, "_cuda_memoryMetadataSupported") else "3:F"
        assert told == {512: ("", "N/A"), 1024: ("3:F", "1/0"), 1536: (of_thread, "N/A"), 2048: ("3:F", "0/1"),
                        2560: ("", "N/A")}, told
    """)


def test_annotations(ruled):
    ruled("""
        _torch.record_annotation([("name", "before")])  # history is off: nothing to write onto
        _torch.record_history(True)
        _torch.record_annotation([("name", "step"), ("stage", "START")])
        data = _torch.allocate_on(5000)
        _torch.annotate_memory(data.address + 100, "packed")
        _torch.annotate_memory(12345, "nobody's")
        snap = snapshot()
        check_sums(snap)
        annotation, = snap["external_annotations"]
        assert annotation["name"] == "step" and annotation["stage"] == "START" and annotation["device"] == 0
        told = [e for e in snap["device_traces"][0] if e["action"] == "annotate"]
        if hasattr(torch._C, "_cuda_annotateMemory"):
            assert [(e["addr"], e["user_metadata"]) for e in told] == [(data.address, "packed")]
            assert torch._C._cuda_memoryMetadataSupported()
            from dymem.trace.snapshot import device_traces
            assert len(device_traces(snap)) == 1  # dymem's reader knows the action
        else:
            assert not told
    """)


def test_frames_that_cannot_be_gathered_fail_nothing(ruled):
    ruled("""
        _torch.record_history(True, failing=True)
        held = [_torch.allocate_on(5000) for _ in range(3)]
        held.pop().free()
        snap = snapshot()
        check(snap)
        assert not any(names(e) for e in snap["device_traces"][0])
    """)


def test_trackers_hear_of_everything_without_a_lock(ruled):
    ruled("""
        first = _torch.allocate_on(3 * MiB)
        heard = []
        def tracker(action, device, address, size):
            heard.append((action, device, address, size))
            dymem.memory_stats(), snapshot()  # takes the pool's lock, and the interpreter's
            if action == "alloc" and size == 5000:
                _torch.allocate_on(6000).free()  # and may allocate
        _torch.attach_trace_tracker(tracker)
        assert not _torch.is_history_enabled() and not any(snapshot()["device_traces"])
        data = _torch.allocate_on(5000)
        data.free()
        kinds = [h[0] for h in heard]
        assert kinds == ["segment_map", "alloc", "alloc", "free_requested", "free_completed", "free_requested",
                         "free_completed"], kinds
        assert heard[0][3] == 2 * MiB and heard[1][2:] == (data.address or heard[1][2], 5000)
        raises(torch.OutOfMemoryError, lambda: _torch.allocate_on(500 * MiB))
        assert heard[-1][0] == "oom" and heard[-1][3] == 500 * MiB
    """)


def test_trackers_hear_of_what_others_hold_before_they_have_it(ruled):
    ruled("""
        import threading
        heard = []
        _torch.attach_trace_tracker(lambda action, device, address, size: heard.append((action, address)))
        def beside():  # a thread that never calls PyTorch
            address = _core.abi.hold(3 * MiB, 0, 0, "cupy")
            kinds.append([action for action, at in heard])
            assert heard[-1] == ("alloc", address)
            _core.abi.release(address)
            kinds.append([action for action, at in heard])
        kinds = []
        thread = threading.Thread(target=beside)
        thread.start(); thread.join()
        assert kinds[0][-1] == "alloc" and kinds[0].count("segment_map") == len(kinds[0]) - 1 > 0, kinds
        assert kinds[1] == kinds[0] + ["free_requested", "free_completed"], kinds
    """)


def test_what_a_tracker_registered_stays_where_it_is(ruled):
    ruled("""
        early = [_torch.allocate_on(n * MiB) for n in (9, 30, 9, 30, 9)]
        mapped = {}
        def tracker(action, device, address, size):
            if action == "segment_map": mapped[address] = size
            assert action not in ("segment_unmap", "segment_free"), "nothing registered may go"
        _torch.attach_trace_tracker(tracker)
        # NCCL registers what is there already from a snapshot.
        there = sum(s["total_size"] for s in snapshot()["segments"])
        early[1].free(), early[3].free()
        big = _torch.allocate_on(58 * MiB)
        assert not _core.abi.pool(0).find(big.address)["stitched"], "registered memory was stitched"
        big.free()
        assert dymem.empty_cache() == 0
        torch._C._cuda_emptyCache()
        assert there + sum(mapped.values()) == dymem.memory_stats()["reserved_bytes.all.current"]
        assert _core.abi.pool(0).audit() == []
    """, conf="driver='emulated', emulated_capacity='256MiB'")


def test_a_failing_tracker_keeps_no_block_from_anyone(ruled):
    run = ruled("""
        def tracker(*entry): raise ValueError("not today")
        _torch.attach_trace_tracker(tracker)
        for _ in range(20):
            _torch.allocate_on(5000).free()
        assert dymem.memory_stats()["allocated_bytes.all.current"] == 0
    """)
    assert 1 <= run.err.count("trace tracker failed") <= 3 and "not today" in run.err


def test_beside_a_trace_of_ours(ruled, tmp_path):
    """trace:on and history hear the same pool; switching history on and off leaves the trace whole."""
    ruled(f"""
        before = _torch.allocate_on(3 * MiB)
        _torch.record_history(True)
        during = [_torch.allocate_on(n * MiB) for n in (1, 2)]
        before.free()
        assert [n // MiB for a, at, n in actions(snapshot()) if a == "alloc"] == [1, 2]
        _torch.record_history(False)
        during.pop().free()
        after = _torch.allocate_on(4 * MiB)
        dymem.save_trace({str(tmp_path / "own.trace")!r})
        from dymem.trace.load import load
        recording, = load({str(tmp_path / "own.trace")!r})
        from dymem.trace.snapshot import EVENT
        events = [(e[4], e[1], e[2] // MiB) for e in EVENT.iter_unpack(bytes(recording.events))]
        assert events == [(0, 0, 3), (0, 1, 1), (0, 2, 2), (1, 0, 3), (1, 2, 2), (0, 3, 4)], events
    """, conf="driver='emulated', emulated_capacity='64MiB', trace=True")


def test_threads(ruled):
    ruled("""
        import threading, random
        failures = []
        def work(seed):
            draw, held = random.Random(seed), []
            try:
                for step in range(400):
                    if held and draw.random() < 0.5:
                        held.pop(draw.randrange(len(held))).free()
                    else:
                        held.append(_torch.allocate_on(draw.choice((700, 20_000, 300_000)), stream=seed))
                    if step % 97 == seed:
                        _torch.record_history(step % 2 == 0, draw.choice(("all", "state")), draw.choice((5, 10_000)))
                    if step % 50 == 0:
                        snapshot()
            except BaseException as error:
                failures.append(error)
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 7)]
        [t.start() for t in threads], [t.join() for t in threads]
        assert not failures, failures
        gc.collect()
        _torch.record_history(True, clear=True)
        _torch.allocate_on(5)
        check(snapshot())
        assert _core.abi.pool(0).audit() == [] and dymem.memory_stats()["allocated_bytes.all.current"] == 0
    """)


def test_rejections_are_told_where_the_setting_is_on(ruled):
    code = """
        if not hasattr(_torch, "attach_rejection_observer"):
            skip("this torch has no such observers")
        heard = []
        _torch.attach_rejection_observer(lambda *figures: heard.append(figures))
        held = _torch.allocate_on(5 * MiB)
        raises(torch.OutOfMemoryError, lambda: _torch.allocate_on(100 * MiB))
        assert heard == ([(0, 100 * MiB, 5 * MiB, 64 * MiB)] if WANTED else []), heard
    """
    ruled(code.replace("WANTED", "False"))
    ruled(code.replace("WANTED", "True"), PYTORCH_CUDA_ALLOC_CONF="throw_on_cudamalloc_oom:True")


def test_a_forked_child_leaves_the_history_alone(ruled):
    """A thread that is not there may hold its locks; and nothing happens in the child that it could tell."""
    ruled("import os", """
        _torch.record_history(True)
        held = _torch.allocate_on(900)
        child = os.fork()
        if child == 0:
            _torch.record_history(False)
            os._exit(0 if _torch.is_history_enabled() else 7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    """)


ENDING = r"""
struct Ends { void (*call)(void*) = nullptr; void* with = nullptr; ~Ends() { if (call) call(with); } };
static thread_local Ends ends;
extern "C" void at_the_end(void (*call)(void*), void* with) { ends.call = call, ends.with = with; }
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_block_freed_while_its_thread_ends_is_freed(first_build, tmp_path):
    """By an object of the thread that goes after ours: what was said on that thread is not looked at any more."""
    (tmp_path / "ending.cpp").write_text(ENDING)
    subprocess.run(["g++", "-shared", "-fPIC", str(tmp_path / "ending.cpp"), "-o", str(tmp_path / "ending.so")], check=True)
    code = f"""
import ctypes, threading, time, torch, dymem
dymem.install(driver="emulated", emulated_capacity="64MiB")
from dymem import _torch
library = ctypes.CDLL({str(tmp_path / "ending.so")!r})
library.at_the_end.argtypes = [ctypes.c_void_p] * 2
block = _torch.raw_alloc(4096)
_torch.record_history(True)
def run():
    library.at_the_end(_torch.raw_deleter(), block)  # before anything of ours is made on this thread: it goes last
    _torch.set_metadata("step 17 of a run whose name is too long to lie within a string")
    _torch.push_compile_context("0/1 of a compilation whose name is too long to lie within a string")
    _torch.raw_delete(_torch.raw_alloc(512))
thread = threading.Thread(target=run)
thread.start(), thread.join()
until = time.monotonic() + 30  # joining waits for Python's part of a thread only
while dymem.memory_stats()["allocation.all.current"] and time.monotonic() < until:
    time.sleep(0.01)
assert dymem.memory_stats()["allocation.all.current"] == 0
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                         # what is freed is overwritten
                         env={**os.environ, "DYMEM_CACHE": str(first_build.cache), "MALLOC_PERTURB_": "165"})
    assert run.returncode == 0 and run.stderr == "", run.stderr
