"""Two processes that send tensors on the GPU to each other; run by test_ipc.py, one JSON line out.

    python ipc_pair.py SENDER RECEIVER [--brief]     each "native", or a configuration of dymem ("" = the defaults)

The receiver is spawned by torch.multiprocessing and imports this file anew, so each side installs its own allocator.
"""

import gc
import json
import os
import queue
import sys
import time

MIB = 1 << 20
ROLE = "IPC_PAIR_ROLE"  # what the spawned process finds in its environment: the receiver's allocator
ALLOCATOR = os.environ.get(ROLE) if __name__ == "__mp_main__" else sys.argv[1]

if ALLOCATOR != "native":
    os.environ["DYMEM_CONF"] = ALLOCATOR
    import dymem

    dymem.install()

import torch  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from torch.multiprocessing.reductions import reduce_tensor  # noqa: E402


def stats():
    return dymem.memory_stats() if ALLOCATOR != "native" else {}


def values(elements, seed):
    return torch.arange(elements, dtype=torch.int32, device="cuda").mul_(7).add_(seed)


def right(tensor, seed):
    """Of a part at either end and one in the middle, so that checking large tensors takes no memory to speak of."""
    n = tensor.numel()
    spots = [range(0, min(n, 4096)), range(n // 2, min(n, n // 2 + 4096)), range(max(0, n - 4096), n)]
    return all(torch.equal(tensor[spot.start:spot.stop].cpu(),
                           (torch.arange(spot.start, spot.stop, dtype=torch.int64) * 7 + seed).to(torch.int32))
               for spot in spots)


def settled():
    """What both sides should hold once everything is dropped."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.ipc_collect()
    out = {"allocated": torch.cuda.memory_allocated()}
    if ALLOCATOR != "native":
        from dymem import _core

        out |= {key: stats()[key] for key in ("imported_bytes", "imported_mappings", "imported_waiting", "exported_bytes")}
        out["audit"] = _core.abi.pool(0).audit()
    return out


def receive(inbox, outbox, bare):
    """The other process: takes tensors as they come, says whether they are right, changes some of them."""
    torch.cuda.init()
    while (message := inbox.get()) is not None:
        what, payload, *more = message
        if what == "check":
            outbox.put([right(tensor, seed) for tensor, seed in zip(payload, more[0])])
        elif what == "double":
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                payload.mul_(2)
            side.synchronize()
            outbox.put("done")
        elif what == "bare":
            rebuild, arguments = bare.recv()
            tensor = rebuild(*arguments)
            outbox.put(right(tensor, payload))
            del tensor
        elif what == "keep":
            kept = payload
            outbox.put(stats().get("imported_mappings", 0))
        elif what == "kept":
            outbox.put([right(tensor, seed) for tensor, seed in zip(kept, payload)])
            del kept
        elif what == "echo":
            outbox.put("back")
        elif what == "yours":
            mine = values(5 * MIB, 99)
            outbox.put(mine)
            assert inbox.get() == "got it"
            del mine
            outbox.put("freed")
        elif what == "settled":
            message = payload = None
            outbox.put(settled())
        message = payload = None
    torch.cuda.synchronize()


def main():
    receiver, brief = sys.argv[2], "--brief" in sys.argv
    os.environ[ROLE] = receiver
    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    bare, bare_other = context.Pipe()
    process = context.Process(target=receive, args=(inbox, outbox, bare_other))
    process.start()
    result = {"backend": torch.cuda.get_allocator_backend()}

    def answer():
        for _ in range(60):
            try:
                return outbox.get(timeout=1)
            except queue.Empty:
                if not process.is_alive():
                    sys.exit("the receiver ended")
        sys.exit("the receiver does not answer")

    def ask(*message):
        inbox.put(message)
        return answer()

    torch.cuda.init()
    spin = torch.randn(4096, 4096, device="cuda") @ torch.eye(4096, device="cuda")  # cuBLAS takes its workspace
    del spin
    start = torch.cuda.memory_allocated()
    sizes = [256, 700_000, 16 * MIB] + ([] if brief else [50 * MIB])
    tensors = [values(n, i) for i, n in enumerate(sizes)]
    result["right"] = ask("check", tensors, range(len(sizes)))

    # Work that is not done when the tensor is sent: PyTorch sends an event along.
    late = values(4 * MIB, 0)
    spin = torch.randn(4096, 4096, device="cuda")
    for _ in range(20):
        spin = (spin @ spin).clamp(-1, 1)
    late += 5
    result["late"] = ask("check", [late], [5])
    ask("double", late)
    result["written"] = bool((late[:4096].cpu() == (torch.arange(4096) * 7 + 5) * 2).all())

    rebuild = reduce_tensor(tensors[2])  # as servers do that send handles by a channel of their own
    bare.send(rebuild)
    result["bare"] = ask("bare", 2)

    # The sender drops its tensors first and goes on; the receiver still reads what it was sent.
    first = [values(n, 40 + i) for i, n in enumerate((256, 3 * MIB, 20 * MIB))]
    result["mappings"] = ask("keep", first)
    del first
    gc.collect()
    noise = [torch.full((n,), -1, dtype=torch.int32, device="cuda") for n in (256, 3 * MIB, 20 * MIB) for _ in range(3)]
    torch.cuda.synchronize()
    del noise
    result["sender_freed_first"] = ask("kept", range(40, 43))

    small = [values(1000, i) for i in range(200)]
    result["small"] = all(ask("check", small, range(200)))
    result["small_mappings"] = ask("keep", small)
    assert all(ask("kept", range(200)))

    if not brief:
        # Scattered memory: what is sent next is made of granules in several places, if the sender is dymem.
        comb = [values(16 * MIB, i) for i in range(16)]
        comb = comb[1::2]
        wide = values(110 * MIB, 3)
        result["stitches"] = stats().get("num_stitches", 0)
        result["wide"] = ask("check", [wide], [3])
        del comb, wide

        began = time.perf_counter()
        for _ in range(100):
            ask("echo", tensors[1])
        result["round_trip_us"] = (time.perf_counter() - began) * 1e4

        theirs = ask("yours", None)
        result["theirs"] = right(theirs, 99)
        del theirs
        gc.collect()
        inbox.put("got it")
        assert answer() == "freed"

    del tensors, late, spin, small
    result["receiver"] = ask("settled", None)
    result["sender"] = settled()
    result["sender"]["allocated"] -= start
    inbox.put(None)
    process.join(60)
    result["exitcode"] = process.exitcode
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
