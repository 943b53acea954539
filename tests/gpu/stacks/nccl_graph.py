"""Collectives in a captured graph, on buffers made before it; replayed while memory around them comes and goes.

By torchrun. Without a GPU the same collectives, eager.
"""

import torch
import torch.distributed as dist
from steps import Steps

steps = Steps()
dist.init_process_group("nccl" if steps.cuda else "gloo")
count = steps.size(3_000_000, 48_000_000)  # 12 and 192 MB: over several pages of any size
hole = torch.ones(count // 3, device=steps.device)
summed = torch.zeros(count, device=steps.device)
part = torch.zeros(count // 4, device=steps.device)
gathered = torch.zeros(steps.ranks * (count // 4), device=steps.device)
del hole


def exchange() -> None:
    dist.all_reduce(summed)
    dist.all_gather_into_tensor(gathered, part)


exchange()  # connections are made outside a capture
graph = None
if steps.cuda:
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        exchange()

held: list[torch.Tensor] = []
for number in steps:
    draw = torch.Generator(steps.device).manual_seed(100 * number + steps.rank)
    summed.uniform_(generator=draw)
    part.uniform_(generator=draw)
    if graph is None:
        exchange()
    else:
        graph.replay()
    held.append(torch.full((count // 8 * (number % 4 + 1),), float(number), device=steps.device))
    held = held[-2:]
    if number % 3 == 2 and steps.cuda:
        torch.cuda.empty_cache()
    steps.end(summed.mean() + gathered.mean())
steps.finish(summed, gathered)
if graph is not None:
    graph.reset()  # a communicator waits for its graphs
dist.destroy_process_group()
