"""Training and inference steps: the ones that were recorded for python/dymem/traces, and rivals in offloading.

`WORKLOADS[name].build(phase)` makes the model on the GPU and returns `step(i)`, which runs iteration i and returns its
loss as a float (so each step ends synchronised). `phase` is called with "F", "B" and "O" where forward, backward and
optimizer begin. Shapes, seeds and numbers of iterations are those of the recordings, so that live peaks match them.
Weights are random: only shapes and lifetimes matter. Nothing is downloaded.

torchtune's OffloadActivations is taken unchanged from torchtune's wheel, which DYMEM_TORCHTUNE names (the .whl or the
folder it was unpacked into); the rest of torchtune is not needed.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
import os
import random
import sys
import types
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = "cuda"

Step = Callable[[int], float]
Phase = Callable[[str], None]
Batch = Callable[[int], object]
Loss = Callable[[nn.Module, object], torch.Tensor]
Context = Callable[[], AbstractContextManager]


@dataclasses.dataclass(frozen=True)
class Workload:
    build: Callable[[Phase], Step]
    iterations: int
    summary: str
    tf32: bool = True  # False: convolutions in true fp32, as rivals.json was measured
    needs: tuple[str, ...] = ()  # packages beyond torch


class Shapes:
    """The shapes of a workload whose steps differ, drawn from a seeded generator.

    The first step of a shape pays for what libraries choose and compile for it (a tenth of a second and more in cuDNN's
    attention), under any allocator and never equally long. `repeat` = N draws N shapes and then goes through these again
    and again, shuffled anew each time, so that later steps can be timed without that.
    """

    repeat = 0  # 0: every draw is new

    def __init__(self, draw: Callable[[random.Random], object]) -> None:
        self.draw, self.rng = draw, random.Random(0)
        self.order = random.Random(1)
        self.known: list[object] = []
        self.ahead: list[object] = []

    def __call__(self) -> object:
        if not self.repeat or len(self.known) < self.repeat:
            self.known.append(self.draw(self.rng))
            return self.known[-1]
        if not self.ahead:
            self.ahead = self.order.sample(self.known, len(self.known))
        return self.ahead.pop()


def no_phase(phase: str) -> None:
    """For callers that do not care which part of the step runs."""


def training_step(model: nn.Module, batch: Batch, loss_of: Loss, phase: Phase, *, optimizer: str = "sgd",
                  bf16: bool = True, accumulate: int = 1, around_forward: Context = nullcontext) -> Step:
    """A plain training step over `accumulate` batches; gradients are dropped (set to None) after each update."""
    model.to(DEVICE).train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    update = (torch.optim.SGD(parameters, lr=1e-3, momentum=0.9) if optimizer == "sgd"
              else torch.optim.AdamW(parameters, lr=1e-4))

    def step(i: int) -> float:
        for _ in range(accumulate):
            inputs = batch(i)
            phase("F")
            with around_forward(), torch.autocast("cuda", torch.bfloat16, enabled=bf16):
                loss = loss_of(model, inputs)
            phase("B")
            loss.backward()
        phase("O")
        update.step()
        update.zero_grad(set_to_none=True)
        return loss.item()

    return step


# --- images


def classification_loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    images, labels = batch
    scores = model(images)
    if not torch.is_tensor(scores):
        scores = getattr(scores, "logits", scores[0])
    if scores.dim() > 2 and torch.are_deterministic_algorithms_enabled():
        # Over a map, the loss is added up by atomics, in any order; over a list of pixels it is not.
        scores, labels = scores.movedim(1, -1).flatten(0, -2), labels.flatten()
    return F.cross_entropy(scores, labels)


def random_images(batch: int, resolution: int, classes: int = 1000) -> tuple[torch.Tensor, torch.Tensor]:
    return (torch.randn(batch, 3, resolution, resolution, device=DEVICE),
            torch.randint(0, classes, (batch,), device=DEVICE))


def image_model(name: str, library: str) -> nn.Module:
    if library == "timm":
        import timm

        return timm.create_model(name, pretrained=False)
    import torchvision

    return getattr(torchvision.models, name)(weights=None)


def images(name: str, batch: int, resolution: int, *, library: str = "torchvision", bf16: bool = True,
           checkpointed: bool = False, around_forward: Context = nullcontext) -> Callable[[Phase], Step]:
    def build(phase: Phase) -> Step:
        model = image_model(name, library)
        step = training_step(model, lambda i: random_images(batch, resolution), classification_loss, phase, bf16=bf16,
                             around_forward=around_forward)
        if checkpointed:
            checkpoint_blocks(model)
        return step

    return build


def images_of_varying_size(name: str, batch: int, least: int, most: int) -> Callable[[Phase], Step]:
    """Square images of 32·least to 32·most pixels a side, drawn anew for every batch."""

    def build(phase: Phase) -> Step:
        side = Shapes(lambda rng: 32 * rng.randint(least, most))
        return training_step(image_model(name, "torchvision"), lambda i: random_images(batch, side()),
                             classification_loss, phase)

    return build


class CifarBlock(nn.Module):
    """A basic residual block, with batch norm or without."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: bool) -> None:
        super().__init__()
        make_norm = nn.BatchNorm2d if norm else (lambda channels: nn.Identity())
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=not norm)
        self.norm1 = make_norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=not norm)
        self.norm2 = make_norm(outputs)
        self.plain = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if self.plain else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class CifarResNet32(nn.Module):
    """ResNet-32; with `drop`, each plain block is skipped with that probability (stochastic depth)."""

    def __init__(self, norm: bool, drop: float, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 1, 1)
        blocks, channels = [], width
        for stride, outputs in ((1, width), (2, 2 * width), (2, 4 * width)):
            for position in range(5):
                blocks.append(CifarBlock(channels, outputs, stride if position == 0 else 1, norm))
                channels = outputs
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(channels, 10)
        self.drop = drop
        self.rng = random.Random(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            if self.drop and self.training and block.plain and self.rng.random() < self.drop:
                continue
            x = block(x)
        return self.head(x.mean((2, 3)))


def cifar_resnet32(norm: bool, drop: float = 0.0, batch: int = 100) -> Callable[[Phase], Step]:
    def build(phase: Phase) -> Step:
        return training_step(CifarResNet32(norm, drop), lambda i: random_images(batch, 32, 10), classification_loss,
                             phase, bf16=False)

    return build


class UNet(nn.Module):
    def __init__(self, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        channels = [width * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList([self.block(3, channels[0])] +
                                  [self.block(channels[k], channels[k + 1]) for k in range(depth)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(channels[k + 1], channels[k], 2, 2)
                                 for k in reversed(range(depth))])
        self.merge = nn.ModuleList([self.block(2 * channels[k], channels[k]) for k in reversed(range(depth))])
        self.head = nn.Conv2d(channels[0], 2, 1)

    @staticmethod
    def block(inputs: int, outputs: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for source in (inputs, outputs):
            layers += [nn.Conv2d(source, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
        return nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skipped = []
        for level, block in enumerate(self.down):
            x = block(x)
            if level < len(self.down) - 1:
                skipped.append(x)
                x = F.max_pool2d(x, 2)
        for up, merge in zip(self.up, self.merge):
            x = merge(torch.cat([up(x), skipped.pop()], 1))
        return self.head(x)


def unet(batch: int = 16, resolution: int = 256) -> Callable[[Phase], Step]:
    def build(phase: Phase) -> Step:
        def data(i: int) -> tuple[torch.Tensor, torch.Tensor]:
            return (torch.randn(batch, 3, resolution, resolution, device=DEVICE),
                    torch.randint(0, 2, (batch, resolution, resolution), device=DEVICE))

        return training_step(UNet(), data, classification_loss, phase, optimizer="adamw")

    return build


# --- language


def llama_config(hidden: int, layers: int, heads: int, **more):
    from transformers import LlamaConfig

    return LlamaConfig(**{"vocab_size": 32000, "hidden_size": hidden, "intermediate_size": hidden * 11 // 4,
                          "num_hidden_layers": layers, "num_attention_heads": heads,
                          "num_key_value_heads": heads // 2, **more})


def llama_model(config) -> nn.Module:
    from transformers import LlamaForCausalLM

    with torch.device(DEVICE):  # initialising a billion weights on the CPU would take longer than the steps
        return LlamaForCausalLM(config)


def language_loss(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return model(input_ids=tokens, labels=tokens).loss


def checkpoint_layers(model: nn.Module) -> None:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def llama(*, hidden: int = 2048, layers: int = 12, heads: int = 16, batch: int = 8, checkpoint: bool = False,
          accumulate: int = 1) -> Callable[[Phase], Step]:
    """Pre-training on sequences of 256 to 2,048 tokens; every batch has a length of its own."""

    def build(phase: Phase) -> Step:
        model = llama_model(llama_config(hidden, layers, heads, max_position_embeddings=8192, use_cache=False))
        if checkpoint:
            checkpoint_layers(model)
        length = Shapes(lambda rng: rng.randint(256, 2048) // 8 * 8)

        def tokens(i: int) -> torch.Tensor:
            return torch.randint(0, 32000, (batch, length()), device=DEVICE)

        return training_step(model, tokens, language_loss, phase, optimizer="adamw", accumulate=accumulate)

    return build


def llama_generate(new_tokens: int = 192) -> Callable[[Phase], Step]:
    """Serving: batches of 4 to 32 prompts of 100 to 1,500 tokens, each continued by `new_tokens`."""

    def build(phase: Phase) -> Step:
        config = llama_config(2048, 16, 16, intermediate_size=5632, num_key_value_heads=16)
        model = llama_model(config).to(torch.bfloat16).eval()
        shape = Shapes(lambda rng: (rng.choice([4, 8, 16, 32]), rng.randint(100, 1500)))

        def step(i: int) -> float:
            phase("F")
            prompts = torch.randint(0, 32000, shape(), device=DEVICE)
            with torch.no_grad():
                answer = model.generate(prompts, max_new_tokens=new_tokens, do_sample=False, pad_token_id=0,
                                        eos_token_id=None)
            return float(answer[:, -1].sum())

        return step

    return build


def bert(batch: int = 32) -> Callable[[Phase], Step]:
    """BERT-large, sequences of 64 to 512 tokens."""

    def build(phase: Phase) -> Step:
        from transformers import BertConfig, BertForMaskedLM

        with torch.device(DEVICE):
            model = BertForMaskedLM(BertConfig(num_hidden_layers=24, hidden_size=1024, intermediate_size=4096,
                                               num_attention_heads=16))
        length = Shapes(lambda rng: rng.randint(64, 512))

        def tokens(i: int) -> torch.Tensor:
            return torch.randint(0, 30522, (batch, length()), device=DEVICE)

        return training_step(model, tokens, language_loss, phase, optimizer="adamw")

    return build


def kmeans(points: int = 400_000, clusters: int = 256, rounds: int = 8) -> Callable[[Phase], Step]:
    def build(phase: Phase) -> Step:
        data = torch.randn(points, 64, device=DEVICE)

        def step(i: int) -> float:
            phase("F")
            centers = data[torch.randperm(points, device=DEVICE)[:clusters]]
            for _ in range(rounds):
                nearest = torch.cat([((part[:, None] - centers[None]) ** 2).sum(-1).argmin(1)
                                     for part in data.split(20_000)])
                sums = torch.zeros_like(centers).index_add_(0, nearest, data)
                sizes = torch.bincount(nearest, minlength=clusters).clamp(min=1)[:, None]
                centers = sums / sizes
            return centers.sum().item()

        return step

    return build


# --- several streams


def prefetched_images(batch: int = 128, resolution: int = 224) -> Callable[[Phase], Step]:
    """Input copied ahead on a side stream and handed over with record_stream, as data prefetchers do."""

    def build(phase: Phase) -> Step:
        model = image_model("resnet50", "torchvision").to(DEVICE).train()
        update = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        side = torch.cuda.Stream()
        host = [torch.randn(batch, 3, resolution, resolution).pin_memory() for _ in range(3)]
        labels = torch.randint(0, 1000, (batch,), device=DEVICE)
        ahead: list[torch.Tensor] = []

        def load(i: int) -> None:
            with torch.cuda.stream(side):
                ahead.append((host[i % 3].to(DEVICE, non_blocking=True).float() / 2).sub_(0.1))

        def step(i: int) -> float:
            if not ahead:
                load(i)
            main = torch.cuda.current_stream()
            main.wait_stream(side)
            inputs = ahead.pop()
            inputs.record_stream(main)
            load(i + 1)
            phase("F")
            with torch.autocast("cuda", torch.bfloat16):
                loss = F.cross_entropy(model(inputs), labels)
            phase("B")
            loss.backward()
            phase("O")
            update.step()
            update.zero_grad()
            return loss.item()

        return step

    return build


def llama_fsdp2() -> Callable[[Phase], Step]:
    """FSDP2 on one rank: parameters are gathered on NCCL's streams, layers are checkpointed."""

    def build(phase: Phase) -> Step:
        import torch.distributed as dist
        from torch.distributed.fsdp import fully_shard

        if not dist.is_initialized():
            dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1,
                                    device_id=torch.device("cuda:0"))
        model = llama_model(llama_config(2048, 12, 16, use_cache=False))
        checkpoint_layers(model)
        for layer in model.model.layers:
            fully_shard(layer)
        fully_shard(model)
        update = torch.optim.AdamW(model.parameters(), lr=1e-4)
        length = Shapes(lambda rng: rng.randint(256, 2048) // 8 * 8)

        def step(i: int) -> float:
            tokens = torch.randint(0, 32000, (8, length()), device=DEVICE)
            phase("F")
            with torch.autocast("cuda", torch.bfloat16):
                loss = language_loss(model, tokens)
            phase("B")
            loss.backward()
            phase("O")
            update.step()
            update.zero_grad()
            return loss.item()

        return step

    return build


# --- torchtune's offloading


@contextmanager
def stand_in_modules(contents: dict[str, dict[str, object]]) -> Iterator[None]:
    """Modules that exist only while a file is loaded which imports names from them."""
    before = {name: sys.modules.get(name) for name in contents}
    for name, attributes in contents.items():
        module = types.ModuleType(name)
        vars(module).update(attributes)
        sys.modules[name] = module
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module


def torchtune_source() -> tuple[str, str]:
    """The text of torchtune's offloading module, and where it is from."""
    inside = "torchtune/training/_activation_offloading.py"
    place = os.environ.get("DYMEM_TORCHTUNE", "")
    path = Path(place)
    if place and path.is_file() and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as wheel:
            if inside in wheel.namelist():
                return wheel.read(inside).decode(), f"{path}:{inside}"
    elif place and (path / inside).is_file():
        return (path / inside).read_text(), str(path / inside)
    raise FileNotFoundError(f"DYMEM_TORCHTUNE ('{place}') must name torchtune's wheel, or the folder it was unpacked "
                            f"into, with {inside} in it: pip download --no-deps torchtune==0.6.1")


def torchtune_offload() -> type:
    """torchtune's OffloadActivations, unchanged. What it imports of torchao and torchtune serves isinstance checks only."""
    text, origin = torchtune_source()
    stand_ins: dict[str, dict[str, object]] = {
        "torchao": {"__version__": "0"},
        "torchao.dtypes": {},
        "torchao.dtypes.nf4tensor": {"NF4Tensor": type("NF4Tensor", (), {})},
        "torchtune": {},
        "torchtune.modules": {"TiedLinear": type("TiedLinear", (), {})},
        "torchtune.utils": {"get_logger": lambda *level: logging.getLogger("torchtune")},
    }
    if importlib.util.find_spec("psutil") is None:  # asked for the share of host memory in use, to warn
        stand_ins["psutil"] = {"virtual_memory": lambda: types.SimpleNamespace(percent=0.0)}
    module = types.ModuleType("torchtune_activation_offloading")
    with stand_in_modules(stand_ins):
        exec(compile(text, origin, "exec"), vars(module))
    return module.OffloadActivations


def checkpoint_blocks(model: nn.Module) -> int:
    """Wraps every block of every sequence of blocks (three modules or more within) in a checkpoint; returns how many."""
    from torch.utils.checkpoint import checkpoint

    def wrap(block: nn.Module) -> None:
        forward = block.forward
        block.forward = lambda *args, **kwargs: checkpoint(forward, *args, use_reentrant=False, **kwargs)

    wrapped: set[nn.Module] = set()
    count = 0
    for parent in list(model.modules()):
        for child in list(parent.children()):
            if not isinstance(child, (nn.Sequential, nn.ModuleList)) or len(child) < 2:
                continue
            for block in child:
                trains = any(p.requires_grad for p in block.parameters())
                if trains and block not in wrapped and sum(1 for _ in block.modules()) > 3:
                    wrapped.update(block.modules())
                    wrap(block)
                    count += 1
    return count


class _Once:
    """One OffloadActivations for the whole run, entered around every forward pass: as torchtune's recipes do."""

    def __init__(self) -> None:
        self.context: AbstractContextManager | None = None

    def __call__(self) -> AbstractContextManager:
        if self.context is None:
            self.context = torchtune_offload()()
        return self.context


def offloaded_every_step(build: Callable[[Phase], Step]) -> Callable[[Phase], Step]:
    """A new OffloadActivations around every whole step: each step has a new side stream."""

    def offloaded(phase: Phase) -> Step:
        offload = torchtune_offload()
        step = build(phase)

        def with_offload(i: int) -> float:
            with offload():
                return step(i)

        return with_offload

    return offloaded


def resnet152(batch: int, bf16: bool, around_forward: Context = nullcontext) -> Callable[[Phase], Step]:
    return images("resnet152", batch, 224, bf16=bf16, checkpointed=True, around_forward=around_forward)


VISION, TIMM, HF = ("torchvision",), ("timm",), ("transformers",)

WORKLOADS: dict[str, Workload] = {
    # the papers' own networks
    "vgg16_b128": Workload(images("vgg16", 128, 224), 10, "VGG-16, batch 128", needs=VISION),
    "resnet32_nobn_cifar_b100": Workload(cifar_resnet32(norm=False), 12, "ResNet-32 without batch norm, CIFAR"),
    "resnet50_cifar_b100": Workload(images("resnet50", 100, 32, bf16=False), 10, "ResNet-50, CIFAR", needs=VISION),
    "resnet50_b128": Workload(images("resnet50", 128, 224), 10, "ResNet-50, batch 128", needs=VISION),
    "resnet101_b64": Workload(images("resnet101", 64, 224), 8, "ResNet-101, batch 64", needs=VISION),
    "inception_v4_b64": Workload(images("inception_v4", 64, 299, library="timm"), 8, "Inception v4, batch 64",
                                 needs=TIMM),
    "densenet121_b64": Workload(images("densenet121", 64, 224), 8, "DenseNet-121, batch 64", needs=VISION),
    "unet_b16": Workload(unet(), 10, "U-Net, batch 16"),
    "kmeans": Workload(kmeans(), 6, "k-means, 400,000 points"),
    "resnet32_stochdepth": Workload(cifar_resnet32(norm=True, drop=0.4), 30, "ResNet-32 with stochastic depth, CIFAR"),
    # what people train and serve today
    "vit_b16_b128": Workload(images("vit_base_patch16_224", 128, 224, library="timm"), 10, "ViT-B/16, batch 128",
                             needs=TIMM),
    "efficientnet_b3_b64": Workload(images("efficientnet_b3", 64, 300, library="timm"), 8, "EfficientNet-B3, batch 64",
                                    needs=TIMM),
    "resnet50_varres": Workload(images_of_varying_size("resnet50", 48, 4, 14), 40, "ResNet-50, images of varying size",
                                needs=VISION),
    "llama_varlen": Workload(llama(), 24, "Llama 0.6B, sequences of varying length", needs=HF),
    "llama_ckpt_varlen": Workload(llama(layers=16, checkpoint=True, batch=16), 20,
                                  "Llama 0.8B, checkpointed, sequences of varying length", needs=HF),
    "llama_accum": Workload(llama(hidden=1536, heads=12, accumulate=4), 6, "Llama 0.4B, gradients accumulated over 4",
                            needs=HF),
    "bert_varlen": Workload(bert(), 30, "BERT-large, sequences of varying length", needs=HF),
    "llama_generate": Workload(llama_generate(), 3, "Llama 0.9B, generation", needs=HF),
    # several streams
    "resnet50_prefetch": Workload(prefetched_images(), 12, "ResNet-50, input copied ahead on a side stream",
                                  needs=VISION),
    "resnet152_offload_ckpt": Workload(offloaded_every_step(resnet152(64, bf16=True)), 8,
                                       "ResNet-152 bf16, torchtune's offloading and checkpoints, built at every step",
                                       needs=VISION),
    "llama_fsdp2_ckpt": Workload(llama_fsdp2(), 16, "Llama 0.6B under FSDP2 (one rank), checkpointed", needs=HF),
    # rivals.json's row "resnet152 b128 fp32, torchtune+checkpoint", both ways of using the context
    "resnet152_torchtune_each": Workload(offloaded_every_step(resnet152(128, bf16=False)), 12,
                                         "ResNet-152 fp32, torchtune's offloading and checkpoints, built at every step",
                                         tf32=False, needs=VISION),
    "resnet152_torchtune_once": Workload(resnet152(128, bf16=False, around_forward=_Once()), 12,
                                         "ResNet-152 fp32, torchtune's offloading and checkpoints, built once",
                                         tf32=False, needs=VISION),
}

# What `dymem compare` trains on a GPU: short, and needing nothing that a torch installation lacks.
SHOWN = ("resnet50_b128", "llama_varlen", "resnet50_prefetch", "unet_b16")
