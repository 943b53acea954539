"""Tensors shared between processes, over the emulated driver: real bytes in both, checked by pattern.

Each test is one script (see conftest.py) that forks a second process before it uses a pool, so that each has a pool of its
own; they talk over a pipe. What a message carries is what torch.multiprocessing would pickle: a handle and an offset.
"""
import textwrap

import pytest

pytestmark = pytest.mark.torch

LARGE = "driver='emulated', emulated_capacity='1GiB'"
TWO = '''
import ctypes, socket, threading, time, traceback
from multiprocessing import Pipe

def pattern(n, seed):
    return (bytes((seed * 31 + i * 7) & 0xFF for i in range(256)) * (n // 256 + 1))[:n]

def fill(address, n, seed):
    ctypes.memmove(address, pattern(n, seed), n)

def holds(address, n, seed):
    return ctypes.string_at(address, n) == pattern(n, seed)

def pool(device=0):
    return _core.abi.pool(device)

def stat(name, device=0):
    return dymem.memory_stats(device)[name]

def nothing_is_open(device=0):
    return [stat(f"imported_{what}", device) for what in ("bytes", "mappings", "waiting")] == [0, 0, 0]

def other(body):
    """Starts a process that runs body(connection); (connection, pid)."""
    ours, theirs = Pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            ours.close()
            body(theirs)
            code = 0
        except BaseException:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)
    theirs.close()
    return ours, pid

def ended(pid, code=0):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == code

def sends(*sizes, stream=0):
    """A process that shares blocks of these sizes, filled with the pattern of their number, and frees them when told."""
    def body(link):
        held = [_torch.allocate_on(size, stream=stream) for size in sizes]
        for i, (data, size) in enumerate(zip(held, sizes)):
            fill(data.address, size, i)
        link.send([_torch.share(data.address) for data in held])
        while (what := link.recv()) is not None:
            if what == "free":
                for data in held:
                    data.free()
            elif what == "refill":
                for i, (data, size) in enumerate(zip(held, sizes)):
                    fill(data.address, size, i + 100)
            link.send([dymem.memory_stats(), pool().audit()])
    return other(body)

def ask(link, what):
    link.send(what)
    stats, audit = link.recv()
    assert audit == [], audit
    return stats
'''


@pytest.fixture
def two(script):
    return lambda code, conf=LARGE, **env: script(TWO + textwrap.dedent(code), conf=conf, **env)


@pytest.mark.parametrize("conf", [LARGE, LARGE + ", backing='contiguous'", LARGE + ", debug='on'", LARGE + ", alias='off'"],
                         ids=["granules", "slab", "debug", "alias=off"])
def test_bytes_go_both_ways(two, conf):
    two("""
        sizes = [1, 1000, 700_000, 3 * MiB, 41 * MiB + 512, 100 * MiB]
        link, pid = sends(*sizes)
        handles = link.recv()
        received = [_torch.receive(handle) for handle, _ in handles]
        places = [r.address + offset for r, (_, offset) in zip(received, handles)]
        for i, (place, size) in enumerate(zip(places, sizes)):
            assert holds(place, size, i), i
        ask(link, "refill")
        for i, (place, size) in enumerate(zip(places, sizes)):
            assert holds(place, size, i + 100), i
        assert stat("reserved_bytes.all.current") == 0, "on the sender's account"
        assert stat("imported_bytes") >= 144 * MiB
        exported = ask(link, "look")["exported_bytes"]
        assert exported == sum((size + 511) // 512 * 512 for size in sizes)
        for r in received:
            r.free()
        assert nothing_is_open()
        assert ask(link, "free")["exported_bytes"] == 0
        link.send(None)
        assert ended(pid) and pool().audit() == []
    """, conf)


def test_what_the_receiver_writes_is_read_by_the_sender(two):
    two("""
        def body(link):
            data = _torch.allocate_on(9 * MiB)
            link.send(_torch.share(data.address))
            link.recv()
            assert holds(data.address, 9 * MiB, 42)
        link, pid = other(body)
        handle, offset = link.recv()
        received = _torch.receive(handle)
        fill(received.address + offset, 9 * MiB, 42)
        link.send(None)
        assert ended(pid)
    """)


def test_a_stitched_block_is_shared_in_the_order_of_its_addresses(two):
    two("""
        def body(link):
            held = [_torch.allocate_on(16 * MiB) for _ in range(12)]
            for data in held[::2]:
                data.free()  # six holes
            pool().set_limit(dymem.memory_stats()["reserved_bytes.all.current"])
            wide = _torch.allocate_on(75 * MiB)
            assert dymem.memory_stats()["num_stitches"] == 1
            fill(wide.address, 75 * MiB, 7)
            link.send(_torch.share(wide.address))
            link.recv()
            wide.free()
            again = [_torch.allocate_on(16 * MiB) for _ in range(6)]
            assert pool().audit() == []
        link, pid = other(body)
        handle, offset = link.recv()
        received = _torch.receive(handle)
        assert holds(received.address + offset, 75 * MiB, 7)
        received.free()
        link.send(None)
        assert ended(pid)
    """)


def test_small_tensors_of_one_granule_are_mapped_once(two):
    two("""
        link, pid = sends(*[4096] * 50)
        handles = link.recv()
        assert len({handle for handle, _ in handles}) == 1 and len({offset for _, offset in handles}) == 50
        received = [_torch.receive(handle) for handle, _ in handles]
        assert len({r.address for r in received}) == 1
        assert stat("imported_mappings") == 1 and stat("imported_bytes") == 2 * MiB
        for i, (r, (_, offset)) in enumerate(zip(received, handles)):
            assert holds(r.address + offset, 4096, i)
        for r in received[1:]:
            r.free()
        assert holds(received[0].address + handles[0][1], 4096, 0) and stat("imported_mappings") == 1
        received[0].free()
        assert nothing_is_open()
        again = _torch.receive(handles[3][0])
        assert holds(again.address + handles[3][1], 4096, 3)
        again.free()
        link.send(None)
        assert ended(pid)
    """)


def test_the_sender_frees_first(two):
    two("""
        link, pid = sends(5 * MiB, 1000)
        (large, offset), (small, _) = link.recv()
        received = _torch.receive(large)
        ask(link, "free")
        assert holds(received.address + offset, 5 * MiB, 0), "nobody has used it again"
        raises(RuntimeError, lambda: _torch.receive(small), str(pid), "freed there before", "keep a reference")
        assert _torch.receive(large).address == received.address, "what is mapped is found without asking"
        received.free()
        raises(RuntimeError, lambda: _torch.receive(large), "freed there before")
        assert nothing_is_open()
        link.send(None)
        assert ended(pid)
    """)


def test_the_sender_dies(two):
    two("""
        link, pid = sends(30 * MiB, 1000)
        (large, offset), (small, _) = link.recv()
        received = _torch.receive(large)
        os.kill(pid, 9)
        assert ended(pid, -9)
        assert holds(received.address + offset, 30 * MiB, 0), "what is mapped stays readable"
        raises(RuntimeError, lambda: _torch.receive(small), str(pid), "has ended", "keep the sender alive")
        received.free()
        assert nothing_is_open()
        assert _torch.allocate_on(1000).address  # and the pool is none the worse
    """)


def test_the_name_dies_with_the_sender_not_with_its_forked_children(two):
    two("""
        def body(link):
            data = _torch.allocate_on(1000)
            link.send(_torch.share(data.address))
            child = os.fork()
            if child == 0:
                link.close()
                time.sleep(300)
                os._exit(0)
            link.send(child)
            link.recv()
        link, pid = other(body)
        (handle, _), child = link.recv(), link.recv()
        link.send(None)
        assert ended(pid)
        before = time.monotonic()
        raises(RuntimeError, lambda: _torch.receive(handle), "has ended")
        assert time.monotonic() - before < 20
        os.kill(child, 9)
    """)


def test_the_receiver_dies(two):
    two("""
        def body(link):
            handle, offset = link.recv()
            received = _torch.receive(handle)
            assert holds(received.address + offset, 20 * MiB, 3)
            link.send("have it")
            time.sleep(60)
        link, pid = other(body)
        data = _torch.allocate_on(20 * MiB)
        fill(data.address, 20 * MiB, 3)
        link.send(_torch.share(data.address))
        assert link.recv() == "have it"
        os.kill(pid, 9)
        assert ended(pid, -9)
        assert holds(data.address, 20 * MiB, 3)
        data.free()
        assert pool().audit() == [] and stat("exported_bytes") == 0
        dymem.empty_cache()
        assert stat("reserved_bytes.all.current") == 0
    """)


def test_what_is_exported_is_pinned_until_it_is_freed(two):
    two("""
        def body(link):
            handle, offset = link.recv()
            received = _torch.receive(handle)
            while link.recv():
                link.send(holds(received.address + offset, 3 * MiB, 5))
            received.free()
        link, pid = other(body)
        before = [_torch.allocate_on(3 * MiB) for _ in range(8)]
        shared = before[3]
        fill(shared.address, 3 * MiB, 5)
        link.send(_torch.share(shared.address))
        assert _torch.share(shared.address) == _torch.share(shared.address), "one handle, however often"
        for data in before[:3] + before[4:]:
            data.free()
        dymem.empty_cache()
        pool().set_limit(64 * MiB)
        for size in (20, 9, 31, 14, 6):  # what is free around it is stitched and used again
            data = _torch.allocate_on(size * MiB)
            fill(data.address, size * MiB, size)
            link.send(True)
            assert link.recv()
            data.free()
        raises(RuntimeError, dymem.sleep, "shared with another process")
        assert pool().audit() == []
        link.send(False)
        assert ended(pid)
        shared.free()
        pool().set_limit(0)
        dymem.empty_cache()
        assert stat("reserved_bytes.all.current") == 0
    """)


def test_a_user_cannot_take_the_exports_pin(script):
    script("""
        data = _torch.allocate_on(3 * MiB)
        _torch.share(data.address)
        raises(ValueError, lambda: _core.abi.pool(0).unpin(data.address), "not pinned")
        _core.abi.pool(0).pin(data.address)
        _core.abi.pool(0).unpin(data.address)
        data.free()
        assert _core.abi.pool(0).audit() == []
    """)


def test_only_what_dymem_holds_is_shared(script):
    script("""
        raises(RuntimeError, lambda: _torch.share(4096), "cannot be shared", "clone")
        data = _torch.allocate_on(3 * MiB)
        raises(RuntimeError, lambda: _torch.share(data.address + 512), "not the address of a block", "clone")
        address = data.address
        data.free()
        raises(RuntimeError, lambda: _torch.share(address), "not the address of a block")
        dymem.sleep()
        raises(RuntimeError, lambda: _torch.share(address), "not the address of a block")
    """)


def test_handles_of_others_say_what_they_are(two):
    two("""
        raises(RuntimeError, lambda: _torch.receive(b""), "no handle of a shared tensor", "same version")
        raises(RuntimeError, lambda: _torch.receive(bytes(64)), "plain CUDA IPC handle", "failed with code")
        raises(RuntimeError, lambda: _torch.receive(bytes([2]) + b"c" + bytes(64)), "plain CUDA IPC handle")
        for version in (2, 3):
            expandable = bytes([version]) + b"e" + bytes(40)
            raises(RuntimeError, lambda: _torch.receive(expandable), "expandable segments", "expandable_segments:False")
        assert nothing_is_open()
    """)


def test_no_damaged_handle_is_mapped(two):
    two("""
        import random
        link, pid = sends(50 * MiB)
        (handle, offset), = link.recv()
        random.seed(7)
        opened = 0
        for trial in range(400):
            bad = bytearray(handle)
            for _ in range(random.choice((1, 2, 8))):
                bad[random.randrange(len(bad))] ^= 1 << random.randrange(8)
            if trial % 3 == 0:
                bad = bad[:random.randrange(len(bad))]
            try:
                received = _torch.receive(bytes(bad))
            except RuntimeError as error:
                assert "dymem: " in str(error) and "\\n" not in str(error)
            else:
                opened += 1
                received.free()
        assert opened < 40, opened  # the process number in it is for sentences only
        assert nothing_is_open()
        received = _torch.receive(handle)
        assert holds(received.address + offset, 50 * MiB, 0)
        received.free()
        assert ask(link, "look")["exported_bytes"] == 50 * MiB
        link.send(None)
        assert ended(pid)
    """)


def test_sizes_in_a_handle_that_overflow_are_no_handle(two):
    two("""
        import struct
        link, pid = sends(1000)
        (handle, _), = link.recv()
        def with_runs(*runs):  # the last 16 bytes are one run, before them their number
            return handle[:-20] + struct.pack("<I", len(runs)) + b"".join(struct.pack("<QQ", *run) for run in runs)
        good = _torch.receive(with_runs((2 * MiB, 1)))
        assert with_runs((2 * MiB, 1)) == handle
        good.free()
        for runs in [(1 << 46, 1 << 18)], [(1 << 46, 1 << 18), (2 * MiB, 1)], [(1 << 46, 2)], [(1 << 63, 2)], [(2**64 - 1, 1)]:
            raises(RuntimeError, lambda: _torch.receive(with_runs(*runs)), "no handle of a shared tensor")
        assert nothing_is_open()
        link.send(None)
        assert ended(pid)
    """)


def test_connections_that_say_nothing_starve_nobody(two):
    two("""
        link, pid = sends(1000)
        (handle, offset), = link.recv()
        name = "\\0dymem-" + handle[6:22].hex()
        idle = []
        for _ in range(100):
            quiet = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            quiet.connect(name)
            idle.append(quiet)
        received = _torch.receive(handle)
        assert holds(received.address + offset, 1000, 0)
        received.free()
        link.send(None)
        assert ended(pid)
    """)


def test_slabs_are_shared_as_pytorchs_allocator_does(two):
    two("""
        link, pid = sends(1000, 8 * MiB)
        handles = link.recv()
        assert len({handle for handle, _ in handles}) == 1 and len(handles[0][0]) == 64, "a plain CUDA IPC handle"
        raw = _torch.receive(handles[1][0])
        assert holds(raw.address + handles[1][1], 8 * MiB, 1)
        native = _torch.receive(bytes([2]) + b"c" + handles[1][0])  # as PyTorch's own allocator writes the same handle
        assert holds(native.address + handles[1][1], 8 * MiB, 1)
        raw.free()
        native.free()
        assert nothing_is_open()
        os.kill(pid, 9)
        ended(pid, -9)
        raises(RuntimeError, lambda: _torch.receive(handles[0][0]), "plain CUDA IPC handle", "has the sender ended")
    """, LARGE + ", backing='contiguous'")


def test_whichever_driver_call_fails_nothing_is_left(two):
    two("""
        drivers = _core.driver
        link, pid = sends(150 * MiB, 100 * MiB)
        handles = link.recv()
        failed = passed = 0
        for handle, offset in handles:
            nth = 0
            while True:
                nth += 1
                police = drivers.make_checked(drivers.make_emulated())
                faulty = drivers.make_faulty(police)
                faulty.fail_nth(nth)
                try:
                    base, size = _core.abi.map_shared(faulty, handle)
                except dymem.errors.DymemError as error:
                    failed += 1
                    assert "cannot be mapped here" in str(error)
                    assert police.leaks() == [] and police.violations() == [], (nth, police.leaks(), police.violations())
                    continue
                assert ctypes.string_at(base + offset, 256) == pattern(256, handles.index((handle, offset)))
                assert police.unmap(base, size) == police.release_addresses(base, size) == drivers.Code.ok
                assert police.leaks() == [] and police.violations() == []
                if faulty.failures() == 0:
                    break
                passed += 1  # what was refused is no more than giving back what is not needed any longer
        assert failed > 10 and passed > 3
        link.send(None)
        assert ended(pid)
    """)


@pytest.mark.parametrize("before, after", [
    ("_torch.allocate_on(1000).free()  # the pool knows stream 0", ""),
    ("_torch.stand_in(); _torch.init(); _torch.begin_pool((1, 0), stream=0)  # its memory comes from elsewhere",
     "_torch.end_pool((1, 0))"),
], ids=["of a stream of the pool", "that the pool takes no part in"])
def test_during_a_capture_nothing_is_unmapped(two, before, after):
    two(f"""
        link, pid = sends(3 * MiB, 5 * MiB)
        (first, _), (second, _) = link.recv()
        received = _torch.receive(first)
        driver = _core.abi.driver(0)
        {before}
        driver.set_capturing(0, True)
        calls = driver.counters()["unmap"]
        received.free()
        assert driver.counters()["unmap"] == calls and stat("imported_waiting") == 1
        driver.set_capturing(0, False)
        {after}
        received = _torch.receive(second)
        assert stat("imported_waiting") == 0 and stat("imported_mappings") == 1
        received.free()
        assert nothing_is_open()
        link.send(None)
        assert ended(pid)
    """)


def test_unmapping_waits_for_the_work_that_uses_it(two):
    two("""
        link, pid = sends(3 * MiB)
        (handle, _), = link.recv()
        received = _torch.receive(handle)
        driver = _core.abi.driver(0)
        until = driver.now() + 300_000_000
        driver.set_busy_until(5, until)  # a stream that nobody told the pool about
        received.free()
        assert driver.now() >= until and nothing_is_open()
        link.send(None)
        assert ended(pid)
    """)


def test_a_forked_child_neither_shares_nor_opens_nor_closes(two):
    two("""
        link, pid = sends(3 * MiB, 1000)
        (handle, offset), (unopened, _) = link.recv()
        received, data = _torch.receive(handle), _torch.allocate_on(4096)
        _torch.share(data.address)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                raises(RuntimeError, lambda: _torch.share(data.address), "forked", "spawn")
                raises(RuntimeError, lambda: _torch.receive(unopened), "forked", "spawn")
                received.free()
                data.free()
                assert nothing_is_open()
                code = 0
            except BaseException:
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(code)
        assert ended(child)
        assert holds(received.address + offset, 3 * MiB, 0) and stat("imported_mappings") == 1
        assert stat("exported_bytes") == 4096
        received.free()
        link.send(None)
        assert ended(pid)
    """)


def test_loaders_fork_workers_from_a_process_that_shares(two):
    """Workers inherit tensors, mappings of others' memory and the server's socket, and drop them as they end."""
    done = two("""
        from torch.utils.data import DataLoader, TensorDataset
        link, pid = sends(3 * MiB, 1000)
        (handle, offset), (later, there) = link.recv()
        received, kept = _torch.receive(handle), _torch.allocate_on(5 * MiB)
        shared, _ = _torch.share(kept.address)
        loader = DataLoader(TensorDataset(torch.arange(64)), batch_size=8, num_workers=2, multiprocessing_context="fork")
        for _ in range(2):
            assert sum(batch.sum().item() for (batch,) in loader) == sum(range(64))
        assert holds(received.address + offset, 3 * MiB, 0)
        second = _torch.receive(later)
        assert holds(second.address + there, 1000, 1)
        _torch.receive(shared).free()  # our own: the server still answers
        assert stat("exported_bytes") == 5 * MiB
        received.free()
        second.free()
        assert nothing_is_open() and pool().audit() == []
        link.send(None)
        assert ended(pid)
    """)
    assert "dymem" not in done.err, done.err


def test_a_silent_or_rude_client_keeps_nobody_waiting(two):
    two("""
        link, pid = sends(3 * MiB)
        (handle, offset), = link.recv()
        name = b"\\0dymem-" + handle[6:22].hex().encode()
        strangers = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(80)]
        for s in strangers[:63]:
            s.connect(name)
        rude = strangers[70]
        rude.connect(name)
        for message in (b"x", bytes(24), os.urandom(24), os.urandom(5000)):
            try:
                rude.send(message)
                rude.settimeout(20)
                answer = rude.recv(10)
                assert answer in (b"", bytes([3])), answer  # hung up, or: no such token
            except (BrokenPipeError, ConnectionResetError):
                pass
        before = time.monotonic()
        received = _torch.receive(handle)
        assert time.monotonic() - before < 20
        assert holds(received.address + offset, 3 * MiB, 0)
        for s in strangers:
            s.close()
        link.send(None)
        assert ended(pid)
    """)


def test_two_processes_send_to_each_other_on_many_threads(two):
    two("""
        ROUNDS, THREADS = 40, 3
        def work(link_lock, link, number, failures):
            try:
                for turn in range(ROUNDS):
                    size = (turn * 7919 + number * 104729) % (6 * MiB) + 1
                    data = _torch.allocate_on(size, stream=number)
                    fill(data.address, min(size, 4096), turn + number)
                    shared = _torch.share(data.address)
                    link.send((shared, min(size, 4096), turn + number))
                    (handle, offset), n, seed = link.recv()
                    received = _torch.receive(handle)
                    assert holds(received.address + offset, n, seed)
                    received.free()
                    link.send("done")
                    assert link.recv() == "done"  # the sender's tensor may go: what PyTorch counts
                    data.free()
            except BaseException as error:
                traceback.print_exc()
                failures.append(error)
        pairs = [Pipe() for _ in range(THREADS)]
        def run(links):
            failures = []
            threads = [threading.Thread(target=work, args=(None, link, i, failures)) for i, link in enumerate(links)]
            [t.start() for t in threads]
            [t.join(100) for t in threads]
            assert not failures and not any(t.is_alive() for t in threads)
            assert nothing_is_open() and stat("exported_bytes") == 0 and stat("allocated_bytes.all.current") == 0
            assert pool().audit() == []
        _, pid = other(lambda _: run([b for _, b in pairs]))
        run([a for a, _ in pairs])
        assert ended(pid)
    """)


def test_each_device_maps_for_itself(two):
    two("""
        def body(link):
            held = [_torch.allocate_on(3 * MiB, device=device) for device in (0, 1)]
            for device, data in enumerate(held):
                fill(data.address, 3 * MiB, device)
            link.send([_torch.share(data.address) for data in held])
            link.recv()
            threading.Thread(target=held[1].free).start()  # no device is current there
            held[0].free()
        link, pid = other(body)
        handles = link.recv()
        received = {(i, device): _torch.receive(handles[i][0], device) for i in (0, 1) for device in (0, 1)}
        assert len({r.address for r in received.values()}) == 4
        for (i, device), r in received.items():
            assert holds(r.address + handles[i][1], 3 * MiB, i)
        assert stat("imported_mappings", 0) == stat("imported_mappings", 1) == 2
        for r in received.values():
            r.free()
        assert nothing_is_open(0) and nothing_is_open(1)
        link.send(None)
        assert ended(pid)
    """, LARGE + ", emulated_devices=2")


def test_no_descriptor_stays_open(two):
    two("""
        link, pid = sends(*[30 * MiB] * 3)
        handles = link.recv()
        def rounds(n):
            for _ in range(n):
                for handle, _ in handles:
                    _torch.receive(handle).free()
        rounds(1)  # what is opened once and kept
        time.sleep(0.2)
        before = len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{pid}/fd"))
        rounds(20)
        end = time.monotonic() + 20  # the sender closes its end when it sees ours closed, and gets to run
        while len(os.listdir("/proc/self/fd")) > before[0] or len(os.listdir(f"/proc/{pid}/fd")) > before[1]:
            assert time.monotonic() < end, (before, os.listdir("/proc/self/fd"), os.listdir(f"/proc/{pid}/fd"))
            time.sleep(0.01)
        link.send(None)
        assert ended(pid)
    """)


def test_a_receiver_reserves_what_is_shared_and_no_more(two):
    """Not a range as large as the device for each handle: a server that receives thousands would run out of addresses."""
    two("""
        link, pid = sends(*[3 * MiB] * 100)
        handles = link.recv()
        def mapped():
            return sum(int(b, 16) - int(a, 16) for a, b in
                       (line.split()[0].split("-") for line in open("/proc/self/maps")))
        pool()
        before = mapped()
        received = [_torch.receive(handle) for handle, _ in handles]
        assert mapped() - before < 4 * stat("imported_bytes") + 64 * MiB, (mapped() - before, stat("imported_bytes"))
        for r in received:
            r.free()
        assert mapped() - before < 64 * MiB
        link.send(None)
        assert ended(pid)
    """)


def test_devices_keep_their_own_blocks(script):
    """Frees find their pool by address, from any thread and whatever device is current."""
    script("""
        import threading
        held = {device: [_torch.allocate_on(n, device=device, stream=n % 4) for n in (1000, 3 * MiB, 9 * MiB)]
                for device in (0, 1, 2)}
        assert all(data.device == device for device, blocks in held.items() for data in blocks)
        for device in held:
            for data in held[device]:
                assert _core.abi.pool(device).owns(data.address)
                assert not any(_core.abi.pool(d).owns(data.address) for d in held if d != device)
                data.record_stream(77)  # a stream of its device: to the pool, any number
        threads = [threading.Thread(target=data.free) for blocks in held.values() for data in blocks]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        for device in held:
            assert dymem.memory_stats(device)["allocated_bytes.all.current"] == 0
            assert _core.abi.pool(device).audit() == []
    """, conf="driver='emulated', emulated_capacity='64MiB', emulated_devices=3")
