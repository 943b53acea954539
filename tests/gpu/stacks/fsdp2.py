"""FSDP2 (fully_shard) by torchrun: every layer sharded, bf16 parameters gathered where there are GPUs."""

import torch
import torch.distributed as dist
from steps import Steps
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

steps = Steps()
dist.init_process_group("nccl" if steps.cuda else "gloo")
mesh = init_device_mesh(steps.device.type, (steps.ranks,))
width, layers = steps.size(64, 1024), steps.size(2, 8)
torch.manual_seed(1)
net = nn.Sequential(*[nn.TransformerEncoderLayer(width, max(2, width // 64), 4 * width, dropout=0.0, batch_first=True)
                      for _ in range(layers)], nn.Linear(width, 100)).to(steps.device)
policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if steps.cuda else MixedPrecisionPolicy()
for layer in net:
    fully_shard(layer, mesh=mesh, mp_policy=policy)
fully_shard(net, mesh=mesh, mp_policy=policy)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
draw = torch.Generator().manual_seed(steps.rank)
for number in steps:
    length = steps.size(16, 256) + 8 * (number % 4)
    x = torch.randn(steps.size(4, 16), length, width, generator=draw).to(steps.device)
    out = net(x)
    loss = out.float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(loss := loss.detach())
    steps.end(loss)
steps.finish(*[p.to_local() for p in net.parameters()])
dist.destroy_process_group()
