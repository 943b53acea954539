"""RAPIDS Memory Manager behind PyTorch's pluggable allocator: its pool (one cudaMalloc suballocated) and its async form.

The pool begins empty and doubles, so that what it holds can be compared; under a cap it takes the whole cap at once, which
fragments least. RMM's default, half of the free memory at the start, would only say how large the card is. The async form
draws from a pool of the driver that is made here exactly as RMM makes its own, so that its figures can be read.
RMM's adaptor counts live bytes as they were asked for, unrounded. It has no record_stream: a block used by two streams is
given back as soon as PyTorch frees it.
"""

from __future__ import annotations

import importlib.util

from dymem.errors import InstallError
from dymem.rivals.allocator import Allocator, nothing_known
from dymem.rivals.mempool import MemoryPool

_ABSENT = "RMM is not installed: pip install rmm-cu13 (rmm-cu12 where torch is a CUDA 12 build)."


class Rmm(Allocator):
    note = "RMM ignores record_stream, and its occupied peak is what callers hold, unrounded."

    def __init__(self, name: str, title: str) -> None:
        super().__init__(name, title)
        self._statistics = None
        self._pool = None

    def missing(self) -> str | None:
        return None if importlib.util.find_spec("rmm") else _ABSENT

    def _resource(self, limit_bytes: int | None):
        """A new memory resource, to serve from now on."""
        raise NotImplementedError

    def _close(self, pool) -> None:
        """What `_resource` made before is no longer used."""

    def _held(self) -> dict[str, int]:
        """Reserved bytes, now and at the peak."""
        raise NotImplementedError

    def install(self, limit_bytes: int | None = None) -> None:
        if reason := self.missing():
            raise InstallError(reason)
        import torch
        from rmm.allocators.torch import rmm_torch_allocator

        if rmm_torch_allocator is None:
            raise InstallError("RMM serves PyTorch only where torch sees a GPU.")
        self._serve(limit_bytes)
        torch.cuda.memory.change_current_allocator(rmm_torch_allocator)

    def _serve(self, limit_bytes: int | None) -> None:
        import rmm

        try:
            self._statistics = rmm.mr.StatisticsResourceAdaptor(self._resource(limit_bytes))
        except (RuntimeError, MemoryError) as error:
            raise InstallError(f"RMM could not be set up: {(str(error).splitlines() or ['no memory'])[0]}") from None
        rmm.mr.set_current_device_resource(self._statistics)

    def start_over(self, limit_bytes: int | None) -> bool:
        import rmm
        import torch

        torch.cuda.synchronize()
        # The old one goes first: two may be more than the device has.
        rmm.mr.set_current_device_resource(rmm.mr.CudaMemoryResource())
        old, self._statistics, self._pool = self._pool, None, None
        self._close(old)
        del old
        self._serve(limit_bytes)
        return True

    def usage(self) -> dict[str, int | None]:
        if self._statistics is None:
            return nothing_known()
        counts = self._statistics.allocation_counts
        return nothing_known() | self._held() | {
            "live_peak_bytes": counts.peak_bytes, "requested_peak_bytes": counts.peak_bytes,
            "occupied_peak_bytes": counts.peak_bytes,  # a freed block is free at once
            "calls": 2 * counts.total_count - counts.current_count}


class RmmPool(Rmm):
    reserved_known_by = "the size of RMM's pool, which never shrinks"

    def _resource(self, limit_bytes: int | None):
        import rmm

        capped = limit_bytes // 256 * 256 if limit_bytes else None  # RMM wants multiples of 256
        self._pool = rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), initial_pool_size=capped or 0,
                                               maximum_pool_size=capped)
        return self._pool

    def _held(self) -> dict[str, int]:
        size = self._pool.pool_size()
        return {"reserved_bytes": size, "reserved_peak_bytes": size}


class RmmAsync(Rmm):
    reserved_known_by = "the driver pool's own high-water mark"

    def _resource(self, limit_bytes: int | None):
        import rmm
        from cuda.bindings import driver

        self._pool = MemoryPool(0, limit_bytes)
        return rmm.mr.CudaAsyncViewMemoryResource(driver.CUmemoryPool(self._pool.handle.value))

    def _close(self, pool) -> None:
        pool.close()

    def _held(self) -> dict[str, int]:
        usage = self._pool.usage()
        return {"reserved_bytes": usage["reserved_bytes"], "reserved_peak_bytes": usage["reserved_peak_bytes"]}
