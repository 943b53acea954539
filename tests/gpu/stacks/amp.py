"""Mixed precision in float16 with GradScaler; one step overflows on purpose and must be skipped."""

import torch
from convnet import convnet
from steps import Steps

steps = Steps()
kind = steps.device.type
net = convnet(steps.size(8, 128)).to(steps.device)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler(kind, init_scale=2.0**10, growth_interval=2)
draw = torch.Generator().manual_seed(0)
for number in steps:
    images = torch.randn(steps.size(8, 64), 3, steps.size(16, 64), steps.size(16, 64), generator=draw).to(steps.device)
    labels = torch.randint(0, 10, (len(images),), generator=draw).to(steps.device)
    with torch.autocast(kind, torch.float16 if steps.cuda else torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(net(images), labels)
    scaler.scale(loss * (torch.inf if number == 2 else 1)).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    steps.end(loss)
steps.finish(*net.parameters(), scale=scaler.get_scale())
