"""cudnn.benchmark = True: cuDNN tries its algorithms with workspaces as large as memory allows, anew for every shape."""

import torch
from convnet import convnet
from steps import Steps

steps = Steps(exact=False)  # which algorithm is fastest may differ from run to run
torch.use_deterministic_algorithms(False)
torch.backends.cudnn.benchmark = True
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
net = convnet(steps.size(16, 128)).to(steps.device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
for number in steps:
    side = steps.size(32, 96) + 16 * (number % 3)
    images = torch.randn(steps.size(8, 64), 3, side, side, device=steps.device, generator=torch.Generator(
        steps.device).manual_seed(number))
    labels = torch.arange(len(images), device=steps.device) % 10
    loss = torch.nn.functional.cross_entropy(net(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    steps.end(loss)
steps.finish()
