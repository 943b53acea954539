"""Checkpoints of both kinds: activations computed again in the backward pass, and training saved to a file and resumed."""

import tempfile

import torch
from steps import Steps
from torch import nn
from torch.utils.checkpoint import checkpoint

steps = Steps()
width, layers = steps.size(64, 1024), steps.size(3, 8)


def build() -> tuple[nn.ModuleList, torch.optim.Optimizer]:
    torch.manual_seed(1)
    net = nn.ModuleList([nn.TransformerEncoderLayer(width, max(2, width // 64), 4 * width, dropout=0.1, batch_first=True)
                         for _ in range(layers)]).to(steps.device)
    return net, torch.optim.AdamW(net.parameters(), lr=1e-3)


net, optimizer = build()
with tempfile.NamedTemporaryFile(suffix=".pt") as file:
    for number in steps:
        if number == steps.count // 2:
            torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, file.name)
            del net, optimizer
            net, optimizer = build()
            saved = torch.load(file.name, map_location=steps.device)
            net.load_state_dict(saved["net"])
            optimizer.load_state_dict(saved["optimizer"])
            del saved
        torch.manual_seed(number)
        x = torch.randn(steps.size(4, 16), steps.size(16, 512) + 8 * (number % 2), width, device=steps.device)
        for layer in net:
            x = checkpoint(layer, x, use_reentrant=False)
        loss = x.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        steps.end(loss)
steps.finish(*net.parameters())
