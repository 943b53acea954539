"""CuPy's arrays from dymem's pools: `cupy.cuda.set_allocator(dymem.cupy_allocator)`.

    import cupy, dymem, torch
    dymem.install()
    cupy.cuda.set_allocator(dymem.cupy_allocator)
    a = cupy.arange(10)
    t = torch.from_dlpack(a)        # the same memory; freed when both are gone

One pool then serves both libraries: what one frees the other can use, and one limit covers both. A block belongs to the
stream that is CuPy's current one when it is allocated, as with CuPy's own pool: freed, it is at once reusable there, and
elsewhere when that stream's work is known to be done. Who uses an array on another stream than it was made on calls
`dymem.cupy_record_stream(array, stream)`, the counterpart of torch's record_stream, or synchronises before dropping it.
Nothing here imports cupy before CuPy itself asks for memory; `dymem.memory_stats()` shows it under held_bytes.cupy.
"""

from __future__ import annotations

from dymem.config import shown
from dymem.errors import InvalidArgument, MissingPackage, OutOfMemory

HOLDER = "cupy"


class _Held:
    """Owns one block; CuPy keeps it alive for as long as any array or DLPack consumer views it."""

    __slots__ = ("address", "size", "_release")

    def __init__(self, address: int, size: int, release) -> None:
        self.address, self.size, self._release = address, size, release

    def __del__(self) -> None:
        self._release(self.address)


def _cupy():
    try:
        import cupy
    except ImportError as error:
        raise MissingPackage(f"dymem.cupy_allocator serves CuPy, which does not import here ({error}); pip install "
                             "cupy-cuda13x, or the package for your CUDA") from None
    return cupy


def cupy_allocator(size: int):
    """A cupy.cuda.MemoryPointer to `size` bytes on the current device, for work on CuPy's current stream.

    Raises CuPy's OutOfMemoryError, with dymem's sentence and figures, where the device or the limit has nothing left.
    """
    from dymem import _core

    cupy = _cupy()
    device = cupy.cuda.runtime.getDevice()
    try:
        address = _core.abi.hold(size, device, cupy.cuda.get_current_stream().ptr, HOLDER)
    except TypeError:
        raise InvalidArgument(f"{shown(size)} is no number of bytes: CuPy gives cupy_allocator a whole number from 0") from None
    except OutOfMemory as error:
        raise _as_cupys(cupy, error, size) from error
    memory = cupy.cuda.UnownedMemory(address, size, _Held(address, size, _core.abi.release_quietly), device)
    return cupy.cuda.MemoryPointer(memory, 0)


def _as_cupys(cupy, error: OutOfMemory, size: int) -> Exception:
    """What code written for CuPy catches."""
    figures = error.figures
    told = cupy.cuda.memory.OutOfMemoryError(size, figures.get("reserved", 0), figures.get("limit", 0))
    told.args = (str(error),)
    return told


def cupy_record_stream(array, stream=None) -> None:
    """Work on `stream` (default: CuPy's current one) uses the array's memory too: it is reused only when what is enqueued
    there by the time it is freed is done. The array's memory must be dymem's; what is empty has none."""
    from dymem import _core

    try:
        owner, size = getattr(array.data.mem, "_owner", None), array.size
    except AttributeError:
        raise InvalidArgument(f"a {type(array).__name__} is no array of CuPy's: give cupy_record_stream a cupy.ndarray") from None
    if size == 0:
        return
    if not isinstance(owner, _Held):
        raise InvalidArgument("this array's memory is not dymem's: call cupy.cuda.set_allocator(dymem.cupy_allocator) before "
                              "it is made")
    try:
        pointer = (stream if stream is not None else _cupy().cuda.get_current_stream()).ptr
    except AttributeError:
        raise InvalidArgument(f"a {type(stream).__name__} is no stream of CuPy's: give cupy_record_stream a "
                              "cupy.cuda.Stream, or nothing for the current one") from None
    _core.abi.use_on_stream(owner.address, pointer)
