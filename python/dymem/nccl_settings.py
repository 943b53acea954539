"""What NCCL is told about memory that dymem maps: collectives in captured graphs do not register their buffers.

Inside a capture NCCL registers the buffers of a collective by itself, for peers to reach them without a copy, and takes
each for one allocation of the driver that stays what it is as long as its address does. A block of the vmm backing may
span several granules, and after dymem.sleep() its address has other pages: a replayed graph would hang or reach memory that
is no longer the buffer's (torchtitan#3306, torch_memory_saver#88). Without it NCCL copies through its own buffers.
Explicit registration (ncclCommRegister, TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK) is another matter: dymem pins that.
"""

from __future__ import annotations

from typing import MutableMapping

VARIABLE = "NCCL_GRAPH_REGISTER"


def keep_captured_buffers_unregistered(environment: MutableMapping[str, str], backing: str | None) -> None:
    """Sets NCCL's variable to 0 unless the user has set it, or the backing is `contiguous`, which NCCL can register."""
    if backing != "contiguous":
        environment.setdefault(VARIABLE, "0")
