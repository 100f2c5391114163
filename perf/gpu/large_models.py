"""Models of the sizes that people train on a GPU, in plain torch, each with its data and optimizer.

ResNet-50 (He et al. 2016), BERT-large (Devlin et al. 2019) and a GPT of a billion parameters are
what other work on rematerialization reports. Data are drawn once: what is measured is a step. Of
each there is a tiny one, with which the same scripts run without a GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the name that all of PyTorch uses)

from dtr_alloc.demo.models import Transformer, TransformerBlock

GPT_SIZES: dict[str, dict[str, int]] = {
    "gpt1b": {"layers": 19, "width": 2048, "heads": 16, "length": 512, "vocabulary": 16384},
    "gpt-tiny": {"layers": 4, "width": 64, "heads": 2, "length": 32, "vocabulary": 128},
}
Data = tuple[Tensor, Tensor]


class Bottleneck(nn.Module):
    """Three convolutions, the middle one 3x3 on a quarter of the channels, around a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        y += self.shortcut(x)
        return F.relu(y, inplace=True)


def resnet(blocks: tuple[int, ...], width: int, classes: int) -> nn.Module:
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    channels = width
    for stage, count in enumerate(blocks):
        for block in range(count):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(Bottleneck(channels, width << stage, stride))
            channels = 4 * (width << stage)
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
    model: Any = nn.Sequential(*layers)
    made: nn.Module = model.to(memory_format=torch.channels_last)
    return made


class BertBlock(nn.Module):
    """Attention and a perceptron, each followed by dropout, the residual sum and a layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        samples, length, width = x.shape
        q, k, v = (
            part.view(samples, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0.0)
        y = self.out(y.transpose(1, 2).reshape(samples, length, width))
        x = self.norm1(x + F.dropout(y, 0.1, self.training))
        y = self.down(F.gelu(self.up(x)))
        out: Tensor = self.norm2(x + F.dropout(y, 0.1, self.training))
        return out


class Bert(nn.Module):
    """The encoder, and a head that tells the words which were masked: every seventh."""

    def __init__(self, layers: int, width: int, heads: int, length: int, vocabulary: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.Sequential(*(BertBlock(width, heads) for _ in range(layers)))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, text: Tensor) -> Tensor:
        positions = torch.arange(text.shape[1], device=text.device)
        x = self.norm(self.token(text) + self.position(positions))
        x = self.blocks(F.dropout(x, 0.1, self.training))
        out: Tensor = self.head(x[:, ::7])
        return out


@dataclass(frozen=True)
class Model:
    """`batch` is what stock trains at once, `items` how many a sample counts for."""

    make: Callable[[], nn.Module]
    data: Callable[[int], Data]
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    block: type[nn.Module]
    batch: int
    unit: str
    items: int = 1

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        return [module for module in model.modules() if isinstance(module, self.block)]

    @staticmethod
    def loss(model: nn.Module, data: Data) -> Tensor:
        inputs, labels = data
        return F.cross_entropy(model(inputs).flatten(0, -2), labels.flatten())


def pictures(count: int, side: int, classes: int) -> Data:
    drawn = torch.randn(count, 3, side, side).to(memory_format=torch.channels_last)
    return drawn, torch.randint(classes, (count,))


def texts(count: int, length: int, vocabulary: int) -> Data:
    drawn = torch.randint(vocabulary, (count, length + 1))
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


def masked(count: int, length: int, vocabulary: int) -> Data:
    drawn = torch.randint(vocabulary, (count, length))
    return drawn, drawn[:, ::7].contiguous()


def image_model(blocks: tuple[int, ...], width: int, side: int, batch: int) -> Model:
    sgd = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=1e-4)
    data = functools.partial(pictures, side=side, classes=1000)
    make = functools.partial(resnet, blocks, width, 1000)
    return Model(make, data, sgd, Bottleneck, batch, "images")


def text_model(
    make: Callable[..., nn.Module], data: Any, block: type[nn.Module], batch: int, **size: int
) -> Model:
    adamw = functools.partial(torch.optim.AdamW, lr=1e-4, fused=True)
    length, vocabulary = size["length"], size["vocabulary"]
    drawn = functools.partial(data, length=length, vocabulary=vocabulary)
    made = functools.partial(make, **size)
    return Model(made, drawn, adamw, block, batch, "tokens", length)


def gpt(batch: int, **size: int) -> Model:
    plain = functools.partial(Transformer, dropout=0.0)
    return text_model(plain, texts, TransformerBlock, batch, **size)


def bert(batch: int, **size: int) -> Model:
    return text_model(Bert, masked, BertBlock, batch, **size)


LARGE_MODELS: dict[str, Model] = {
    "resnet50": image_model((3, 4, 6, 3), 64, 224, 256),
    "bert-large": bert(32, layers=24, width=1024, heads=16, length=512, vocabulary=30522),
    "gpt1b": gpt(16, **GPT_SIZES["gpt1b"]),
    "resnet-tiny": image_model((1, 1, 1, 1), 16, 48, 16),
    "bert-tiny": bert(16, layers=3, width=64, heads=2, length=28, vocabulary=128),
    "gpt-tiny": gpt(16, **GPT_SIZES["gpt-tiny"]),
}
