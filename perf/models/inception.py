"""Inception-v4 (Szegedy et al. 2016), an eighth as wide and for small pictures.

Blocks of parallel branches that are concatenated: many values wait while one branch is computed.
Branches and kernels are the paper's, with its 4, 7 and 3 repetitions; all convolutions are padded,
so that pictures of 64 x 64 are enough.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from models.workload import Workload, batch_size, classifier, supervised

NARROWING = 8  # Widths below are the paper's; they are divided by this.
CLASSES = 10

Size = int | tuple[int, int]


class Chain(nn.Sequential):
    """Convolutions, each with batch norm and ReLU, one after the other. A step is (outputs, kernel)
    or (outputs, kernel, stride); outputs are the paper's.
    """

    def __init__(self, channels: int, *steps: tuple[int, Size] | tuple[int, Size, int]) -> None:
        super().__init__()
        for outputs, kernel, *stride in steps:
            tall, wide = kernel if isinstance(kernel, tuple) else (kernel, kernel)
            width = outputs // NARROWING
            self.append(
                nn.Conv2d(
                    channels,
                    width,
                    (tall, wide),
                    stride=stride[0] if stride else 1,
                    padding=(tall // 2, wide // 2),
                    bias=False,
                )
            )
            self.append(nn.BatchNorm2d(width))
            self.append(nn.ReLU(inplace=True))
            channels = width
        self.outputs = channels


class Branches(nn.Module):
    """Branches that read the same, concatenated. `outputs` counts the channels."""

    def __init__(self, branches: Sequence[nn.Module], outputs: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)
        self.outputs = outputs

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


def beside(*chains: Chain) -> Branches:
    return Branches(chains, sum(chain.outputs for chain in chains))


def beside_pool(channels: int, *chains: Chain) -> Branches:
    """Chains that halve the side, beside a pooling that does."""
    pool = nn.MaxPool2d(3, stride=2, padding=1)
    return Branches([pool, *chains], channels + sum(chain.outputs for chain in chains))


def with_average(average: Chain, *others: nn.Module, outputs: int) -> Branches:
    """A branch that averages before it convolves, and the others."""
    smooth = nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False), average)
    return Branches([smooth, *others], average.outputs + outputs)


def stem() -> tuple[list[nn.Module], int]:
    first = Chain(3, (32, 3, 2), (32, 3), (64, 3))
    second = beside_pool(first.outputs, Chain(first.outputs, (96, 3, 2)))
    c = second.outputs
    third = beside(
        Chain(c, (64, 1), (96, 3)),
        Chain(c, (64, 1), (64, (7, 1)), (64, (1, 7)), (96, 3)),
    )
    fourth = beside_pool(third.outputs, Chain(third.outputs, (192, 3, 2)))
    return [first, second, third, fourth], fourth.outputs


def block_a(c: int) -> Branches:
    others = [
        Chain(c, (96, 1)),
        Chain(c, (64, 1), (96, 3)),
        Chain(c, (64, 1), (96, 3), (96, 3)),
    ]
    return with_average(Chain(c, (96, 1)), *others, outputs=sum(o.outputs for o in others))


def block_b(c: int) -> Branches:
    others = [
        Chain(c, (384, 1)),
        Chain(c, (192, 1), (224, (1, 7)), (256, (7, 1))),
        Chain(c, (192, 1), (192, (1, 7)), (224, (7, 1)), (224, (1, 7)), (256, (7, 1))),
    ]
    return with_average(Chain(c, (128, 1)), *others, outputs=sum(o.outputs for o in others))


def block_c(c: int) -> Branches:
    """Two of the branches split again at their end."""

    def split(trunk: Chain) -> tuple[nn.Module, int]:
        ends = beside(
            Chain(trunk.outputs, (256, (1, 3))),
            Chain(trunk.outputs, (256, (3, 1))),
        )
        return nn.Sequential(trunk, ends), ends.outputs

    narrow, narrow_outputs = split(Chain(c, (384, 1)))
    deep, deep_outputs = split(Chain(c, (384, 1), (448, (1, 3)), (512, (3, 1))))
    plain = Chain(c, (256, 1))
    outputs = plain.outputs + narrow_outputs + deep_outputs
    return with_average(Chain(c, (256, 1)), plain, narrow, deep, outputs=outputs)


def reduction_a(c: int) -> Branches:
    return beside_pool(c, Chain(c, (384, 3, 2)), Chain(c, (192, 1), (224, 3), (256, 3, 2)))


def reduction_b(c: int) -> Branches:
    return beside_pool(
        c,
        Chain(c, (192, 1), (192, 3, 2)),
        Chain(c, (256, 1), (256, (1, 7)), (320, (7, 1)), (320, 3, 2)),
    )


def network() -> nn.Sequential:
    layers, channels = stem()
    for block in [*[block_a] * 4, reduction_a, *[block_b] * 7, reduction_b, *[block_c] * 3]:
        layer = block(channels)
        layers.append(layer)
        channels = layer.outputs
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(channels, CLASSES)]
    return nn.Sequential(*layers, *head)


def build(scale: float = 1.0, seed: int = 0) -> Workload:
    images = batch_size(48, scale)
    return supervised(lambda: classifier("inception", network, images, 64, CLASSES), seed)
