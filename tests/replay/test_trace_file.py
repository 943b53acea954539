"""dymem's own trace files: what is written is read back, and nothing else is believed."""

import gzip
import lzma
import os
import struct
import threading

import pytest

from dymem import _core
from dymem.errors import InvalidArgument, TraceError
from dymem.trace import load

HEADER = 72


@pytest.fixture
def events(trace):
    for i in range(50):
        trace.at(i).alloc(i, i * 1000, 5)
        if i % 2:
            trace.free(i, 5)
    return trace.bytes()


@pytest.fixture
def written(events, tmp_path):
    path = tmp_path / "run.dymem"
    _core.trace.write(str(path), events, device=3, granularity=2 << 20, dropped=7)
    return path


def test_round_trip(written, events):
    read = _core.trace.read(str(written))
    assert read == {"events": events, "count": 75, "device": 3, "granularity": 2 << 20, "dropped": 7}
    assert os.listdir(written.parent) == [written.name], "nothing is left beside it"


def test_the_layout_is_the_one_that_python_reads(written, events):
    assert struct.calcsize(_core.trace.EVENT_FORMAT) == _core.trace.EVENT_BYTES == 40
    assert written.stat().st_size == HEADER + len(events)
    assert written.read_bytes()[:8] == b"DYMEMTRC" and _core.trace.is_trace(written.read_bytes()[:8])
    assert not _core.trace.is_trace(b"DYMEM") and not _core.trace.is_trace(b"\x80\x04")
    first = struct.unpack_from(_core.trace.EVENT_FORMAT, events)
    assert first == (0, 0, 0, 5, _core.trace.KINDS["alloc"], 0, 0, -1)


@pytest.mark.parametrize("pack", [lzma.compress, gzip.compress], ids=["xz", "gz"])
def test_compressed_ones_are_read_too(written, events, tmp_path, pack):
    packed = tmp_path / "run.dymem.packed"
    packed.write_bytes(pack(written.read_bytes()))
    (recording,) = load(packed)
    assert recording.events == load(written)[0].events and recording.device == 3
    packed.write_bytes(pack(written.read_bytes()[:-40]))
    with pytest.raises(TraceError, match=r"^\S*run\.dymem\.packed: it is truncated: [^/']*\.$"):
        load(packed)
    packed.write_bytes(pack(written.read_bytes())[:-20])
    with pytest.raises(TraceError, match="cut short"):
        load(packed)


def test_empty_trace(tmp_path):
    path = str(tmp_path / "empty")
    _core.trace.write(path, b"")
    assert _core.trace.read(path)["events"] == b""


def test_writing_replaces(written):
    _core.trace.write(str(written), b"")
    assert _core.trace.read(str(written))["count"] == 0


def test_every_truncation_is_noticed(written):
    whole = written.read_bytes()
    for length in [0, 1, 7, 8, 11, HEADER - 1, HEADER, HEADER + 1, HEADER + 40, len(whole) - 40, len(whole) - 1]:
        written.write_bytes(whole[:length])
        with pytest.raises(InvalidArgument, match="truncated" if length >= 8 else "not a dymem trace"):
            _core.trace.read(str(written))


def test_every_damaged_byte_is_noticed(written):
    whole = bytearray(written.read_bytes())
    for at in [*range(HEADER), HEADER, HEADER + 17, len(whole) - 1]:
        damaged = bytearray(whole)
        damaged[at] ^= 0x41
        written.write_bytes(damaged)
        with pytest.raises(InvalidArgument) as caught:
            _core.trace.read(str(written))
        assert str(written) in str(caught.value)


def test_more_than_announced(written):
    written.write_bytes(written.read_bytes() + b"x")
    with pytest.raises(InvalidArgument, match="bytes follow"):
        _core.trace.read(str(written))


def test_an_absurd_count_costs_nothing(written):
    whole = bytearray(written.read_bytes())
    struct.pack_into("<Q", whole, 24, 1 << 60)
    written.write_bytes(whole)
    with pytest.raises(InvalidArgument, match="truncated"):
        _core.trace.read(str(written))


@pytest.mark.parametrize("at, value, part", [(8, 2, "version 2"), (12, 0x04030201, "byte order")])
def test_other_versions_and_machines(written, at, value, part):
    whole = bytearray(written.read_bytes())
    struct.pack_into("<I", whole, at, value)
    written.write_bytes(whole)
    with pytest.raises(InvalidArgument, match=part):
        _core.trace.read(str(written))


def test_missing_foreign_and_not_a_file(tmp_path):
    with pytest.raises(InvalidArgument, match="No such file"):
        _core.trace.read(str(tmp_path / "none"))
    with pytest.raises(InvalidArgument, match="not a regular file"):
        _core.trace.read(str(tmp_path))
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"\x80\x04\x95" + b"pickled" * 100)
    with pytest.raises(InvalidArgument, match="DYMEMTRC"):
        _core.trace.read(str(foreign))


def test_where_nothing_can_be_written(tmp_path, events):
    for path in (tmp_path / "no" / "folder", tmp_path):
        with pytest.raises(InvalidArgument, match="cannot write"):
            _core.trace.write(str(path), events)
    assert os.listdir(tmp_path) == []


def test_names_beyond_ascii(tmp_path, events):
    path = str(tmp_path / "Läufe ☃.dymem")
    _core.trace.write(path, events)
    assert _core.trace.read(path)["events"] == events


# --- where it is written


def test_a_link_and_a_pipe_stay_what_they_are(tmp_path):
    target, link, pipe = tmp_path / "target.dymem", tmp_path / "link.dymem", tmp_path / "pipe"
    link.symlink_to(target)
    _core.trace.write(str(link), b"")
    assert link.is_symlink() and target.is_file() and list(load(target)[0].events) == []
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    _core.trace.write(str(pipe), b"")
    reader.join()
    assert pipe.is_fifo() and read == [target.read_bytes()]


def test_several_threads_write_the_same_file(tmp_path):
    errors = []

    def write():
        try:
            for _ in range(30):
                _core.trace.write(str(tmp_path / "run.dymem"), b"")
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and [path.name for path in tmp_path.iterdir()] == ["run.dymem"]
    assert load(tmp_path / "run.dymem")
