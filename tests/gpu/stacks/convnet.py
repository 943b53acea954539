"""A small residual convolutional network, for the scripts that need one."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int, stride: int = 1) -> None:
        super().__init__()
        self.a = nn.Conv2d(width // stride, width, 3, stride, 1, bias=False)
        self.b = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm_a, self.norm_b = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.short = nn.Conv2d(width // stride, width, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm_b(self.b(self.norm_a(self.a(x)).relu()))
        return (y + self.short(x)).relu()


def convnet(width: int, classes: int = 10) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1), Block(width), Block(2 * width, 2), Block(4 * width, 2),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, classes))
