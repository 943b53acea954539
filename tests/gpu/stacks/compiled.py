"""torch.compile of a training step: python compiled.py default|reduce-overhead; with eager work in between.

Tells how many graphs of its own PyTorch recorded, where it records any.
"""

import sys

import torch
from steps import Steps
from torch import nn

steps = Steps()
width = steps.size(64, 1024)
net = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.LayerNorm(4 * width), nn.Linear(4 * width, width), nn.ReLU(),
                    nn.Linear(width, 10)).to(steps.device)
forward = torch.compile(net, mode=sys.argv[1])
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
held = []
for number in steps:
    torch.compiler.cudagraph_mark_step_begin()
    x = torch.randn(steps.size(32, 4096), width, device=steps.device)
    labels = torch.arange(len(x), device=steps.device) % 10
    loss = nn.functional.cross_entropy(forward(x), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    held.append(torch.randn(number + 1, steps.size(1000, 1_000_000), device=steps.device).cumsum(1))  # eager, growing
    held = held[-2:]
    steps.end(loss.detach().clone())
graphs = None
if steps.cuda:
    from torch._inductor import cudagraph_trees

    manager = cudagraph_trees.get_container(steps.device.index).tree_manager
    graphs = next(manager.graph_counter) if manager is not None else 0
steps.finish(*net.parameters(), graphs=graphs)
