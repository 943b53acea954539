"""torch.cuda.MemPool on a card: who is served from it, nesting, threads, sources of one's own, one limit, NCCL."""

import shutil
import subprocess

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.torch]


def test_pools_nest_count_and_give_back(on_card):
    on_card("""
def in_pool(pool, t):
    return any(s["address"] <= t.data_ptr() < s["address"] + s["total_size"] for s in pool.snapshot())
outside = torch.ones(MIB, device="cuda")
outer, inner = torch.cuda.MemPool(), torch.cuda.MemPool()
assert outer.use_count() == 1
with torch.cuda.use_mem_pool(outer):
    assert outer.use_count() == 2
    a = torch.full((3 * MIB,), 1, dtype=torch.uint8, device="cuda")
    with torch.cuda.use_mem_pool(inner):
        b = torch.full((3 * MIB,), 2, dtype=torch.uint8, device="cuda")
    c = torch.full((3 * MIB,), 3, dtype=torch.uint8, device="cuda")
    # Only this thread's allocations.
    other = []
    thread = threading.Thread(target=lambda: other.append(torch.full((MIB,), 4, dtype=torch.uint8, device="cuda")))
    thread.start(); thread.join()
d = torch.full((3 * MIB,), 5, dtype=torch.uint8, device="cuda")
assert [in_pool(outer, t) for t in (outside, a, b, c, other[0], d)] == [False, True, False, True, False, False]
assert [in_pool(inner, t) for t in (a, b, c, d)] == [False, True, False, False]
assert all(standard(t) for t in (outside, a, b, c, d, other[0]))
assert all((t == n).all() for n, t in ((1, a), (2, b), (3, c), (4, other[0]), (5, d)))
assert outer.use_count() == 1
sound()

# Freed by another thread, and with work on another stream under way.
stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(stream):
    torch.cuda._sleep(20_000_000)
    copy = a.clone()
a.record_stream(stream)
held = [a]; del a
thread = threading.Thread(target=held.clear)
thread.start(); thread.join()
with torch.cuda.use_mem_pool(outer):
    again = torch.full((3 * MIB,), 9, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
assert (copy == 1).all()

assert torch.cuda.memory_allocated() == sum(t.untyped_storage().nbytes() for t in (outside, b, c, d, other[0], copy, again))
used = holds()[1]
del b, c, again, copy
del inner, outer
gc.collect(); torch.cuda.empty_cache()
assert used > 0 == holds()[1], (used, holds())
assert "Allocated memory" in torch.cuda.memory_summary()
sound()
""")


SOURCE = r"""
#include <dlfcn.h>
#include <cstddef>
#include <sys/types.h>
static void* call(const char* name) {
  static void* cuda = dlopen("libcuda.so.1", RTLD_NOW);
  return dlsym(cuda, name);
}
extern "C" {
long allocated, freed;
void* source_alloc(ssize_t size, int, void*) {
  unsigned long long at = 0;
  int error = ((int (*)(unsigned long long*, size_t))call("cuMemAlloc_v2"))(&at, size);
  if (error) return nullptr;
  allocated++;
  return (void*)at;
}
void source_free(void* at, ssize_t, int, void*) {
  ((int (*)(unsigned long long))call("cuMemFree_v2"))((unsigned long long)at);
  freed++;
}
}
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_source_of_ones_own(on_card, tmp_path):
    (tmp_path / "source.cpp").write_text(SOURCE)
    library = tmp_path / "source.so"
    subprocess.run(["g++", "-shared", "-fPIC", str(tmp_path / "source.cpp"), "-o", str(library), "-ldl"], check=True)
    on_card(f"""
import ctypes
source = torch.cuda.memory.CUDAPluggableAllocator({str(library)!r}, "source_alloc", "source_free")
count = lambda name: ctypes.c_long.in_dll(ctypes.CDLL({str(library)!r}), name).value
pool = torch.cuda.MemPool(source._allocator)
with torch.cuda.use_mem_pool(pool):
    a = torch.full((3 * MIB,), 3, dtype=torch.uint8, device="cuda")
b = torch.full((3 * MIB,), 4, dtype=torch.uint8, device="cuda")
assert count("allocated") == 1 and (a == 3).all() and (b == 4).all()
assert holds()[1] >= 3 * MIB
del a, pool
gc.collect(); torch.cuda.empty_cache()
assert count("freed") == 1 and holds()[1] == 0
# dymem's own adapter as the source: a pool without one.
pool = torch.cuda.MemPool(torch.cuda.memory._get_current_allocator()._allocator)
with torch.cuda.use_mem_pool(pool):
    c = torch.full((3 * MIB,), 5, dtype=torch.uint8, device="cuda")
assert (c == 5).all() and holds()[1] >= 3 * MIB
sound()
""")


@pytest.mark.alone
def test_one_limit_over_both(on_card):
    on_card("""
block = lambda n: torch.full((n * MIB,), n, dtype=torch.uint8, device="cuda")
pool = torch.cuda.MemPool()
start_free = torch.cuda.mem_get_info()[0]
def fill(n):
    held = []
    try:
        while True: held.append(block(n))
    except torch.OutOfMemoryError as error:
        return held, str(error)
with torch.cuda.use_mem_pool(pool):
    pooled = [block(32) for _ in range(4)]
eager, sentence = fill(32)
assert "limit 512.0 MiB" in sentence and "private pools" in sentence, sentence
assert sum(holds()) <= 512 * MIB and len(eager) >= 10, (holds(), len(eager))
with torch.cuda.use_mem_pool(pool):
    more, sentence = fill(32)
assert "private pool" in sentence and "limit 512.0 MiB" in sentence, sentence
assert sum(holds()) <= 512 * MIB
# What is idle on one side goes to the other.
del eager, more
with torch.cuda.use_mem_pool(pool):
    pooled += [block(32) for _ in range(10)]
assert sum(holds()) <= 512 * MIB and holds()[1] >= 14 * 32 * MIB
assert all((t == 32).all() for t in pooled)
del pooled, pool
gc.collect()
eager = [block(32) for _ in range(15)]
assert sum(holds()) <= 512 * MIB
assert torch.cuda.max_memory_reserved() <= 512 * MIB
assert start_free - torch.cuda.mem_get_info()[0] <= 600 * MIB  # on the device too, kernels included
del eager
torch.cuda.set_per_process_memory_fraction(128 * MIB / torch.cuda.get_device_properties(0).total_memory)
pool = torch.cuda.MemPool()
torch.cuda.empty_cache()
with torch.cuda.use_mem_pool(pool):
    pooled, sentence = fill(24)
assert len(pooled) in (4, 5) and sum(holds()) <= 128 * MIB
sound()
""", DYMEM_CONF="limit:512MiB")


def test_use_on_oom_and_no_split(on_card):
    on_card("""
import inspect
block = lambda n: torch.full((n * MIB,), n, dtype=torch.uint8, device="cuda")
options = inspect.signature(torch.cuda.MemPool.__init__).parameters
pool = torch.cuda.MemPool(use_on_oom=True)
with torch.cuda.use_mem_pool(pool):
    idle = block(64)
at = idle.data_ptr()
del idle
held = []
try:
    while True: held.append(block(16))
except torch.OutOfMemoryError:
    pass
assert any(at <= t.data_ptr() < at + 64 * MIB for t in held), "the pool's idle memory was used before failing"
assert sum(holds()) <= 256 * MIB
assert all(t[0].item() == 16 == t[-1].item() for t in held)  # nothing is left to compare whole tensors in
del held, pool
gc.collect(); torch.cuda.empty_cache()
if "no_split" in options:
    pool = torch.cuda.MemPool(no_split=True)
    with torch.cuda.use_mem_pool(pool):
        a, b = block(3), block(3)
    assert len(pool.snapshot()) == 2
    del a, b, pool
gc.collect(); torch.cuda.empty_cache()
assert holds()[1] == 0
sound()
""", DYMEM_CONF="limit:256MiB")


@pytest.mark.parametrize("hook", ["1", "0"], ids=["by its hook", "by hand"])
def test_nccl_registers_what_lies_in_a_pool(on_card, hook):
    """With the hook NCCL follows the allocator's trace; by hand a pool is registered and deregistered. Not both at once:
    what was deregistered by hand the hook would deregister again."""
    on_card("""
hook = os.environ["TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"] == "1"
import torch.distributed as dist
if not dist.is_nccl_available(): skip("this torch has no NCCL")
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=torch.device("cuda:0"))
group = dist.distributed_c10d._get_default_group()
backend = group._get_backend(torch.device("cuda:0"))
try:
    pool = torch.cuda.MemPool(backend.mem_allocator)
except RuntimeError as error:  # NCCL's own allocator needs more of the machine; registering needs none of it
    assert "not supported" in str(error), error
    pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    t = torch.full((4 * MIB,), 2.0, device="cuda")
if not hook: backend.register_mem_pool(pool)
eager = torch.full((4 * MIB,), 3.0, device="cuda")
for _ in range(3):
    dist.all_reduce(t); dist.all_reduce(eager)
assert t.sum().item() == 2 * 4 * MIB and eager.sum().item() == 3 * 4 * MIB
if not hook: backend.deregister_mem_pool(pool)
del t, pool
dist.destroy_process_group()
sound()
""", TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK=hook)
