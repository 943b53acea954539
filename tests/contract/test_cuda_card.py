"""What only a card shows of the CUDA driver: nothing waits for work, captures are noticed, contexts are left alone.

Streams, host functions and captures come from the driver API through ctypes, so that no framework is needed. A stream
is kept busy by a host function that waits for us: exact, where a kernel would be a guess.
"""

import ctypes
import threading
from contextlib import contextmanager

import pytest

from dymem._core import driver as drivers

pytestmark = pytest.mark.gpu
Code = drivers.Code
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
GLOBAL, THREAD_LOCAL = 0, 1


@pytest.fixture(scope="module")
def cuda():
    library = ctypes.CDLL("libcuda.so.1")

    def call(name, *arguments):
        result = getattr(library, name)(*arguments)
        assert result == 0, f"{name} gave {result}"

    return call


@pytest.fixture(scope="module")
def card():
    """Its context is also made current here, for what the tests ask of CUDA themselves."""
    driver = drivers.make_cuda(0)
    driver.memory()
    library = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    assert library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert library.cuCtxPushCurrent_v2(context) == 0
    yield driver
    assert library.cuCtxPopCurrent_v2(ctypes.byref(context)) == 0
    assert library.cuDevicePrimaryCtxRelease_v2(0) == 0


@pytest.fixture
def streams(cuda, card):
    """Two that the legacy stream does not wait for."""
    made = []
    for _ in range(2):
        stream = ctypes.c_void_p()
        cuda("cuStreamCreate", ctypes.byref(stream), 1)
        made.append(stream)
    yield [stream.value for stream in made]
    for stream in made:
        cuda("cuStreamDestroy_v2", stream)


@contextmanager
def busy(cuda, stream):
    """The stream has work that ends when the block does."""
    go_on = threading.Event()
    function = HOST_FUNCTION(lambda _: go_on.wait(30))
    cuda("cuLaunchHostFunc", ctypes.c_void_p(stream), function, None)
    try:
        yield
    finally:
        go_on.set()
        cuda("cuStreamSynchronize", ctypes.c_void_p(stream))


def ok(answer):
    code, value = answer if isinstance(answer, tuple) else (answer, None)
    assert code == Code.ok
    return value


def test_an_event_completes_with_the_work_before_it(cuda, card, streams):
    event = ok(card.event_create())
    with busy(cuda, streams[0]):
        ok(card.event_record(event, streams[0]))
        assert card.event_query(event) == Code.not_ready
    assert card.event_query(event) == Code.ok
    ok(card.event_destroy(event))


def test_a_stream_waits_for_an_event_of_another(cuda, card, streams):
    first, second, before = (ok(card.event_create()) for _ in range(3))
    with busy(cuda, streams[0]):
        ok(card.event_record(before, streams[1]))
        ok(card.event_record(first, streams[0]))
        ok(card.stream_wait(streams[1], first))
        ok(card.event_record(second, streams[1]))
        ok(card.event_synchronize(before))
        assert card.event_query(second) == Code.not_ready
    ok(card.event_synchronize(second))
    for event in (first, second, before):
        ok(card.event_destroy(event))


def test_a_destroyed_pending_event_comes_back_as_new(cuda, card, streams):
    with busy(cuda, streams[0]):
        old = ok(card.event_create())
        ok(card.event_record(old, streams[0]))
        ok(card.event_destroy(old))
        new = ok(card.event_create())  # the same event of CUDA's, which is still pending
        assert card.event_query(new) == Code.ok
        ok(card.event_synchronize(new))
        ok(card.event_record(new, streams[1]))
        ok(card.event_synchronize(new))
        ok(card.event_destroy(new))


def test_memory_calls_wait_for_no_work(cuda, card, streams):
    unit = card.granularity
    event = ok(card.event_create())
    with busy(cuda, streams[0]):
        ok(card.event_record(event, streams[0]))
        base = ok(card.reserve(2 * unit))
        handle = ok(card.create(unit))
        ok(card.map(base, unit, handle))
        ok(card.map(base + unit, unit, handle))
        ok(card.set_access(base, 2 * unit))
        ok(card.unmap(base, 2 * unit))
        ok(card.destroy(handle))
        ok(card.release_addresses(base, 2 * unit))
        assert card.event_query(event) == Code.not_ready, "all of it was done while the stream was still busy"
    ok(card.event_destroy(event))


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL])
def test_a_capture_is_noticed(cuda, card, streams, mode):
    stream, graph = ctypes.c_void_p(streams[0]), ctypes.c_void_p()
    assert not card.is_capturing(streams[0])
    cuda("cuStreamBeginCapture_v2", stream, mode)
    try:
        assert card.is_capturing(streams[0])
        assert not card.is_capturing(streams[1])
        event = ok(card.event_create())
        ok(card.event_record(event, streams[0]))  # becomes part of the capture …
    finally:
        cuda("cuStreamEndCapture", stream, ctypes.byref(graph))
    assert not card.is_capturing(streams[0])
    assert card.event_query(event) == Code.invalid  # … and is no event to ask about
    ok(card.event_record(event, streams[0]))
    ok(card.event_synchronize(event))
    ok(card.event_destroy(event))
    cuda("cuGraphDestroy", graph)


def test_the_legacy_stream_counts_as_capturing_while_a_blocking_stream_is(cuda, card):
    stream, graph = ctypes.c_void_p(), ctypes.c_void_p()
    cuda("cuStreamCreate", ctypes.byref(stream), 0)
    assert not card.is_capturing(0)
    cuda("cuStreamBeginCapture_v2", stream, GLOBAL)
    try:
        assert card.is_capturing(0)
        assert card.is_capturing(stream.value), "asking about the legacy stream did not end the capture"
    finally:
        cuda("cuStreamEndCapture", stream, ctypes.byref(graph))
    assert not card.is_capturing(0)
    cuda("cuGraphDestroy", graph)
    cuda("cuStreamDestroy_v2", stream)


def test_the_police_sees_a_real_capture(cuda, streams):
    police = drivers.make_checked(drivers.make_cuda(0))
    event, graph = ok(police.event_create()), ctypes.c_void_p()
    assert not police.is_capturing(streams[0])
    cuda("cuStreamBeginCapture_v2", ctypes.c_void_p(streams[0]), GLOBAL)
    assert police.event_query(event) == Code.invalid
    assert "capture is under way" in police.last_violation()
    cuda("cuStreamEndCapture", ctypes.c_void_p(streams[0]), ctypes.byref(graph))  # the capture was not disturbed
    assert police.event_query(event) == Code.ok
    ok(police.event_destroy(event))
    cuda("cuGraphDestroy", graph)


def test_a_threads_current_context_is_left_as_it_was(cuda, card):
    """In a thread without one, calls work and leave it without one."""
    seen = {}

    def work():
        current = ctypes.c_void_p()
        seen["handle"] = card.create(card.granularity)
        cuda("cuCtxGetCurrent", ctypes.byref(current))
        seen["context"] = current.value

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen["context"] is None
    ok(card.destroy(ok(seen["handle"])))


def test_counting_and_making_create_no_context(python):
    script = """if True:
        import ctypes
        from dymem._core import driver as drivers
        assert drivers.cuda_device_count() > 0
        driver = drivers.make_cuda(0)
        assert driver.has_vmm and driver.granularity == 2 << 20
        active, flags = ctypes.c_int(-1), ctypes.c_uint()
        cuda = ctypes.CDLL("libcuda.so.1")
        state = lambda: cuda.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active))
        assert state() == 0 and active.value == 0, active
        driver.memory()
        assert state() == 0 and active.value == 1, active
        del driver
        assert state() == 0 and active.value == 0, active
    """
    answer = python("-c", script)
    assert answer.returncode == 0, answer.stderr


def test_times_are_measured(card):
    before = card.counters()["memory_time_ns"]
    start = card.now()
    handle = ok(card.create(64 * card.granularity))
    ok(card.destroy(handle))
    assert 0 < card.counters()["memory_time_ns"] - before <= card.now() - start
