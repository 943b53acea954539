"""What the driver says of the first GPU without a context, so that nothing of the device is taken."""

from __future__ import annotations

import ctypes


def gpu_count() -> int:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    return count.value if cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0


def total_bytes() -> int:
    """Of the first device; 0 where there is none."""
    if gpu_count() == 0:
        return 0
    cuda, device, size = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(0), ctypes.c_size_t(0)
    if cuda.cuDeviceGet(ctypes.byref(device), 0) != 0 or cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device) != 0:
        return 0
    return size.value
