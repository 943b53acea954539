"""What dymem.cupy_allocator calls of CuPy, in its shape and with its rules, for a machine without a GPU.

Only for tests: arrays have no contents, streams are numbers, devices those of the emulated driver.
"""

import sys
import types


class UnownedMemory:
    def __init__(self, ptr, size, owner, device_id=-1):
        if device_id < 0:
            raise RuntimeError("an explicit device is needed: there is no pointer to ask here")
        self.ptr, self.size, self.device_id, self._owner = ptr, size, device_id, owner


class MemoryPointer:
    def __init__(self, mem, offset):
        assert 0 <= offset <= mem.size
        self.mem, self.ptr = mem, mem.ptr + offset


class OutOfMemoryError(MemoryError):
    def __init__(self, size, total, limit=0):
        super().__init__(f"{size} of {total}, {limit}")


class Stream:
    current = None

    def __init__(self, ptr):
        self.ptr = ptr


class Array:
    def __init__(self, size):
        self.data, self.size = cuda.allocator(size), size


def set_allocator(allocator):
    cuda.allocator = allocator


cuda = types.ModuleType("cupy.cuda")
cuda.device = 0
cuda.memory = types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError)
cuda.runtime = types.SimpleNamespace(getDevice=lambda: cuda.device)
cuda.get_current_stream = lambda: Stream.current
cuda.UnownedMemory, cuda.MemoryPointer, cuda.set_allocator, cuda.Stream = UnownedMemory, MemoryPointer, set_allocator, Stream
Stream.current = Stream(0)
cupy = types.ModuleType("cupy")
cupy.cuda, cupy.empty = cuda, Array
sys.modules["cupy"], sys.modules["cupy.cuda"] = cupy, cuda
