"""libdymem's plain symbols: what torch.cuda.memory.CUDAPluggableAllocator loads when the adapter is not wanted."""

import subprocess
import textwrap

import pytest

pytestmark = pytest.mark.torch
CONF = "driver:emulated,emulated_capacity:64MiB"


def test_pytorch_loads_it(script):
    script("""
        allocator = torch.cuda.memory.CUDAPluggableAllocator(dymem.library_path(), "dymem_malloc", "dymem_free")
        import ctypes
        library = ctypes.CDLL(dymem.library_path())
        address = lambda name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        inner = allocator.allocator()
        inner.set_record_stream_fn(address("dymem_record_stream"))
        inner.set_reset_fn(address("dymem_empty_cache"))
        inner.set_memory_fraction_fn(address("dymem_set_memory_fraction"))
        inner.set_base_alloc_fn(address("dymem_base_allocation"))
        torch.cuda.memory.change_current_allocator(allocator)
        assert torch.cuda.get_allocator_backend() == "pluggable"
        torch._C._cuda_setMemoryFraction(0.5, 0)
        assert _core.abi.pool(0).limit() == 32 * MiB
        raises(dymem.InstallError, lambda: dymem.install(driver="emulated"), "another allocator ('pluggable')")
    """, conf=None, DYMEM_CONF=CONF)


def test_what_pytorch_does_not_ask_of_a_pluggable_allocator(script):
    """Statistics, snapshots and checkpoints raise. Private pools do not: PyTorch tells the allocator nothing of them."""
    script("""
        allocator = torch.cuda.memory.CUDAPluggableAllocator(dymem.library_path(), "dymem_malloc", "dymem_free")
        torch.cuda.memory.change_current_allocator(allocator)
        for call in (lambda: torch._C._cuda_memoryStats(0), lambda: torch._C._cuda_resetPeakMemoryStats(0),
                     lambda: torch._C._cuda_memorySnapshot(None), lambda: torch._C._cuda_getCheckpointState(0, (0, 7))):
            raises(RuntimeError, call, "CUDAPluggableAllocator does not yet support")
        torch._C._cuda_beginAllocateCurrentThreadToPool(0, (0, 7))
        torch._C._cuda_endAllocateToPool(0, (0, 7))
        torch._C._cuda_releasePool(0, (0, 7))
    """, conf=None, DYMEM_CONF=CONF)


def test_the_symbols_serve_the_same_pool_and_warn_once(script):
    done = script("""
        import ctypes
        library = ctypes.CDLL(dymem.library_path())
        library.dymem_malloc.restype = library.dymem_base_allocation.restype = ctypes.c_void_p
        library.dymem_malloc.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
        library.dymem_free.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
        library.dymem_record_stream.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        library.dymem_base_allocation.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)]
        used = lambda: dymem.memory_stats()["allocated_bytes.all.current"]
        address = library.dymem_malloc(5000, 0, 7)
        assert _core.abi.pool(0).find(address)["stream"] == 7 and used() == 5120
        size = ctypes.c_size_t()
        assert library.dymem_base_allocation(address + 100, ctypes.byref(size)) == address and size.value == 5120
        library.dymem_free(address, 5000, 0, 7)
        assert used() == 0
        assert library.dymem_malloc(0, 0, 0) is None
        library.dymem_free(None, 0, 0, None)
        for _ in range(9):
            library.dymem_free(address, 5000, 0, 7)  # freed already: told of, a few times, and nothing else
        library.dymem_empty_cache()
        assert _core.abi.driver(0).physical_in_use() == 0
        other = library.dymem_malloc(5000, 0, 7)
        driver = _core.abi.driver(0)
        driver.set_busy_until(8, driver.now() + 3600 * 10**9)
        library.dymem_record_stream(other, 8)
        library.dymem_record_stream(None, 8)
        library.dymem_free(other, 5000, 0, 7)
        assert dymem.memory_stats()["pending_bytes.current"] == 5120
        assert _core.abi.pool(0).audit() == []
    """, conf=None, DYMEM_CONF=CONF)
    lines = done.err.splitlines()
    assert sum("reduced route" in line and "CUDA graphs are refused" in line for line in lines) == 1
    assert sum("could not be freed" in line for line in lines) == 3
    assert len(lines) == 4, done.err


PROGRAM = r"""
#include <cstdio>
#include <exception>
#include "abi/entry.hpp"
int main() {
  void* kept = dymem_malloc(1 << 20, 0, nullptr);
  try {
    dymem_malloc(std::size_t{1} << 33, 0, nullptr);
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    dymem_free(kept, 1 << 20, 0, nullptr);
    return 0;
  }
  return 1;
}
"""


def test_exhaustion_is_an_exception_since_pytorch_looks_for_no_null(tmp_path):
    from dymem._paths import library_path, source_dir

    (tmp_path / "main.cpp").write_text(PROGRAM)
    library = library_path()
    subprocess.run(["g++", "-std=c++20", f"-I{source_dir() / 'allocator'}", "main.cpp", "-o", "main", library,
                    f"-Wl,-rpath,{library.rpartition('/')[0]}"], cwd=tmp_path, check=True)
    done = subprocess.run(["./main"], cwd=tmp_path, env={"DYMEM_CONF": CONF}, capture_output=True, text=True)
    assert done.returncode == 0
    assert "CUDA out of memory (dymem). Tried to allocate 8.00 GiB" in done.stdout and "live 1.0 MiB" in done.stdout


PEERS = r"""
#include <cstdio>
#include <set>
#include <string>
#include <vector>
#include "abi/peer_driver.hpp"
#include "driver/emulated.hpp"
#include "driver/forwarding.hpp"
using namespace dymem;
// An emulated device that remembers which ranges which peer was let at.
struct Peers : Forwarding<> {
  explicit Peers(std::unique_ptr<Driver> device) : Forwarding<>(*device), kept(std::move(device)) {}
  std::unique_ptr<Driver> kept;
  std::vector<std::string> log;
  bool refuse = false;
  Addr base = 0;
  Status set_peer_access(Addr a, Bytes n, int peer) override {
    if (refuse) return {Code::failed, "set_peer_access", 1};
    log.push_back(std::to_string(peer) + ":" + std::to_string((a - base) >> 21) + "+" + std::to_string(n >> 21));
    return {};
  }
};
int main() {
  auto* peers = new Peers(make_emulated_driver({}));
  auto driver = make_peer_driver(std::unique_ptr<Driver>(peers));
  const Bytes g = driver->granularity();
  Addr at = 0;
  driver->reserve(16 * g, &at).expect_ok();
  peers->base = at;
  for (int i = 0; i < 6; ++i) {
    Handle h;
    driver->create(g, &h).expect_ok();
    driver->map(at + i * g, g, h).expect_ok();
  }
  driver->set_access(at, 4 * g).expect_ok();      // no peer yet: nothing to grant
  driver->unmap(at + g, g).expect_ok();           // a hole in the middle of what was granted at once
  driver->enable_peer(3).expect_ok();             // 3:0+1 3:2+2
  driver->enable_peer(3).expect_ok();             // again: nothing
  driver->set_access(at + 4 * g, g).expect_ok();  // 3:4+1
  driver->enable_peer(5).expect_ok();             // 5:0+1 5:2+2 5:4+1
  peers->refuse = true;
  const bool refused = !driver->set_access(at + 5 * g, g).ok() && !driver->enable_peer(6).ok();
  for (const auto& line : peers->log) std::printf("%s ", line.c_str());
  std::printf("%s\n", refused ? "refused" : "granted");
}
"""


def test_peers_reach_what_is_mapped_now_and_later(tmp_path):
    from dymem._paths import library_path, source_dir

    (tmp_path / "main.cpp").write_text(textwrap.dedent(PEERS))
    library = library_path()
    subprocess.run(["g++", "-std=c++20", f"-I{source_dir() / 'allocator'}", "main.cpp", "-o", "main", library,
                    f"-Wl,-rpath,{library.rpartition('/')[0]}"], cwd=tmp_path, check=True)
    done = subprocess.run(["./main"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split() == ["3:0+1", "3:2+2", "3:4+1", "5:0+1", "5:2+2", "5:4+1", "refused"], done.stderr
