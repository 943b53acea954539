"""PyTorch's own three allocators: native, native with expandable segments, and cudaMallocAsync.

All three tell their figures through torch.cuda.memory_stats. The first two bound what they hold by the share of the
device that torch.cuda.set_per_process_memory_fraction grants; for cudaMallocAsync that would bound live bytes only, so
under a cap it draws from a memory pool of its own with a maximum size, whose figures are then the pool's.
"""

from __future__ import annotations

from typing import Mapping

from dymem.rivals.allocator import Allocator, nothing_known
from dymem.rivals.mempool import MemoryPool


def torch_usage(stats: Mapping[str, int] | None = None) -> dict[str, int | None]:
    """USAGE from `stats`, by default torch.cuda.memory_stats: for every allocator that answers as PyTorch's own does."""
    if stats is None:
        import torch

        stats = torch.cuda.memory_stats()
    live = stats.get("allocated_bytes.all.peak", 0)
    calls = stats.get("allocation.all.allocated", 0) + stats.get("allocation.all.freed", 0)
    return nothing_known() | {
        "live_peak_bytes": live,
        "occupied_peak_bytes": max(live, stats.get("active_bytes.all.peak", 0)),
        "reserved_peak_bytes": stats.get("reserved_bytes.all.peak", 0),
        "requested_peak_bytes": stats.get("requested_bytes.all.peak", 0),
        "reserved_bytes": stats.get("reserved_bytes.all.current", 0),
        "calls": calls or None,
        "device_allocations": stats.get("num_device_alloc", 0),
        "device_frees": stats.get("num_device_free", 0),
        "allocation_retries": stats.get("num_alloc_retries", 0),
        "ooms": stats.get("num_ooms", 0)}


def share_of_device(limit_bytes: int, total_bytes: int) -> float:
    """The fraction that PyTorch rounds down to `limit_bytes` again, not to one byte less."""
    return min(1.0, (limit_bytes + 0.5) / total_bytes)


def limit_share(limit_bytes: int) -> None:
    import torch

    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    torch.cuda.set_per_process_memory_fraction(share_of_device(limit_bytes, total))


def start_over(limit_bytes: int | None) -> bool:
    import torch

    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    if limit_bytes is None:
        torch.cuda.set_per_process_memory_fraction(1.0)
    else:
        limit_share(limit_bytes)
    return torch.cuda.memory_reserved() == 0


class TorchOwn(Allocator):
    history = True

    def __init__(self, name: str, title: str, conf: str = "") -> None:
        super().__init__(name, title)
        self.conf = conf

    def environment(self, limit_bytes: int | None = None) -> dict[str, str]:
        # Newer versions of torch read the first name, older ones the second.
        return dict.fromkeys(("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"), self.conf) if self.conf else {}

    def limit(self, limit_bytes: int | None) -> None:
        if limit_bytes is not None:
            limit_share(limit_bytes)

    def start_over(self, limit_bytes: int | None) -> bool:
        return start_over(limit_bytes)

    def usage(self) -> dict[str, int | None]:
        return torch_usage()


class CudaMallocAsync(TorchOwn):
    history = False
    note = "cudaMallocAsync does not count its calls of the driver; under a cap it draws from a pool with a maximum size."

    def __init__(self, name: str, title: str) -> None:
        super().__init__(name, title, "backend:cudaMallocAsync")
        self._pool: MemoryPool | None = None

    def limit(self, limit_bytes: int | None) -> None:
        if limit_bytes is None:
            return
        import torch

        self._pool = MemoryPool(torch.cuda.current_device(), limit_bytes)
        self._pool.make_current()

    def start_over(self, limit_bytes: int | None) -> bool:
        import torch

        start_over(None)  # the device's default pool, which served until a cap was set
        old, self._pool = self._pool, MemoryPool(torch.cuda.current_device(), limit_bytes)
        self._pool.make_current()
        if old:
            old.close()
        return True

    def usage(self) -> dict[str, int | None]:
        # PyTorch counts what callers hold itself, and asks the default pool of the device for the rest.
        usage = torch_usage() | {"calls": None, "device_allocations": None, "device_frees": None}
        return usage | self._pool.usage() if self._pool else usage
