"""Training steps in CUDA graphs: python graphed.py replay|capture|callables; with eager work in between.

replay     a whole step captured once, replayed on new data
capture    a whole step captured at every step, all graphs in one pool, the one before it still alive
callables  forward and backward by torch.cuda.make_graphed_callables, the optimizer outside
Without a GPU the same steps, eager.
"""

import sys

import torch
from convnet import convnet
from steps import Steps
from torch import nn

WARM_UP = 3

steps = Steps()
way = sys.argv[1] if steps.cuda else "eager"
batch, width, side = steps.size(8, 64), steps.size(8, 32), steps.size(16, 64)
net = convnet(width).to(steps.device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
images = torch.zeros(batch, 3, side, side, device=steps.device)
labels = torch.arange(batch, device=steps.device) % 10
forward = net


def step() -> torch.Tensor:
    optimizer.zero_grad(set_to_none=True)
    loss = nn.functional.cross_entropy(forward(images), labels)
    loss.backward()
    optimizer.step()
    return loss


def capture(pool) -> tuple["torch.cuda.CUDAGraph", torch.Tensor]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        loss = step()
    return graph, loss


if way == "callables":
    forward = torch.cuda.make_graphed_callables(net, (images.clone(),))
elif way != "eager":
    aside = torch.cuda.Stream()  # libraries choose kernels and take workspaces before a capture, on another stream
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    pool = torch.cuda.graph_pool_handle()
    graph, static_loss = capture(pool)

held = []
for number in steps:
    images.copy_(torch.randn(images.shape, device=steps.device))
    if way == "capture" and number:
        before = graph, static_loss
        graph, static_loss = capture(pool)
    if way in ("replay", "capture"):
        graph.replay()
        loss = static_loss
    else:
        loss = step()
    held.append(torch.randn(number % 5 + 1, steps.size(1000, 1_000_000), device=steps.device).cumsum(1))  # eager
    held = held[-2:]
    steps.end(loss.detach().clone())
steps.finish(*net.parameters())
