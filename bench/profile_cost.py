"""What does a profiled iteration cost beside a plain one, and the iterations after it?

    python bench/profile_cost.py --json bench/results/profile_cost-cpu.json      # CPU memory, anywhere
    python bench/profile_cost.py --device cuda --json bench/results/profile_cost.json
    python bench/profile_cost.py --automatic --json bench/results/automatic_cost-cpu.json    # `--device cuda` too

Plain and profiled steps of one model take turns in one process: P, Q, P, P, Q, P, … where Q is profiled. `profiled_ratio` is
the median of Q over the median of the P before a Q; `after_ratio` that of the P after a Q over the same. Models: a ResNet-32
and a transformer of a size at which computing counts, and `tiny_ops`, three hundred operators on 64 numbers each, where
nothing but the cost of a call counts: the worst that can happen.

`--automatic` trains under mobility:auto instead. Once an iteration is followed, rounds of four kinds of steps take turns, in an
order that rotates: untagged ones, followed ones, ones in which iterations are looked for, and untagged ones once more, whose
ratio to the first is what nothing at all measures as. Each kind has five steps a round, of which the last three count; a
round's ratio is that of their medians. `followed`, `looking` and `again` are the medians over rounds, each with its 95 %
interval (a bootstrap over rounds). On the CPU the memory is the emulated driver's: `layers` computes on the CPU and takes
of the pool what its layers would, and `calls` does nothing else, so that only the cost of a call counts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable

from checks import check_targets, require, stop

from dymem.compare.figures import Pair, bounds, pair_ratio


def models(device: str) -> dict[str, Callable[[], Callable[[int], float]]]:
    import torch
    import workloads
    from torch import nn

    workloads.DEVICE = device

    def resnet() -> Callable[[int], float]:
        return workloads.cifar_resnet32(norm=True, batch=16)(workloads.no_phase)

    def transformer() -> Callable[[int], float]:
        layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, norm_first=True)
        model = nn.Sequential(nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), nn.Linear(256, 1000))

        def batch(i: int) -> tuple:
            return torch.randn(2, 128, 256, device=device), torch.randint(0, 1000, (2, 128), device=device)

        def loss_of(net: nn.Module, batch: tuple) -> torch.Tensor:
            return nn.functional.cross_entropy(net(batch[0]).flatten(0, 1), batch[1].flatten())

        return workloads.training_step(model, batch, loss_of, workloads.no_phase, optimizer="adamw", bf16=False)

    def tiny_ops() -> Callable[[int], float]:
        weight = torch.ones(64, device=device, requires_grad=True)

        def step(i: int) -> float:
            x = weight
            for _ in range(150):
                x = (x * 1.01).tanh()
            loss = x.sum()
            loss.backward()
            weight.grad = None
            return loss.item()

        return step

    return {"resnet32": resnet, "transformer": transformer, "tiny_ops": tiny_ops}


def timer(step: Callable[[int], float], synchronize: Callable[[], None]) -> Callable[..., float]:
    """Seconds of step(i), with a profile around it if one is given."""
    def timed(i: int, profile=contextlib.nullcontext()) -> float:
        synchronize()
        began = time.perf_counter()
        with profile:
            step(i)
        synchronize()
        return time.perf_counter() - began

    return timed


def median_ms(seconds: list[float]) -> float:
    return round(1e3 * statistics.median(seconds), 3)


def measure(step: Callable[[int], float], pairs: int, host: bool, synchronize: Callable[[], None]) -> dict[str, object]:
    from dymem.mobility import Profile

    timed = timer(step, synchronize)
    for i in range(4):
        timed(i)
    plain, profiled, after, last = [], [], [], None
    for i in range(pairs):
        plain.append(timed(i))
        last = Profile(host)
        profiled.append(timed(i, last))
        after.append(timed(i))
    began = time.perf_counter()
    facts = last.facts
    seconds = time.perf_counter() - began
    return {"step_ms": median_ms(plain), "profiled_ms": median_ms(profiled),
            "profiled_ratio": round(statistics.median(profiled) / statistics.median(plain), 3),
            "after_ratio": round(statistics.median(after) / statistics.median(plain), 3),
            "facts_ms": round(1e3 * seconds, 1),
            "nodes": len(facts.nodes), "allocations": len(facts.allocations), "complete": facts.complete,
            "bytes_by_role": facts.bytes_by_role()}


def pooled(device: str) -> dict[str, Callable[[], Callable[[int], float]]]:
    """Programs whose memory is a pool's."""
    import torch

    if device == "cuda":
        return models(device)

    def program(width: int, rows: int, layers: int) -> Callable[[int], float]:
        from dymem import _torch  # there once dymem is installed

        class Take(torch.autograd.Function):
            """As a layer on a GPU: workspace, a tensor saved for backward, a gradient on its way."""

            @staticmethod
            def forward(ctx, x, i):
                _torch.allocate_on(1 << 20).free()
                ctx.kept = _torch.allocate_on((1 + i % 5) << 16)
                return x * 1

            @staticmethod
            def backward(ctx, grad):
                gradient = _torch.allocate_on(1 << 18)
                ctx.kept.free()
                gradient.free()
                return grad, None

        net = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(layers))
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        batch = torch.randn(rows, width)

        def step(i: int) -> float:
            x = batch
            for number, layer in enumerate(net):
                x = Take.apply(layer(x).relu(), number)
            loss = x.square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.item()

        return step

    return {"layers": lambda: program(512, 256, 24), "calls": lambda: program(2, 1, 48)}


def measure_automatic(step: Callable[[int], float], pairs: int, synchronize: Callable[[], None]) -> dict[str, object]:
    from dymem.mobility import Profile, automatic, follow, following_stats, stop_following

    timed = timer(step, synchronize)
    first = []
    while not following_stats()["following"] and len(first) < 60:
        first.append(timed(len(first)))
    if not following_stats()["following"]:
        return {"followed_after": None, "state": automatic._search.state}
    for i in range(3):
        timed(i)
    stats = following_stats()
    with Profile() as profile:
        step(0)
    from dymem import _torch

    def follow_again() -> None:
        follow(profile.facts)

    def look() -> None:
        stop_following()
        _torch.searching.start(lambda: None)

    kinds = {"untagged": stop_following, "followed": follow_again, "looking": look, "again": stop_following}
    order = list(kinds)
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}  # a round each
    for i in range(pairs):
        for kind in order[i % len(order):] + order[:i % len(order)]:
            kinds[kind]()
            seconds[kind].append(statistics.median([timed(i) for _ in range(5)][2:]))
            if kind == "looking":
                _torch.searching.stop()
    untagged = seconds.pop("untagged")
    ratios = {kind: ratio_of([([plain], [theirs]) for plain, theirs in zip(untagged, each)]) for kind, each in seconds.items()}
    more = first[-1] - statistics.median(untagged)  # what the last step before it was followed cost more
    return {"followed_after": len(first), "step_ms": median_ms(untagged), **ratios,
            "profiled_and_concluded_ms": round(1e3 * more, 1), "allocations": stats["allocations"],
            "tagged": stats["tagged"], "departures": stats["departures"]}


def ratio_of(rounds: list[Pair]) -> dict[str, object]:
    """The median over rounds, a pair of one step each, and its 95 % interval."""
    return {"ratio": round(statistics.median(map(pair_ratio, rounds)), 3),
            "interval": [round(bound, 3) for bound in bounds(rounds, level=0.975)]}


def main() -> int:
    parser = argparse.ArgumentParser(description="The cost of a profiled iteration.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--only", help="one of resnet32, transformer, tiny_ops; of layers, calls")
    parser.add_argument("--automatic", action="store_true", help="under mobility:auto")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    check_targets(options.json)
    require("torch")
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        stop("torch sees no GPU here")
    if options.automatic:
        return automatically(options)
    programs = models(options.device)
    check_only(options.only, programs)
    if options.device == "cuda":
        import dymem

        dymem.install()
    synchronize = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    torch.manual_seed(0)
    results = {}
    for name, build in programs.items():
        if options.only in (None, name):
            results[name] = measure(build(), options.pairs, options.device == "cpu", synchronize)
            figures = results[name]
            print(f"{name}: step {figures['step_ms']} ms, profiled {figures['profiled_ratio']} x, after it "
                  f"{figures['after_ratio']} x; facts of {figures['nodes']} nodes in {figures['facts_ms']} ms", flush=True)
    write(options, results)
    return 0


def check_only(name: str | None, known: dict[str, object]) -> None:
    if name is not None and name not in known:
        stop(f"there is no program '{name}' here; there are {', '.join(known)}.")


def automatically(options: argparse.Namespace) -> int:
    """One model a process, since only one iteration of a process is looked for."""
    import dymem
    import torch

    programs = pooled(options.device)
    check_only(options.only, programs)
    torch.manual_seed(0)
    dymem.install(mobility="auto", **({} if options.device == "cuda" else {"driver": "emulated"}))
    if options.only is None:
        results = {}
        for name in programs:
            with tempfile.TemporaryDirectory() as folder:
                part = Path(folder) / "part.json"
                subprocess.run([sys.executable, __file__, "--automatic", "--device", options.device, "--pairs", str(options.pairs),
                                "--only", name, "--json", str(part)], check=True)
                results |= json.loads(part.read_text())["models"]
    else:
        synchronize = torch.cuda.synchronize if options.device == "cuda" else lambda: None
        results = {options.only: measure_automatic(programs[options.only](), options.pairs, synchronize)}
        figures = results[options.only]
        said = [f"{kind} {figures[kind]['ratio']} ({figures[kind]['interval'][0]} to {figures[kind]['interval'][1]})"
                for kind in ("followed", "looking", "again") if kind in figures]
        print(f"{options.only}: followed after {figures['followed_after']} steps; {figures.get('step_ms')} ms, times "
              f"{', '.join(said)}", flush=True)
    write(options, results)
    return 0


def write(options: argparse.Namespace, results: dict[str, dict]) -> None:
    import torch

    where = torch.cuda.get_device_name() if options.device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    result = {"device": where, "torch": torch.__version__, "python": sys.version.split()[0], "pairs": options.pairs,
              "commit": os.environ.get("DYMEM_COMMIT", ""), "models": results}
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
