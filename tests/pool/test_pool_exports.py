"""Exported blocks: what their descriptors show is what the block holds, until it is freed, whatever else the pool does."""

import contextlib
import os
import random

import pytest

from devices import CODES, Device, make_pool
from pool_model import MIB, Model

from dymem.errors import DriverError, InvalidArgument, OutOfMemory, SleepError

LIMIT = 160 * MIB


class Receiver:
    """Another device that maps what the descriptors say, as a receiving process does, and reads it."""

    def __init__(self):
        self.device = Device()

    def read(self, pool, exported, n):
        token, sizes, offset = exported
        device = self.device.checked
        if not sizes:
            code, base, _ = device.open_slab(token)
            assert code == CODES.ok
            data = self.device.read(base + offset, n)
            assert device.close_slab(base) == CODES.ok
            return data
        whole = sum(sizes)
        code, base = device.reserve(whole)
        assert code == CODES.ok
        at = base
        for first in range(0, len(sizes), 3):  # in pieces, as the server is asked
            fds = pool.export_descriptors(token, first, 3)
            assert len(fds) == min(3, len(sizes) - first)
            for fd, size in zip(fds, sizes[first:]):
                code, handle = device.import_handle(fd, size)
                os.close(fd)
                assert code == CODES.ok and device.map(at, size, handle) == CODES.ok and device.destroy(handle) == CODES.ok
                at += size
        assert device.set_access(base, whole) == CODES.ok
        data = self.device.read(base + offset, n)
        assert device.unmap(base, whole) == CODES.ok and device.release_addresses(base, whole) == CODES.ok
        return data


def check(receiver, model, exports):
    for held, exported in exports:
        got = receiver.read(model.pool, exported, held.size)
        assert got == model.device.read(held.address, held.size), f"block {held.number} shows something else outside"


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("options", [{}, {"alias": False}, {"backing": "contiguous"}, {"debug": True}],
                         ids=["aliases", "alias=off", "contiguous", "debug"])
def test_exports_show_their_block_whatever_else_happens(options, seed):
    device = Device(capacity=LIMIT)
    model = Model(device, make_pool(device, **options))
    receiver, choose = Receiver(), random.Random(seed)
    exports = []
    for step in range(220):
        what = choose.random()
        if what < 0.5 and len(model.live) < 30:
            size = choose.choice((choose.randrange(1, 60_000), choose.randrange(MIB, 24 * MIB)))
            with contextlib.suppress(OutOfMemory):
                model.malloc(size, choose.randrange(3))
        elif what < 0.8 and model.live:
            held = choose.choice(list(model.live.values()))
            gone = [e for h, e in exports if h is held]
            exports = [(h, e) for h, e in exports if h is not held]
            model.free(held)
            for token, sizes, _ in gone:
                left = any(e[0] == token for _, e in exports)
                if sizes:
                    assert (model.pool.export_descriptors(token, 0, 0) is not None) == left
        elif what < 0.95 and model.live:
            held = choose.choice(list(model.live.values()))
            exported = model.pool.export_memory(held.address)
            assert model.pool.export_memory(held.address) == exported
            if all(h is not held for h, _ in exports):
                exports.append((held, exported))
        else:
            model.pool.trim()
        if step % 20 == 19:
            check(receiver, model, exports)
            assert model.pool.audit() == []
        if exports and model.pool.stats()["exported_bytes"] != sum(h.size for h, _ in exports):
            raise AssertionError("exported_bytes is not the sum of the exported blocks")
    check(receiver, model, exports)
    assert exports, "nothing was exported at the end: the test means less"
    for held in list(model.live.values()):
        model.free(held)
    device.advance_to(device.emulated.now() + 10**9)
    model.pool.trim()
    assert model.pool.stats()["exported_bytes"] == 0 and device.violations() == []
    assert model.pool.audit() == []


def test_an_exported_granule_is_neither_given_back_nor_lent():
    device = Device()
    pool = make_pool(device)
    kept = [pool.malloc(3000, 0) for _ in range(4)]  # one granule of 2 MiB
    token, sizes, _ = pool.export_memory(kept[0])
    assert sizes == [2 * MIB] and len(token) == 16
    others = [pool.malloc(16 * MIB, 0) for _ in range(3)]
    for address in kept[1:] + others:
        pool.free(address)
    pool.trim()
    assert device.emulated.physical_in_use() == 2 * MIB
    pool.free(kept[0])
    assert pool.export_descriptors(token, 0, 1) is None
    pool.trim()
    assert device.emulated.physical_in_use() == 0


def two_granules(**options):
    """A pool that stitches before it grows, with two granules of 16 MiB, free, each between others that are held."""
    device = Device(**options)
    pool = make_pool(device, grow_slack=0, grow_ratio=0)
    large = []
    for _ in range(2):
        large.append(pool.malloc(16 * MIB, 0))
        pool.malloc(2 * MIB, 0)
    for address in large:
        pool.free(address)
    return device, pool


def is_stitched(pool, address):
    return any(s["address"] == address and s["stitched"] for s in pool.segments())


def seen_outside(device, pool, exported, address, n):
    """Whether what is written to the block at `address` shows in the granules that were exported."""
    marks = bytes([0xA7]) * 4096
    for at in range(address, address + n - 4096, MIB // 2):
        device.write(at, marks)
    whole = Receiver().read(pool, (exported[0], exported[1], 0), sum(exported[1]))
    return marks in whole


@pytest.mark.parametrize("mobility", ["untagged", "temporary"], ids=["free end", "free start"])
def test_the_free_part_of_an_exported_granule_is_not_stitched(mobility):
    device, pool = two_granules()
    block = pool.malloc(3 * MIB, 0, mobility)
    control = pool.malloc(26 * MIB, 0)  # needs the rest of that granule, and has it while nothing is exported
    assert is_stitched(pool, control) and pool.stats()["reserved_bytes"]["all"]["current"] == 36 * MIB
    pool.free(control)

    device, pool = two_granules()
    block = pool.malloc(3 * MIB, 0, mobility)
    exported = pool.export_memory(block)
    assert exported[1] == [16 * MIB]
    stitched = pool.malloc(26 * MIB, 0)
    assert is_stitched(pool, stitched) and pool.stats()["reserved_bytes"]["all"]["current"] > 36 * MIB
    assert not seen_outside(device, pool, exported, stitched, 26 * MIB) and pool.audit() == []
    pool.free(stitched)
    pool.free(block)
    fresh = pool.malloc(26 * MIB, 0)  # and it serves again when it is freed
    assert pool.audit() == [] and is_stitched(pool, fresh)


@pytest.mark.parametrize("size", [26, 25], ids=["as before", "another size"])
def test_views_made_before_an_export_are_not_used_during_it(size):
    device, pool = two_granules()
    block = pool.malloc(3 * MIB, 0)
    before = pool.malloc(26 * MIB, 0)
    assert is_stitched(pool, before)
    pool.free(before)
    exported = pool.export_memory(block)
    after = pool.malloc(size * MIB, 0)
    assert after != before and not seen_outside(device, pool, exported, after, size * MIB)
    pool.free(after)
    pool.free(block)
    assert pool.audit() == []


def test_a_region_that_ends_in_an_exported_granule_does_not_grow_from_there():
    device, pool = two_granules()
    region = pool.malloc(32 * MIB, 0)  # both granules, whole
    assert is_stitched(pool, region)
    pool.free(region)
    blocks = [pool.malloc(n * MIB, 0) for n in (3, 14)]  # the second lies in the other granule: 13 MiB are left in one
    exports = [pool.export_memory(b) for b in blocks]
    assert sum(len(sizes) for _, sizes, _ in exports) == 2 and exports[0][0] != exports[1][0]
    grown = pool.malloc(40 * MIB, 0)
    for exported in exports:
        assert not seen_outside(device, pool, exported, grown, 40 * MIB)
    assert pool.audit() == []


def test_blocks_of_one_granule_share_a_token_until_the_last_is_freed():
    pool = make_pool(Device())
    blocks = [pool.malloc(4096, 0) for _ in range(3)]
    exported = [pool.export_memory(b) for b in blocks]
    assert len({token for token, _, _ in exported}) == 1 and len({offset for _, _, offset in exported}) == 3
    token = exported[0][0]
    for b in blocks:
        fds = pool.export_descriptors(token, 0, 5)
        assert len(fds) == 1
        os.close(fds[0])
        pool.free(b)
    assert pool.export_descriptors(token, 0, 1) is None
    again = pool.malloc(4096, 0)
    assert pool.export_memory(again)[0] != token, "a token is never used twice"
    pool.free(again)


def test_tokens_of_others_name_nothing():
    pool = make_pool(Device())
    address = pool.malloc(MIB, 0)
    token, _, _ = pool.export_memory(address)
    for byte in range(16):
        wrong = bytearray(token)
        wrong[byte] ^= 1
        assert pool.export_descriptors(bytes(wrong), 0, 1) is None
    assert pool.export_descriptors(token, 1, 10) == [] == pool.export_descriptors(token, 10**9, 10)


@pytest.mark.parametrize("backing", ["vmm", "contiguous"])
def test_an_export_that_fails_changes_nothing(backing):
    device = Device()
    pool = make_pool(device, backing=backing)
    address = pool.malloc(3 * MIB, 0)
    for code, words in ((CODES.failed, "could not be exported"), (CODES.out_of_memory, "could not be exported")):
        device.faulty.fail_nth(1, as_=code)
        with pytest.raises(DriverError, match=words):
            pool.export_memory(address)
        assert pool.stats()["exported_bytes"] == 0 and pool.audit() == []
        with pytest.raises(InvalidArgument, match="not pinned"):
            pool.unpin(address)
    token, sizes, _ = pool.export_memory(address)
    if backing == "vmm":
        device.faulty.fail_nth(1)
        assert pool.export_descriptors(token, 0, 8) == []
        fds = pool.export_descriptors(token, 0, 8)
        assert len(fds) == len(sizes)
        for fd in fds:
            os.close(fd)
    pool.free(address)
    assert pool.audit() == []


def test_what_no_device_can_export_says_so():
    pool = make_pool(Device(bytes=False))
    with pytest.raises(Exception, match="cannot share.*backing:contiguous.*from the CPU"):
        pool.export_memory(pool.malloc(MIB, 0))


def test_only_held_blocks_are_exported():
    pool = make_pool(Device())
    address = pool.malloc(MIB, 0)
    for wrong in (address + 512, address - 512, 4096):
        with pytest.raises(InvalidArgument, match="not the address of a block that is held"):
            pool.export_memory(wrong)
    pool.free(address)
    with pytest.raises(InvalidArgument, match="clone"):
        pool.export_memory(address)


def test_sleep_leaves_exports_alone():
    device = Device()
    pool = make_pool(device)
    address = pool.malloc(3 * MIB, 0)
    other = pool.malloc(40 * MIB, 0)
    device.write(address, b"shared")
    exported = pool.export_memory(address)
    with pytest.raises(SleepError, match="shared with another process"):
        pool.sleep()
    assert Receiver().read(pool, exported, 6) == b"shared"
    pool.free(address)
    pool.sleep()
    with pytest.raises(SleepError, match="asleep cannot be shared"):
        pool.export_memory(other)
    pool.wake()
    pool.export_memory(other)
    assert pool.audit() == []


def test_pins_of_owners_and_of_exports_are_counted_apart():
    pool = make_pool(Device())
    address = pool.malloc(3 * MIB, 0)
    pool.pin(address)
    pool.export_memory(address)
    pool.unpin(address)
    with pytest.raises(InvalidArgument, match="not pinned"):
        pool.unpin(address)
    pool.free(address)
    full = pool.malloc(3 * MIB, 0)
    for _ in range(255):
        pool.pin(full)
    with pytest.raises(InvalidArgument, match="255"):
        pool.export_memory(full)
    pool.free(full)
    assert pool.audit() == []
