"""DataLoader workers, forked and spawned, with pin_memory; batches go to the GPU on a stream of their own, one ahead.

The workers tell which allocator they have, too: a spawned one is a Python process that starts afresh.
"""

import torch
from steps import Steps
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, count: int, side: int) -> None:
        self.count, self.side = count, side

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int):
        draw = torch.Generator().manual_seed(at)
        return torch.randn(3, self.side, self.side, generator=draw), at % 10, torch.cuda.get_allocator_backend()


def main() -> None:
    from convnet import convnet

    steps = Steps()
    net = convnet(steps.size(8, 96)).to(steps.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    side = torch.cuda.Stream() if steps.cuda else None
    batch = steps.size(8, 64)
    sources = [iter(DataLoader(Images(batch * steps.count, steps.size(16, 64)), batch, num_workers=2, pin_memory=steps.cuda,
                               multiprocessing_context=how, persistent_workers=True)) for how in ("fork", "spawn")]
    workers: set[str] = set()

    def fetch(number: int):
        images, labels, backends = next(sources[number % 2])
        workers.update(backends)
        with torch.cuda.stream(side):
            return images.to(steps.device, non_blocking=True), labels.to(steps.device, non_blocking=True)

    ahead = fetch(0)
    for number in steps:
        if side is not None:
            torch.cuda.current_stream().wait_stream(side)
        images, labels = ahead
        if side is not None:
            images.record_stream(torch.cuda.current_stream())
            labels.record_stream(torch.cuda.current_stream())
        if number + 1 < steps.count:
            ahead = fetch(number + 1)
        loss = torch.nn.functional.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        steps.end(loss)
    steps.finish(*net.parameters(), workers=sorted(workers))


if __name__ == "__main__":
    main()
