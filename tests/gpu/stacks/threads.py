"""Inference by several threads at once, each on a stream of its own, with batches of varying size; one shared model."""

import threading

import torch
from convnet import convnet
from steps import Steps

steps = Steps()
THREADS = 4
net = convnet(steps.size(8, 64)).to(steps.device).eval()
streams = [torch.cuda.Stream() if steps.cuda else None for _ in range(THREADS)]
if steps.cuda:
    torch.cuda.synchronize()
answers: list[list[torch.Tensor]] = [[] for _ in range(THREADS)]
failures: list[BaseException] = []


def serve(who: int, step: int) -> None:
    try:
        with torch.inference_mode(), torch.cuda.stream(streams[who]):
            draw = torch.Generator().manual_seed(100 * step + who)
            for size in torch.randint(1, steps.size(6, 40), (4,), generator=draw).tolist():
                images = torch.randn(size, 3, 32, 32, generator=draw).to(steps.device, non_blocking=True)
                answers[who].append(net(images).softmax(1).cpu())
    except BaseException as error:
        failures.append(error)


for step in steps:
    workers = [threading.Thread(target=serve, args=(who, step)) for who in range(THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failures:
        raise failures[0]
    steps.end(sum(float(each[-1].square().sum()) for each in answers))
steps.finish(*[answer for each in answers for answer in each])
