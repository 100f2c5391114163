"""DenseNet-121 (Huang et al. 2017), narrow and for small pictures.

Each layer reads all layers of its block before it, concatenated: the concatenations are cheap to
compute and most of the memory. The layout is that of DenseNet-121, four blocks of 6, 12, 24 and 16
layers; the growth is 8 channels instead of 32, and the stem leaves pictures of 32 x 32 as they are.
"""

import torch
from torch import Tensor, nn

from models.workload import Workload, batch_size, classifier, supervised

BLOCKS = (6, 12, 24, 16)
CLASSES = 10


class Layer(nn.Module):
    """A bottleneck of 1x1 to four times the growth, then 3x3; the input goes along."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.make = nn.Sequential(
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth),
            nn.ReLU(inplace=True),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.make(x)], dim=1)


def transition(channels: int) -> nn.Sequential:
    """Half the channels, half the side."""
    return nn.Sequential(
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        nn.Conv2d(channels, channels // 2, 1, bias=False),
        nn.AvgPool2d(2),
    )


def network(growth: int = 8) -> nn.Sequential:
    channels = 2 * growth
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1, bias=False)]
    for index, block in enumerate(BLOCKS):
        if index > 0:
            layers.append(transition(channels))
            channels //= 2
        for _ in range(block):
            layers.append(Layer(channels, growth))
            channels += growth
    layers += [
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, CLASSES),
    ]
    return nn.Sequential(*layers)


def build(scale: float = 1.0, seed: int = 0) -> Workload:
    images = batch_size(8, scale)
    return supervised(lambda: classifier("densenet", network, images, 32, CLASSES), seed)
