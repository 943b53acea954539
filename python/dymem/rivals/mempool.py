"""A memory pool of the CUDA driver (CUmemoryPool) with an optional maximum size, and its own figures, through ctypes.

cudaMallocAsync draws from the device's current pool; RMM's async resource from a pool that it is given. Both are
bounded here by the pool's maximum size, and what they hold is the pool's own high-water mark. The pool lives as long
as the process, or until it is closed. Freed memory stays in it (release threshold: all), as PyTorch and RMM set theirs.
"""

from __future__ import annotations

import ctypes

from dymem.errors import DriverError

_RELEASE_THRESHOLD, _RESERVED_NOW, _RESERVED_HIGH, _USED_HIGH = 4, 5, 6, 8  # CUmemPool_attribute
_PINNED, _ON_DEVICE = 1, 1  # CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE


class PoolProperties(ctypes.Structure):
    """CUmemPoolProps of cuda.h."""

    _fields_ = [("alloc_type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location_type", ctypes.c_int),
                ("location_id", ctypes.c_int), ("security", ctypes.c_void_p), ("max_size", ctypes.c_size_t),
                ("usage", ctypes.c_ushort), ("reserved", ctypes.c_ubyte * 54)]


class MemoryPool:
    def __init__(self, device: int, limit_bytes: int | None = None) -> None:
        self.device = device
        try:
            self._cuda = ctypes.CDLL("libcuda.so.1")
        except OSError:
            raise DriverError("the CUDA driver (libcuda.so.1) is not here: install NVIDIA's driver.", "dlopen") from None
        self.handle = ctypes.c_void_p()
        self._call("cuInit", 0)
        properties = PoolProperties(alloc_type=_PINNED, location_type=_ON_DEVICE, location_id=device,
                                    max_size=limit_bytes or 0)
        self._call("cuMemPoolCreate", ctypes.byref(self.handle), ctypes.byref(properties))
        everything = ctypes.c_uint64(2**64 - 1)
        self._call("cuMemPoolSetAttribute", self.handle, _RELEASE_THRESHOLD, ctypes.byref(everything))

    def _call(self, name: str, *arguments) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code != 0:
            raise DriverError(f"{name} failed with code {code}: the driver may be too old for memory pools of a maximum "
                              "size (CUDA 12.2).", name, code)

    def make_current(self) -> None:
        """From here on cudaMallocAsync on this device draws from this pool."""
        self._call("cuDeviceSetMemPool", self.device, self.handle)

    def close(self) -> None:
        """Gives its memory back, once the work with it is done; nothing may be held, and another pool must be current."""
        self._call("cuMemPoolDestroy", self.handle)

    def _figure(self, attribute: int) -> int:
        value = ctypes.c_uint64(0)
        self._call("cuMemPoolGetAttribute", self.handle, attribute, ctypes.byref(value))
        return value.value

    def usage(self) -> dict[str, int]:
        return {"occupied_peak_bytes": self._figure(_USED_HIGH), "reserved_peak_bytes": self._figure(_RESERVED_HIGH),
                "reserved_bytes": self._figure(_RESERVED_NOW)}
