"""The one list of allocators that dymem is compared with, its own three forms included.

    from dymem.rivals import ALLOCATORS, child_environment
    rival = ALLOCATORS["rmm_pool"]
    environment = child_environment(rival, limit_bytes=None)     # in the parent, for the child that shall run under it
    rival.install(None)                                          # in the child, before the first use of CUDA
    rival.limit(None)                                            # in the child, once CUDA is in use
    rival.usage()["reserved_peak_bytes"]                         # None where the allocator cannot tell

What runs workloads (bench/train.py, `dymem compare`, `dymem stress`) knows allocators by these names only.
"""

from __future__ import annotations

from dymem.rivals.allocator import USAGE, Allocator, child_environment, exhausted
from dymem.rivals.of_dymem import Dymem
from dymem.rivals.of_rmm import RmmAsync, RmmPool
from dymem.rivals.of_torch import CudaMallocAsync, TorchOwn

ALLOCATORS: dict[str, Allocator] = {allocator.name: allocator for allocator in (
    TorchOwn("native", "PyTorch"),
    TorchOwn("expandable", "expandable segments", "expandable_segments:True"),
    CudaMallocAsync("async", "cudaMallocAsync"),
    RmmPool("rmm_pool", "RMM pool"),
    RmmAsync("rmm_async", "RMM async"),
    Dymem("dymem", "dymem", backing="vmm"),
    Dymem("dymem_remap", "dymem, alias=off", backing="vmm", alias=False),
    Dymem("dymem_contiguous", "dymem, contiguous", backing="contiguous"),
)}

__all__ = ["ALLOCATORS", "Allocator", "USAGE", "child_environment", "exhausted"]
