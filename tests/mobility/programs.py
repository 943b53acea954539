"""Small programs that train on the CPU, each with something that could confuse who watches it.

PROGRAMS[name]() builds the program anew from the same seed and returns step(), which trains one iteration and returns its
loss. All are deterministic, so that losses with and without a profile can be compared bit by bit.
"""

from __future__ import annotations

import threading
from typing import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.a, self.b = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.b(F.relu(self.norm(self.a(x)))) + x)


class Inception(nn.Module):
    """Four branches of figure 10, joined by cat."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        part = channels // 4
        self.one = nn.Sequential(nn.AvgPool2d(3, 1, 1), nn.Conv2d(channels, part, 1))
        self.two = nn.Conv2d(channels, part, 1)
        self.three = nn.Sequential(nn.Conv2d(channels, part, 1), nn.Conv2d(part, part, 3, padding=1))
        self.four = nn.Sequential(*(nn.Conv2d(channels if i == 0 else part, part, 3, padding=1) for i in range(3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(torch.cat([self.one(x), self.two(x), self.three(x), self.four(x)], 1))


class Encoder(nn.Module):
    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(attended)
        return x + self.mlp(self.norm2(x))


class Scale(torch.autograd.Function):
    """Saves its input and keeps its own result beside autograd's."""

    @staticmethod
    def forward(ctx, x, factor):
        y = (x * factor).exp()
        ctx.save_for_backward(x)
        ctx.factor, ctx.kept = factor, y.detach()
        return y.clamp(max=10)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ctx.factor * ctx.kept * (ctx.kept < 10) + 0 * x, None


def images() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 3, 8, 8), torch.randint(0, 10, (4,))


def trained(net: nn.Module, inputs: Callable = images, optimizer: str = "sgd", loss_of: Callable | None = None,
            accumulate: int = 1) -> Callable[[], float]:
    parameters = [p for p in net.parameters() if p.requires_grad]
    update = (torch.optim.SGD(parameters, lr=0.1, momentum=0.9) if optimizer == "sgd" else torch.optim.AdamW(parameters))
    loss_of = loss_of or (lambda x, y: F.cross_entropy(net(x), y))

    def step() -> float:
        for _ in range(accumulate):
            loss = loss_of(*inputs())
            loss.backward()
        update.step()
        update.zero_grad()
        return loss.item()

    return step


def classifier(*middle: nn.Module, channels: int = 8) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), *middle, nn.Flatten(), nn.Dropout(0.2),
                         nn.Linear(channels * 64, 10))


def residual():
    return trained(classifier(Block(8), Block(8)))


def inception():
    return trained(classifier(Inception(8)))


def transformer(wrap: Callable = lambda layer, x: layer(x), layers: int = 2):
    encoders = nn.ModuleList(Encoder() for _ in range(layers))
    head = nn.Linear(32, 10)
    net = nn.ModuleList([encoders, head])

    def loss_of(x, y):
        for layer in encoders:
            x = wrap(layer, x)
        return F.cross_entropy(head(x.mean(1)), y)

    return trained(net, lambda: (torch.randn(2, 12, 32), torch.randint(0, 10, (2,))), "adamw", loss_of)


def checkpointed():
    return transformer(lambda layer, x: checkpoint(layer, x, use_reentrant=False))


def checkpointed_reentrant():
    return transformer(lambda layer, x: checkpoint(layer, x.requires_grad_() if x.is_leaf else x, use_reentrant=True))


def accumulated():
    return trained(classifier(Block(8)), accumulate=3)


def custom_function():
    net = classifier(Block(8))
    return trained(net, loss_of=lambda x, y: Scale.apply(F.cross_entropy(net(x), y), 0.1))


def shared_weights():
    layer = nn.Linear(32, 32)
    return trained(nn.Sequential(nn.Flatten(), nn.Linear(192, 32), layer, nn.Tanh(), layer, nn.ReLU(inplace=True), layer))


def frozen():
    net = classifier(Block(8), Block(8))
    for module in list(net)[:2]:
        module.requires_grad_(False)
    return trained(net)


def views_in_place():
    net = nn.Linear(192, 32)

    def loss_of(x, y):
        z = net(x.flatten(1))
        z = z.view(4, 2, 16)
        z[:, 0].mul_(2)
        left, right = z.unbind(1)
        return F.cross_entropy(torch.cat([left, right.t().t()], 1).relu_(), y)

    return trained(net, loss_of=loss_of)


def several_backwards():
    net, head_a, head_b = nn.Linear(192, 16), nn.Linear(16, 10), nn.Linear(16, 10)
    parameters = [*net.parameters(), *head_a.parameters(), *head_b.parameters()]
    update = torch.optim.SGD(parameters, lr=0.1)

    def step() -> float:
        x, y = images()
        z = net(x.flatten(1)).relu()
        first, second = F.cross_entropy(head_a(z), y), F.cross_entropy(head_b(z), y)
        first.backward(retain_graph=True)
        second.backward()
        update.step()
        update.zero_grad()
        return first.item() + second.item()

    return step


def double_backward():
    net = classifier(nn.Softplus())

    def loss_of(x, y):
        x.requires_grad_()
        (gradient,) = torch.autograd.grad(F.cross_entropy(net(x), y), x, create_graph=True)
        return F.cross_entropy(net(x), y) + gradient.square().sum()

    return trained(net, loss_of=loss_of)


def adversarial():
    """A generator and a discriminator, each with an optimizer."""
    make, judge = nn.Linear(8, 192), nn.Sequential(nn.Linear(192, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    one, two = torch.optim.Adam(make.parameters()), torch.optim.Adam(judge.parameters())

    def step() -> float:
        real, fake = torch.randn(4, 192), make(torch.randn(4, 8))
        loss = F.softplus(-judge(real)).mean() + F.softplus(judge(fake.detach())).mean()
        two.zero_grad()
        loss.backward()
        two.step()
        one.zero_grad()
        second = F.softplus(-judge(fake)).mean()
        second.backward()
        one.step()
        return loss.item() + second.item()

    return step


def foreign_optimizer():
    """Not one of torch.optim's."""
    net = classifier(Block(8))
    momentum = {p: torch.zeros_like(p) for p in net.parameters()}

    def step() -> float:
        x, y = images()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        with torch.no_grad():
            for p, m in momentum.items():
                m.mul_(0.9).add_(p.grad)
                p.sub_(0.1 * m)
                p.grad = None
        return loss.item()

    return step


def inference():
    net = classifier(Block(8)).eval()

    def step() -> float:
        with torch.no_grad():
            return net(images()[0]).sum().item()

    return step


def offloaded():
    """Saved tensors are packed and unpacked by hooks of the program's own."""
    inner = classifier(Block(8))

    def loss_of(x, y):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t.clone()):
            return F.cross_entropy(inner(x), y)

    return trained(inner, loss_of=loss_of)


def backward_on_its_own_thread():
    net = classifier(Block(8))
    update = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> float:
        x, y = images()
        loss = F.cross_entropy(net(x), y)
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
        update.step()
        update.zero_grad()
        return loss.item()

    return step


def threads_beside():
    inner = residual()
    other = torch.randn(64, 64)

    def work() -> None:
        for _ in range(50):
            (other @ other).relu().sum()

    def step() -> float:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        loss = inner()
        for thread in threads:
            thread.join()
        return loss

    return step


def changing_depth():
    blocks, turn = nn.ModuleList(Block(8) for _ in range(4)), iter(range(10**6))
    stem, head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8 * 64, 10)

    def loss_of(x, y):
        x = stem(x)
        for block in list(blocks)[: 1 + next(turn) % 4]:
            x = block(x)
        return F.cross_entropy(head(x.flatten(1)), y)

    return trained(nn.ModuleList([blocks, stem, head]), loss_of=loss_of)


def mixed_precision():
    net = classifier(Block(8))

    def loss_of(x, y):
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(net(x), y)

    return trained(net, loss_of=loss_of)


BUILDERS = [residual, inception, transformer, checkpointed, checkpointed_reentrant, accumulated, custom_function,
            shared_weights, frozen, views_in_place, several_backwards, double_backward, adversarial, foreign_optimizer,
            inference, offloaded, backward_on_its_own_thread, threads_beside, changing_depth, mixed_precision]


def program(build: Callable) -> Callable[[], Callable[[], float]]:
    def built() -> Callable[[], float]:
        torch.manual_seed(0)
        return build()

    return built


PROGRAMS = {build.__name__: program(build) for build in BUILDERS}
