"""The adapter on a card: training, cuDNN, streams, worker processes, memory given back, errors.

Where a figure must equal PyTorch's own allocator's, the same script runs under both (conf=None: native).
"""

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.gpu]

TRAINING = """
import torch
from torch import nn
torch.manual_seed(0)
torch.use_deterministic_algorithms(True)
model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2),
                      nn.ReLU(), nn.Flatten(), nn.Linear(64 * 31 * 31, 10)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(8):
    images = torch.randn(16 + 4 * (step % 3), 3, 64, 64).cuda(non_blocking=True)
    labels = torch.randint(0, 10, (len(images),)).cuda()
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
print(torch.cuda.memory_stats()["requested_bytes.all.current"], torch.cuda.memory_stats()["allocation.all.current"])
"""


def test_training_gives_the_same_losses(script):
    workspace = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    native = script(TRAINING, conf=None, **workspace)
    ours = script(TRAINING + """
assert torch.cuda.get_allocator_backend() == "dymem"
assert _core.abi.pool(0).audit() == []
""", conf="", **workspace)
    assert len(ours.out.splitlines()) == 9 and ours.out == native.out
    assert ours.err == ""  # nothing at exit either, with the model still alive


def test_installing_makes_no_context(script):
    script("""
        assert not torch.cuda.is_initialized() and not _core.abi.made(0)
        assert torch.cuda.memory_allocated(0) == 0 and not torch.cuda.is_initialized()
        torch.ones(1, device="cuda")
        assert torch.cuda.is_initialized() and _core.abi.made(0)
        raises(dymem.InstallError, lambda: dymem.install(limit="1GiB"), "already")
    """, conf="")


def test_after_the_first_use_it_is_too_late(script):
    script("""
        torch.ones(1, device="cuda")
        raises(dymem.InstallError, dymem.install, "CUDA was used")
        assert torch.cuda.get_allocator_backend() == "native"
    """, conf=None)


def test_cudnn_benchmark(script):
    script("""
        torch.backends.cudnn.benchmark = True
        conv = torch.nn.Conv2d(64, 64, 3, padding=1).cuda()
        for size in (32, 48, 32):
            conv(torch.randn(8, 64, size, size, device="cuda")).sum().backward()
        torch.cuda.synchronize()
        assert conv.weight.grad.isfinite().all()
    """, conf="")


@pytest.mark.alone
def test_statistics_and_memory_given_back(script):
    script("""
        x = torch.empty(256 * MiB, dtype=torch.uint8, device="cuda")
        assert torch.cuda.memory_allocated() == 256 * MiB == torch.cuda.max_memory_allocated()
        assert torch.cuda.memory_reserved() >= 256 * MiB
        before = torch.cuda.mem_get_info()[0]
        del x
        assert torch.cuda.memory_allocated() == 0 and torch.cuda.max_memory_allocated() == 256 * MiB
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() == 0
        assert torch.cuda.mem_get_info()[0] >= before + 250 * MiB
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() == 0
        assert "Allocated memory" in torch.cuda.memory_summary()
        assert torch.accelerator.memory.memory_stats(0)["allocated_bytes.all.allocated"] == 256 * MiB
        address = torch.cuda.caching_allocator_alloc(1 << 20)
        assert torch.cuda.memory_allocated() == 1 << 20
        torch.cuda.caching_allocator_delete(address)
        assert torch.cuda.memory_allocated() == 0
    """, conf="")


def test_streams(script):
    script("""
        side = torch.cuda.Stream()
        for round in range(20):
            x = torch.full((8 * MiB,), round, dtype=torch.int32, device="cuda")
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.cuda._sleep(2_000_000)
                copy = x.clone()
            x.record_stream(side)
            del x  # the block must not be handed out before the side stream has read it
            torch.full((8 * MiB,), -1, dtype=torch.int32, device="cuda")
            torch.cuda.current_stream().wait_stream(side)
            assert (copy == round).all().item(), round
            copy.record_stream(torch.cuda.current_stream())
        torch.cuda.synchronize()
        assert _core.abi.pool(0).audit() == []
    """, conf="")


def test_backward_on_many_threads(script):
    script("""
        import threading
        failures = []
        def work(seed):
            try:
                with torch.cuda.stream(torch.cuda.Stream()):
                    layer = torch.nn.Linear(512, 512).cuda()
                    for step in range(30):
                        y = layer(torch.randn(64 + seed + step, 512, device="cuda")).relu()
                        y.square().mean().backward()
                    assert layer.weight.grad.isfinite().all().item()
            except BaseException as error:
                failures.append(error)
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert not failures, failures
        torch.cuda.synchronize()
        assert _core.abi.pool(0).audit() == []
    """, conf="")


def test_workers_forked_after_the_first_use(script):
    done = script("""
        from torch.utils.data import DataLoader, TensorDataset
        kept = torch.ones(5 * MiB, device="cuda")  # every worker inherits it, and frees its copy as it ends
        loader = DataLoader(TensorDataset(torch.arange(64)), batch_size=8, num_workers=2, pin_memory=True)
        total = sum(batch.cuda(non_blocking=True).sum().item() for (batch,) in loader)
        assert total == sum(range(64))
        child = os.fork()
        if child == 0:
            del kept
            gc.collect()
            try:
                torch.ones(1, device="cuda")
            except RuntimeError as error:
                os._exit(0 if "fork" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert kept.sum().item() == 5 * MiB
    """, conf="")
    assert "dymem" not in done.err, done.err


def test_out_of_memory_is_torchs_and_leaves_the_pool_usable(script):
    script("""
        for size in (1 << 41, 1 << 50, 1 << 60):
            raises(torch.OutOfMemoryError, lambda: torch.empty(size, dtype=torch.uint8, device="cuda"), "dymem")
        torch.cuda.set_per_process_memory_fraction(0.01)
        limit = _core.abi.pool(0).limit()
        held, block = [], 64 * MiB
        raises(torch.OutOfMemoryError,
               lambda: [held.append(torch.empty(block, dtype=torch.uint8, device="cuda")) for _ in range(10_000)],
               "CUDA out of memory (dymem)", "Tried to allocate 64.0 MiB", "limit")
        assert len(held) * block <= limit < (len(held) + 2) * block
        assert torch.cuda.memory_stats()["num_ooms"] >= 2
        del held
        torch.ones(1, device="cuda").item()
        assert _core.abi.pool(0).audit() == []
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.empty(limit, dtype=torch.uint8, device="cuda")
    """, conf="")


def test_what_was_asked_is_recorded(script, tmp_path):
    script(f"""
        for _ in range(5):
            torch.ones(MiB, device="cuda").sum().item()
        assert dymem.save_trace({str(tmp_path / "trace")!r}) >= 10
    """, conf="trace='on'")


def test_the_reduced_route_trains(script):
    done = script("""
        allocator = torch.cuda.memory.CUDAPluggableAllocator(dymem.library_path(), "dymem_malloc", "dymem_free")
        torch.cuda.memory.change_current_allocator(allocator)
        layer = torch.nn.Linear(512, 512).cuda()
        layer(torch.randn(64, 512, device="cuda")).sum().backward()
        assert layer.weight.grad.isfinite().all().item()
        assert dymem.memory_stats()["allocated_bytes.all.current"] > 0
        raises(RuntimeError, lambda: torch.empty(1 << 41, dtype=torch.uint8, device="cuda"), "CUDA out of memory (dymem)")
    """, conf=None)
    assert done.err.count("reduced route") == 1


def test_the_reduced_route_refuses_to_serve_a_capture(script):
    """PyTorch tells a pluggable allocator nothing of private pools: what a graph uses would be handed out again."""
    script("""
        allocator = torch.cuda.memory.CUDAPluggableAllocator(dymem.library_path(), "dymem_malloc", "dymem_free")
        torch.cuda.memory.change_current_allocator(allocator)
        x = torch.ones(1000, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            raises(RuntimeError, lambda: x + 1, "call dymem.install() instead")
            x.add_(1)
        graph.replay()
        assert (x + 1).sum().item() == 3000
    """, conf=None)


def test_two_devices_reach_each_other(script):
    script("""
        if torch.cuda.device_count() < 2:
            skip("needs two GPUs")
        a = torch.arange(4 * MiB, device="cuda:0")
        b = a.to("cuda:1")
        assert (b.cpu() == a.cpu()).all()
        if torch.cuda.can_device_access_peer(1, 0):
            strided = torch.arange(4 * MiB, device="cuda:0").view(2048, 2048).t()  # read by a kernel of the other device
            assert (strided.to("cuda:1").cpu() == strided.cpu()).all()
            later = torch.randn(2048, 2048, device="cuda:0").t()  # mapped after access was given
            assert (later.to("cuda:1").cpu() == later.cpu()).all()
        del a, b
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)
        assert _core.abi.pool(0).audit() == [] and _core.abi.pool(1).audit() == []
    """, conf="")
