"""Can a slab of the contiguous backing be shared with another process and registered with NCCL? On a card, in 30 s.

    python bench/slab_sharing.py --json bench/results/slab_sharing.json

Writes a pattern into a block of a contiguous pool, asks the driver for an IPC handle of the block's own address and of
its slab's, and lets another process open each and read the pattern back; then registers the whole slab with a
communicator of one rank (enough to learn whether NCCL accepts it, not what it gains) and lets it reduce within the slab.
The same of a granule of the vmm backing beside it. Every answer is the library's own; what is missing is named.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from checks import check_targets, stop

from dymem import __version__, _core

MIB = 1 << 20
PATTERN = bytes(range(256)) * 16
OPEN_LAZILY = 1      # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
FLOAT32, SUM = 7, 0  # ncclFloat32, ncclSum


class IpcHandle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


class Cuda:
    """libcuda on device 0, its primary context current on this thread."""

    def __init__(self):
        try:
            self.lib = ctypes.CDLL("libcuda.so.1")
        except OSError:
            stop("there is no libcuda.so.1; run this where a GPU is.")
        context, device = ctypes.c_void_p(), ctypes.c_int()
        for call in (lambda: self.lib.cuInit(0), lambda: self.lib.cuDeviceGet(ctypes.byref(device), 0),
                     lambda: self.lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
                     lambda: self.lib.cuCtxSetCurrent(context)):
            if code := call():
                stop(f"the driver cannot be used here: error {code}.")

    def ipc_handle(self, address: int) -> tuple[int, bytes]:
        handle = IpcHandle()
        code = self.lib.cuIpcGetMemHandle(ctypes.byref(handle), ctypes.c_uint64(address))
        return code, ctypes.string_at(ctypes.byref(handle), 64)

    def read_through(self, raw: bytes, offset: int, n: int) -> tuple[int, bytes]:
        handle, base = IpcHandle(), ctypes.c_uint64()
        ctypes.memmove(ctypes.byref(handle), raw, 64)
        code = self.lib.cuIpcOpenMemHandle_v2(ctypes.byref(base), handle, OPEN_LAZILY)
        if code:
            return code, b""
        data = ctypes.create_string_buffer(n)
        code = self.lib.cuMemcpyDtoH_v2(data, ctypes.c_uint64(base.value + offset), ctypes.c_size_t(n))
        return code, data.raw


def child(handle: str, offset: int) -> None:
    code, data = Cuda().read_through(bytes.fromhex(handle), offset, len(PATTERN))
    print(json.dumps({"error": code, "pattern": data == PATTERN}))


def shared(cuda: Cuda, address: int, offset: int) -> dict:
    """What another process sees `offset` bytes into what a handle of `address` opens; errors are the driver's numbers."""
    code, raw = cuda.ipc_handle(address)
    if code:
        return {"get_error": code}
    run = subprocess.run([sys.executable, __file__, "--child", raw.hex(), str(offset)], capture_output=True, text=True,
                         timeout=60)
    return {"get_error": 0, **(json.loads(run.stdout) if run.returncode == 0 else {"child": run.stderr.strip()[-200:]})}


def nccl_library() -> ctypes.CDLL | None:
    found = importlib.util.find_spec("nvidia")
    for folder in found.submodule_search_locations if found else ():
        path = Path(folder) / "nccl" / "lib" / "libnccl.so.2"
        if path.exists():
            return ctypes.CDLL(str(path))
    try:
        return ctypes.CDLL("libnccl.so.2")
    except OSError:
        return None


def registered(base: int, size: int) -> dict:
    """ncclCommRegister of [base, base+size), a reduction inside it, deregistration: NCCL's result codes, 0 = success."""
    nccl = nccl_library()
    if nccl is None:
        return {"missing": "libnccl.so.2; it comes with torch's own dependencies (nvidia-nccl-cu13)"}
    version, unique, comm, handle = ctypes.c_int(), UniqueId(), ctypes.c_void_p(), ctypes.c_void_p()
    nccl.ncclGetVersion(ctypes.byref(version))
    answer = {"version": version.value, "id": nccl.ncclGetUniqueId(ctypes.byref(unique)),
              "init": nccl.ncclCommInitRank(ctypes.byref(comm), 1, unique, 0)}
    if answer["init"]:
        return answer
    pointer = ctypes.c_void_p
    answer["register"] = nccl.ncclCommRegister(comm, pointer(base), ctypes.c_size_t(size), ctypes.byref(handle))
    answer["handle"] = bool(handle.value)
    answer["all_reduce"] = nccl.ncclAllReduce(pointer(base), pointer(base + size // 2), ctypes.c_size_t(size // 16), FLOAT32, SUM,
                                              comm, pointer(0))
    if answer["register"] == 0:
        answer["deregister"] = nccl.ncclCommDeregister(comm, handle)
    nccl.ncclCommDestroy(comm)
    return answer


def examine(cuda: Cuda, backing: str, size: int) -> dict:
    driver = _core.driver.make_cuda(0)
    pool = _core.pool.Pool(driver, backing=backing, limit=size)
    start = time.perf_counter()
    first = pool.malloc(4 * MIB, 0)
    answer = {"first_malloc_ms": (time.perf_counter() - start) * 1e3}
    block = pool.malloc(4 * MIB, 0)
    assert driver.write(block, PATTERN) == _core.driver.Code.ok
    answer["ipc_of_the_blocks_address"] = shared(cuda, block, block - first)  # a handle opens the whole allocation
    answer["ipc_of_the_slabs_address"] = shared(cuda, first, block - first)
    answer["nccl"] = registered(first, size if backing == "contiguous" else 2 * MIB)
    for each in (first, block):
        pool.free(each)
    start = time.perf_counter()
    pool.trim()
    answer["trim_ms"] = (time.perf_counter() - start) * 1e3
    answer["held_after_trim"] = pool.stats()["slab_bytes"]["current"]
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--size-mib", type=int, default=1024)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options.child[0], int(options.child[1]))
    check_targets(options.json)
    cuda = Cuda()
    report = {"kind": "slab_sharing", "commit": os.environ.get("DYMEM_COMMIT", ""), "dymem": __version__,
              "size_mib": options.size_mib, **{backing: examine(cuda, backing, options.size_mib * MIB)
                                               for backing in ("contiguous", "vmm")}}
    text = json.dumps(report, indent=1) + "\n"
    if options.json:
        options.json.write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
