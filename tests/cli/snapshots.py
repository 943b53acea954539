"""Small snapshots in the shape that torch.cuda.memory._dump_snapshot writes, made by hand so that every figure is known."""

import gzip
import lzma
import pickle
import struct

MIB = 1 << 20
EVENT = struct.Struct("<qQQQBBHi")
ALLOC, FREE_REQUESTED, FREE_COMPLETED, RECORD_STREAM, MARK, SEGMENT_ALLOC, SEGMENT_FREE = range(7)


class History:
    """Collects entries; each takes 1 µs unless `time` is moved."""

    def __init__(self, start=1_700_000_000_000_000):
        self.entries, self.time, self.mark = [], start, None

    def add(self, action, addr, size, stream=0):
        self.entries.append({"action": action, "addr": addr, "size": size, "stream": stream, "time_us": self.time,
                             "user_metadata": self.mark, "frames": []})
        self.time += 1
        return self

    def alloc(self, addr, size, stream=0):
        return self.add("alloc", addr, size, stream)

    def free(self, addr, size, stream=0):
        return self.add("free_requested", addr, size, stream).add("free_completed", addr, size, stream)


def steps(iterations=6, size=4 * MIB):
    """A weight that stays and, in every iteration, two activations of which one outlives the other; peak = 5 x size."""
    history = History()
    history.mark = "-1:init"
    history.add("segment_alloc", 0x1000000, 8 * size).alloc(0x1000000, size)
    for i in range(iterations):
        history.mark = f"{i}:F"
        history.alloc(0x2000000, 2 * size).alloc(0x4000000, 2 * size)
        history.mark = f"{i}:B"
        history.free(0x2000000, 2 * size).free(0x4000000, 2 * size)
    return history


def snapshot(*histories):
    return {"segments": [], "device_traces": [h.entries if isinstance(h, History) else h for h in histories],
            "allocator_settings": {}}


def write(path, content):
    data = content if isinstance(content, bytes) else pickle.dumps(content)
    if path.suffix == ".xz":
        data = lzma.compress(data)
    elif path.suffix == ".gz":
        data = gzip.compress(data)
    path.write_bytes(data)
    return path


def events(recording):
    """(kind, block, size, stream, time_ns, iteration) of each event."""
    return [(kind, block, size, stream, time, iteration)
            for time, block, size, stream, kind, _, _, iteration in EVENT.iter_unpack(bytes(recording.events))]
