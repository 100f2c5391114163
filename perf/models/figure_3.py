"""The networks of the paper's figure 3, each small enough that an optimum can be proven.

The paper compares with Checkmate's optimum on a linear network, VGG-16, MobileNet, U-Net and
ResNet. Here they have the same shape with few channels, and all but VGG-16 fewer blocks. Batches
are large enough that activations are most of the memory.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the name that all of PyTorch uses)

CLASSES = 10
WIDTH = 64
"""Of the linear network."""


def linear(layers: int = 8) -> nn.Module:
    """A chain of layers that are all alike."""
    inner = [part for _ in range(layers) for part in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    return nn.Sequential(*inner, nn.Linear(WIDTH, CLASSES))


def vgg16(width: int = 8) -> nn.Module:
    """Simonyan and Zisserman 2014, configuration D: 13 convolutions, 5 poolings, 3 full layers."""
    layers: list[nn.Module] = []
    channels = 3
    for count, times in ((2, 1), (2, 2), (3, 4), (3, 8), (3, 8)):
        for _ in range(count):
            layers += [nn.Conv2d(channels, times * width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = times * width
        layers.append(nn.MaxPool2d(2))
    full = [nn.Linear(channels, 64), nn.ReLU(True), nn.Linear(64, 64), nn.ReLU(True)]
    return nn.Sequential(*layers, nn.Flatten(), *full, nn.Linear(64, CLASSES))


def mobilenet(blocks: int = 4, width: int = 8) -> nn.Module:
    """Howard et al. 2017: a convolution for each channel by itself, then one of 1 x 1, each with
    batch normalization and ReLU."""
    layers: list[nn.Module] = [*_normal(nn.Conv2d(3, width, 3, 1, 1, bias=False), width)]
    channels = width
    for block in range(blocks):
        stride, outputs = (2, 2 * channels) if block % 2 else (1, channels)
        apart = nn.Conv2d(channels, channels, 3, stride, 1, groups=channels, bias=False)
        layers += [*_normal(apart, channels)]
        layers += [*_normal(nn.Conv2d(channels, outputs, 1, bias=False), outputs)]
        channels = outputs
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)
    )


def _normal(convolution: nn.Conv2d, channels: int) -> tuple[nn.Module, ...]:
    return convolution, nn.BatchNorm2d(channels), nn.ReLU(inplace=True)


class UNet(nn.Module):
    """Ronneberger et al. 2015: down and up again, with a skip at each level."""

    def __init__(self, levels: int = 2, width: int = 8) -> None:
        super().__init__()
        sizes = [width << level for level in range(levels + 1)]
        before = [3, *sizes]
        self.down = nn.ModuleList(map(self.pair, before, sizes))
        self.up = nn.ModuleList(self.pair(3 * size, size) for size in reversed(sizes[:-1]))
        self.head = nn.Conv2d(width, CLASSES, 1)

    @staticmethod
    def pair(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            *(nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(outputs, outputs, 3, padding=1), nn.ReLU()),
        )

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for place, block in enumerate(self.down):
            x = block(x if place == 0 else F.max_pool2d(x, 2))
            skips.append(x)
        skips.pop()
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2), skips.pop()], 1))
        out: Tensor = self.head(x)
        return out.mean((2, 3))


class Residual(nn.Module):
    """Two convolutions and a shortcut (He et al. 2016)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.body = nn.Sequential(
            *_normal(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), outputs),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def resnet(blocks: int = 3, width: int = 8) -> nn.Module:
    """With 2 * blocks + 2 layers."""
    sizes = [width << block for block in range(blocks)]
    inner = map(Residual, [width, *sizes], sizes)
    first = _normal(nn.Conv2d(3, width, 3, 1, 1, bias=False), width)
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(sizes[-1], CLASSES)
    return nn.Sequential(*first, *inner, *head)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (linear, (1024, WIDTH)),
    "VGG-16": (vgg16, (32, 3, 32, 32)),
    "MobileNet": (mobilenet, (16, 3, 32, 32)),
    "U-Net": (UNet, (8, 3, 32, 32)),
    "ResNet": (resnet, (16, 3, 32, 32)),
}
"""How each is made, and the shape of its input."""


def step(name: str) -> Callable[[], None]:
    """A step of a training from scratch: a forward and a backward pass on one batch."""
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    model, samples = make(), torch.randn(shape)
    if samples.dim() == 4:  # Else convolutions copy what they read and make, in another layout.
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        samples = samples.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(CLASSES, shape[:1])

    def run() -> None:
        model.zero_grad()
        F.cross_entropy(model(samples), labels).backward()  # type: ignore[no-untyped-call]

    return run
