"""DistributedDataParallel by torchrun: NCCL where there are GPUs, gloo otherwise; buckets as views of the gradients."""

import torch
import torch.distributed as dist
from convnet import convnet
from steps import Steps
from torch.nn.parallel import DistributedDataParallel

steps = Steps()
dist.init_process_group("nccl" if steps.cuda else "gloo")
net = convnet(steps.size(8, 96)).to(steps.device)
model = DistributedDataParallel(net, device_ids=[steps.device.index] if steps.cuda else None, bucket_cap_mb=1,
                                gradient_as_bucket_view=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
draw = torch.Generator().manual_seed(steps.rank)
for number in steps:
    side = steps.size(16, 64) + 8 * (number % 3)
    images = torch.randn(steps.size(4, 48), 3, side, side, generator=draw).to(steps.device, non_blocking=True)
    labels = torch.randint(0, 10, (len(images),), generator=draw).to(steps.device)
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(loss := loss.detach())
    steps.end(loss)
steps.finish(*net.parameters())
dist.destroy_process_group()
