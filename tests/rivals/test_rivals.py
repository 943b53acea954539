"""The list of allocators: what each puts into the environment of its child, and what it answers without a card."""

import ctypes
import importlib.util
import sys
import types

import pytest

from dymem.config import Config
from dymem.errors import DriverError, InstallError
from dymem.rivals import ALLOCATORS, USAGE, child_environment, exhausted
from dymem.rivals.mempool import MemoryPool, PoolProperties
from dymem.rivals.of_torch import share_of_device

GIB = 1 << 30


def test_names_and_forms_of_the_comparison():
    assert list(ALLOCATORS) == ["native", "expandable", "async", "rmm_pool", "rmm_async", "dymem", "dymem_remap",
                                "dymem_contiguous"]
    assert all(name == allocator.name and allocator.title for name, allocator in ALLOCATORS.items())
    forms = [Config.from_conf(ALLOCATORS[name].environment(GIB)["DYMEM_CONF"]) for name in list(ALLOCATORS)[5:]]
    assert [(form.backing, form.alias, form.limit) for form in forms] == [
        ("vmm", True, GIB), ("vmm", False, GIB), ("contiguous", True, GIB)]


@pytest.mark.parametrize("name", ALLOCATORS)
def test_nothing_of_another_allocator_reaches_the_child(name):
    base = {"PYTORCH_CUDA_ALLOC_CONF": "garbage_collection_threshold:0.5", "PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync",
            "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "DYMEM_RUN": "1", "HOME": "there"}
    environment = child_environment(ALLOCATORS[name], None, base)
    assert environment["HOME"] == "there" and "DYMEM_RUN" not in environment
    assert "PYTORCH_NO_CUDA_MEMORY_CACHING" not in environment
    wanted = {"expandable": "expandable_segments:True", "async": "backend:cudaMallocAsync"}.get(name)
    assert environment.get("PYTORCH_ALLOC_CONF") == environment.get("PYTORCH_CUDA_ALLOC_CONF") == wanted


def test_the_users_configuration_stays_but_for_the_form(monkeypatch):
    monkeypatch.setenv("DYMEM_CONF", "grow_slack:4MiB,backing:contiguous,alias:on")
    config = Config.from_conf(ALLOCATORS["dymem_remap"].environment()["DYMEM_CONF"])
    assert (config.grow_slack, config.backing, config.alias, config.limit) == (4 << 20, "vmm", False, 0)


@pytest.mark.parametrize("total", [85_029_158_912, 150_000_000_007, 143_771_696_640])
def test_pytorch_rounds_the_share_down_to_the_very_limit(total):
    for limit in range(9 * GIB, 9 * GIB + 10**6, 997):
        assert int(share_of_device(limit, total) * total) == limit
    assert share_of_device(2 * total, total) == 1.0


def test_absent_rmm_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for name in ("rmm_pool", "rmm_async"):
        assert "pip install rmm" in ALLOCATORS[name].missing()
        with pytest.raises(InstallError, match="pip install rmm"):
            ALLOCATORS[name].install(None)
        assert ALLOCATORS[name].usage() == dict.fromkeys(USAGE)


class FakeRmm:
    """As much of RMM 26.10 as is called, keeping what it was called with."""

    def __init__(self):
        self.made, self.current = {}, None
        self.mr = types.SimpleNamespace(
            CudaMemoryResource=lambda: "cuda", StatisticsResourceAdaptor=self.statistics,
            PoolMemoryResource=self.pool, set_current_device_resource=lambda resource: setattr(self, "current", resource))

    def pool(self, upstream, initial_pool_size, maximum_pool_size):
        self.made = {"upstream": upstream, "initial": initial_pool_size, "maximum": maximum_pool_size}
        return types.SimpleNamespace(pool_size=lambda: 3000)

    def statistics(self, upstream):
        return types.SimpleNamespace(allocation_counts=types.SimpleNamespace(
            peak_bytes=2000, total_count=10, current_count=4, total_bytes=9999, peak_count=5, current_bytes=1))


@pytest.mark.torch
@pytest.mark.parametrize("limit, initial, maximum", [(None, 0, None), (1000, 768, 768)])
def test_rmm_pool_is_made_under_statistics_and_its_size_is_reserved(monkeypatch, limit, initial, maximum):
    import torch

    from dymem.rivals.of_rmm import RmmPool

    fake, swapped = FakeRmm(), []
    monkeypatch.setitem(sys.modules, "rmm", fake)
    monkeypatch.setattr(RmmPool, "missing", lambda self: None)
    monkeypatch.setitem(sys.modules, "rmm.allocators", types.ModuleType("rmm.allocators"))
    monkeypatch.setitem(sys.modules, "rmm.allocators.torch", types.SimpleNamespace(rmm_torch_allocator="hooks"))
    monkeypatch.setattr(torch.cuda.memory, "change_current_allocator", swapped.append)
    rival = RmmPool("rmm_pool", "RMM pool")
    rival.install(limit)
    assert fake.made == {"upstream": "cuda", "initial": initial, "maximum": maximum}
    assert swapped == ["hooks"] and fake.current is not None
    usage = rival.usage()
    assert set(usage) == set(USAGE)
    assert (usage["live_peak_bytes"], usage["reserved_peak_bytes"], usage["calls"]) == (2000, 3000, 16)
    assert usage["device_allocations"] is None


def test_pool_properties_are_laid_out_as_in_cuda_h():
    assert ctypes.sizeof(PoolProperties) == 88
    assert (PoolProperties.location_id.offset, PoolProperties.max_size.offset, PoolProperties.reserved.offset) == (12, 24, 34)


def test_a_pool_without_a_driver_is_one_sentence(monkeypatch):
    def absent(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", absent)
    with pytest.raises(DriverError, match="libcuda.so.1"):
        MemoryPool(0, GIB)


@pytest.mark.torch
def test_exhaustion_is_told_whoever_says_it():
    import torch

    assert exhausted(torch.OutOfMemoryError("CUDA out of memory")) and exhausted(MemoryError())
    assert exhausted(RuntimeError("std::bad_alloc: out_of_memory: Maximum pool size exceeded"))
    assert not exhausted(RuntimeError("shapes do not match")) and not exhausted(ValueError("out of memory"))


@pytest.mark.torch
def test_rmm_that_cannot_be_set_up_is_one_sentence(monkeypatch):
    from dymem.rivals.of_rmm import RmmPool

    fake = FakeRmm()
    fake.mr.PoolMemoryResource = lambda *upstream, **sizes: (_ for _ in ()).throw(MemoryError("std::bad_alloc\nat: x.cpp"))
    monkeypatch.setitem(sys.modules, "rmm", fake)
    monkeypatch.setitem(sys.modules, "rmm.allocators", types.ModuleType("rmm.allocators"))
    monkeypatch.setitem(sys.modules, "rmm.allocators.torch", types.SimpleNamespace(rmm_torch_allocator="hooks"))
    monkeypatch.setattr(RmmPool, "missing", lambda self: None)
    with pytest.raises(InstallError, match="^RMM could not be set up: std::bad_alloc$"):
        RmmPool("rmm_pool", "RMM pool").install(GIB)


@pytest.mark.torch
def test_history_marks_iterations_in_dymems_trace(python, first_build):
    """Over the emulated driver, whose pool is used through its own binding."""
    run = python("-c", """
import dymem
from dymem import _core
dymem.install(driver="emulated", trace=True)
from dymem.rivals import ALLOCATORS
from dymem.rivals.history import History
history = History(ALLOCATORS["dymem"])
history.phase("S")  # no pool yet: nothing to mark
pool = _core.abi.pool(0)
block = pool.malloc(1 << 20, 0)
history.iteration = 3
history.phase("B")
other = pool.malloc(1 << 20, 0)
print(history.save("trace.dymem"))
from dymem.trace import load
from dymem.trace.snapshot import EVENT, MARK
events = list(EVENT.iter_unpack(load("trace.dymem")[0].events))
print([(e[4] == MARK, e[2], e[6]) for e in events])
""", env={"DYMEM_CACHE": str(first_build.cache)})
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == ["trace.dymem", str([(False, 1 << 20, 0), (True, 3, ord("B")), (False, 1 << 20, 0)])]
