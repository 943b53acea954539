"""What holds of every snapshot, as code that the adapter's tests run in their own processes; see docs/snapshots.md."""

import textwrap

import pytest

RULES = '''
from torch.cuda import _memory_viz

def snapshot():
    return torch._C._cuda_memorySnapshot(None)

def of_device(snap, device=0):
    return [segment for segment in snap["segments"] if segment["device"] == device]

def check_sums(snap, device=0):
    """Every byte once: segments add up to what is reserved, blocks to what is allocated."""
    stats = dymem.memory_stats(device)
    segments = of_device(snap, device)
    total = lambda key: sum(segment[key] for segment in segments)
    asleep = stats["asleep_bytes"]
    assert total("total_size") == stats["reserved_bytes.all.current"] + asleep, (total("total_size"), stats)
    assert total("allocated_size") == stats["allocated_bytes.all.current"]
    assert total("active_size") == stats["active_bytes.all.current"]
    assert total("requested_size") == stats["requested_bytes.all.current"]
    end = 0
    for segment in segments:
        assert segment["address"] >= end, "segments overlap"
        end = segment["address"] + segment["total_size"]
        at = segment["address"]
        sums = {"active_allocated": 0, "active_pending_free": 0, "inactive": 0}
        for before, block in zip([None, *segment["blocks"]], segment["blocks"]):
            assert block["address"] == at and block["size"] > 0
            assert not before or "active" in before["state"] + block["state"], "free neighbours are one"
            at += block["size"]
            sums[block["state"]] += block["size"]
        assert at == end, "blocks tile their segment"
        assert sums["active_allocated"] == segment["allocated_size"]
        assert sums["active_allocated"] + sums["active_pending_free"] == segment["active_size"]
        assert segment["segment_type"] in ("large", "small") and segment["stream"] == 0
        assert segment["segment_pool_id"] == (0, 0)

def blocks_of(snap, device=0):
    return {b["address"]: b for s in of_device(snap, device) for b in s["blocks"] if b["state"] != "inactive"}

def check_playback(snap, device=0):
    """Entries played backwards from the segments, as PyTorch's allocator state history does: at every moment what is
    mapped or unmapped is there, and every block lies in one segment. Returns the bytes mapped, before each entry."""
    held = {s["address"]: s["total_size"] for s in of_device(snap, device)}
    def joined():
        out = []
        for at in sorted(held):
            if out and out[-1][0] + out[-1][1] == at:
                out[-1][1] += held[at]
            else:
                out.append([at, held[at]])
        return out
    def cut(at, size):
        whole = next(((a, n) for a, n in joined() if a <= at and at + size <= a + n), None)
        assert whole, f"{at:#x}+{size} is in no segment"
        for start in [a for a in held if a < at + size and at < a + held[a]]:
            n = held.pop(start)
            if start < at: held[start] = at - start
            if start + n > at + size: held[at + size] = start + n - at - size
    blocks = {at: b["size"] for at, b in blocks_of(snap, device).items()}
    reserved = []
    for index, entry in enumerate(reversed(snap["device_traces"][device])):
        action, at, size = entry["action"], entry.get("addr"), entry["size"]
        if action in ("segment_alloc", "segment_map"):
            cut(at, size)
        elif action in ("segment_free", "segment_unmap"):
            assert not any(a < at + size and at < a + n for a, n in held.items()), "mapped twice"
            held[at] = size
        elif action == "alloc":
            assert blocks.pop(at) >= size
        elif action == "free_completed":
            assert at not in blocks, "freed twice"
            blocks[at] = size
        if index % 7 == 0 and not action.startswith("segment"):  # a move takes several entries
            pieces = joined()
            for a, n in blocks.items():
                assert any(p <= a and a + n <= p + m for p, m in pieces), f"block {a:#x} lies in no segment"
        reserved.append(sum(held.values()))
    return reserved[::-1]

def check_viz(snap):
    """PyTorch's own tools digest it."""
    plain = lambda text: text
    segsum = _memory_viz.segsum(snap)
    assert f"segments: {len(snap['segments'])}" in segsum
    told = _memory_viz.memory(snap, plain), _memory_viz.segments(snap, plain)
    assert all(told) if snap["segments"] else not any(told)
    assert "TOTAL MEM" in _memory_viz.trace(snap) or not any(snap["device_traces"])
    for page in (_memory_viz.trace_plot(snap), _memory_viz.trace_plot(snap, plot_segments=True),
                 _memory_viz.segment_plot(snap)):
        assert "MemoryViz.js" in page and "snapshot.pickle" in page
    import copy
    left = _memory_viz.filter_alloc_free_pairs(copy.deepcopy(snap))
    assert [e for e in left["device_traces"][0] if e["action"] == "alloc"] == [] or blocks_of(snap)

def check(snap, device=0):
    check_sums(snap, device)
    check_viz(snap)
    return check_playback(snap, device)

def actions(snap, device=0, kinds=("alloc", "free_requested", "free_completed")):
    return [(e["action"], e["addr"], e["size"]) for e in snap["device_traces"][device] if e["action"] in kinds]

def names(entry):
    return [frame["name"] for frame in entry.get("frames", ())]
'''


@pytest.fixture
def ruled(script):
    """Runs code as `script` does, after the rules above; of several parts, each indented as it likes."""

    def run(*code, **options):
        return script(RULES + "".join(textwrap.dedent(part) for part in code), **options)

    return run
