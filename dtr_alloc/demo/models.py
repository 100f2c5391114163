"""The five programs that the demo trains: plain PyTorch that knows nothing of memory budgets.

They differ where a rematerialization runtime can go wrong. `resnet`: batch statistics, in-place
ReLU, in-place residual add, SGD with momentum (foreach). `gpt`: dropout, so replay must restore the
random generator; fused AdamW. `lstm`: some ten thousand operators of 20 us. `treelstm`: the graph
depends on the data and is another one at each step; SGD tensor by tensor. `unet`: long-lived skip
connections; AdamW tensor by tensor.

Sizes are chosen for a demo that means something on a small CPU. A step takes a fraction of a
second; activations are much larger than parameters, gradients, and optimizer state; and no operator
needs more than a quarter of the activation peak at once, so that half of it is always enough.
`tests/programs/test_demo.py` holds these to account.
"""

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the name that all of PyTorch uses)
from torch.optim import SGD, AdamW

Tree: TypeAlias = "int | tuple[Tree, Tree]"


@dataclass(frozen=True)
class Job:
    """A training program, complete but for its loop.

    `batch(generator)` makes one synthetic batch, drawing from `generator` only. `loss(model,
    batch)` is the forward pass: a scalar tensor, mean over the batch. `optimizer(parameters)` makes
    a new optimizer.
    """

    name: str
    model: nn.Module
    batch: Callable[[torch.Generator], Any]
    loss: Callable[[nn.Module, Any], Tensor]
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def _pictures(
    images: int, side: int, labels: tuple[int, ...], classes: int
) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    """Batches of pictures of side x side pixels, and labels of that shape."""

    def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        pictures = torch.randn(images, 3, side, side, generator=generator)
        return pictures, torch.randint(classes, labels, generator=generator)

    return batch


def _texts(texts: int, length: int, vocabulary: int) -> Callable[[torch.Generator], Tensor]:
    """Batches of texts, which have one character more than a model reads."""
    return lambda generator: torch.randint(vocabulary, (texts, length + 1), generator=generator)


def _classes(model: nn.Module, data: tuple[Any, ...]) -> Tensor:
    """The loss of a model that tells the class of what it is given."""
    *given, labels = data
    return F.cross_entropy(model(*given), labels)


def _next_characters(model: nn.Module, text: Tensor) -> Tensor:
    """The loss of a model that foretells each character of a text but the first."""
    return F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut (He et al. 2016), in place wherever that is legal."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Any:
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        y += self.shortcut(x)
        return self.relu(y)


def resnet(*, blocks: int = 3, width: int = 16, images: int = 32, side: int = 32) -> Job:
    """The CIFAR ResNet with 6 * blocks + 2 layers on `images` pictures of side x side pixels."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 3, 1, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    ]
    channels = width
    for stage in range(3):
        outputs = width << stage
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(BasicBlock(channels, outputs, stride))
            channels = outputs
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]
    batch = _pictures(images, side, (images,), 10)
    optimizer = partial(SGD, lr=0.05, momentum=0.9, weight_decay=1e-4, foreach=True)
    return Job("resnet", nn.Sequential(*layers), batch, _classes, optimizer)


class Attention(nn.Module):
    """Causal self-attention with dropout on the weights."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Any:
        samples, length, width = x.shape
        q, k, v = (
            part.view(samples, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(samples, length, width))


class TransformerBlock(nn.Module):
    """Attention and a four times wider perceptron, each behind a layer norm, beside a shortcut."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads, dropout)
        self.norm2 = nn.LayerNorm(width)
        self.perceptron = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Any:
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.perceptron(self.norm2(x)))


class Transformer(nn.Module):
    """A decoder-only language model over `vocabulary` characters, with learned positions."""

    def __init__(
        self, layers: int, width: int, heads: int, length: int, vocabulary: int, dropout: float
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width)
        self.dropout = nn.Dropout(dropout)
        blocks = (TransformerBlock(width, heads, dropout) for _ in range(layers))
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, text: Tensor) -> Any:
        positions = torch.arange(text.shape[1], device=text.device)
        x = self.dropout(self.token(text) + self.position(positions))
        return self.head(self.norm(self.blocks(x)))


def gpt(
    *,
    layers: int = 6,
    width: int = 128,
    heads: int = 4,
    length: int = 64,
    texts: int = 12,
    vocabulary: int = 256,
    dropout: float = 0.1,
) -> Job:
    """A character-level GPT on `texts` texts of `length` characters."""
    model = Transformer(layers, width, heads, length, vocabulary, dropout)
    batch = _texts(texts, length, vocabulary)
    return Job("gpt", model, batch, _next_characters, partial(AdamW, lr=1e-3, fused=True))


class LSTMCell(nn.Module):
    """One step of Hochreiter and Schmidhuber's cell, operator by operator."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.input = nn.Linear(inputs, 4 * hidden)
        self.recurrent = nn.Linear(hidden, 4 * hidden, bias=False)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        i, f, g, o = (self.input(x) + self.recurrent(h)).chunk(4, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class LSTM(nn.Module):
    """Cells on top of each other, stepped through time by a Python loop."""

    def __init__(self, layers: int, hidden: int, vocabulary: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.cells = nn.ModuleList(LSTMCell(hidden, hidden) for _ in range(layers))
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, text: Tensor) -> Tensor:
        samples, length = text.shape
        zeros = torch.zeros(samples, self.hidden, device=text.device)
        states = [(zeros, zeros) for _ in self.cells]
        logits = []
        for time in range(length):
            x = self.embedding(text[:, time])
            for layer, cell in enumerate(self.cells):
                states[layer] = cell(x, *states[layer])
                x = states[layer][0]
            logits.append(self.head(x))
        return torch.stack(logits, dim=1)


def lstm(
    *, layers: int = 2, hidden: int = 192, length: int = 64, texts: int = 64, vocabulary: int = 64
) -> Job:
    """A character-level LSTM, unrolled over `length` characters of `texts` texts."""
    model = LSTM(layers, hidden, vocabulary)
    batch = _texts(texts, length, vocabulary)
    return Job("lstm", model, batch, _next_characters, partial(AdamW, lr=1e-3, foreach=True))


class TreeLSTM(nn.Module):
    """The binary tree LSTM of Tai et al. (2015): a node's state comes of its children's."""

    def __init__(self, hidden: int, vocabulary: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.leaf = nn.Linear(hidden, 3 * hidden)
        self.node = nn.Linear(2 * hidden, 5 * hidden)
        self.head = nn.Linear(hidden, classes)

    def state(self, tree: Tree, words: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden and cell state of `tree`, leaves being columns of `words` [samples, leaves]."""
        if isinstance(tree, int):
            i, o, u = self.leaf(self.embedding(words[:, tree])).chunk(3, dim=1)
            c = torch.sigmoid(i) * torch.tanh(u)
        else:
            (left, left_c), (right, right_c) = (self.state(child, words) for child in tree)
            i, o, u, f, g = self.node(torch.cat([left, right], dim=1)).chunk(5, dim=1)
            c = torch.sigmoid(i) * torch.tanh(u)
            c = c + torch.sigmoid(f) * left_c + torch.sigmoid(g) * right_c
        return torch.sigmoid(o) * torch.tanh(c), c

    def forward(self, tree: Tree, words: Tensor) -> Any:
        return self.head(self.state(tree, words)[0])


def random_tree(first: int, leaves: int, rng: random.Random) -> Tree:
    """A random binary tree over the leaves first, first + 1, ...; a child is a third of its parent
    at least."""
    if leaves == 1:
        return first
    left = rng.randint(math.ceil(leaves / 3), leaves - math.ceil(leaves / 3))
    return random_tree(first, left, rng), random_tree(first + left, leaves - left, rng)


def treelstm(
    *, hidden: int = 128, leaves: int = 64, samples: int = 96, vocabulary: int = 1000
) -> Job:
    """A tree LSTM classifier on `samples` sentences that share a tree, another one at each step."""

    def batch(generator: torch.Generator) -> tuple[Tree, Tensor, Tensor]:
        rng = random.Random(int(torch.randint(1 << 31, (), generator=generator)))
        words = torch.randint(vocabulary, (samples, leaves), generator=generator)
        labels = torch.randint(5, (samples,), generator=generator)
        return random_tree(0, leaves, rng), words, labels

    model = TreeLSTM(hidden, vocabulary, 5)
    return Job("treelstm", model, batch, _classes, partial(SGD, lr=0.1, foreach=False))


class UNet(nn.Module):
    """Ronneberger et al. (2015) with group norm: levels halve pictures and double channels."""

    def __init__(self, levels: int, width: int, classes: int) -> None:
        super().__init__()
        channels = [width << level for level in range(levels)]
        self.down = nn.ModuleList(
            self.convolutions(inputs, outputs)
            for inputs, outputs in zip([3, *channels[:-1]], channels, strict=True)
        )
        back = channels[-2::-1]
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * c, c, 2, stride=2) for c in back)
        self.merge = nn.ModuleList(self.convolutions(2 * c, c) for c in back)
        self.head = nn.Conv2d(width, classes, 1)

    @staticmethod
    def convolutions(inputs: int, outputs: int) -> nn.Sequential:
        """Twice: convolution, group norm, SiLU."""
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.GroupNorm(4, outputs),
            nn.SiLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.GroupNorm(4, outputs),
            nn.SiLU(),
        )

    def forward(self, x: Tensor) -> Any:
        skips: list[Tensor] = []
        for level, convolutions in enumerate(self.down):
            x = convolutions(x if level == 0 else F.max_pool2d(x, 2))
            skips.append(x)
        skips.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([skips.pop(), up(x)], dim=1))
        return self.head(x)


def unet(*, levels: int = 4, width: int = 16, images: int = 7, side: int = 64) -> Job:
    """A U-Net that segments `images` pictures of side x side pixels into four classes."""
    batch = _pictures(images, side, (images, side, side), 4)
    optimizer = partial(AdamW, lr=1e-3, foreach=False)
    return Job("unet", UNet(levels, width, 4), batch, _classes, optimizer)


MODELS: dict[str, Callable[[], Job]] = {
    make.__name__: make for make in (resnet, gpt, lstm, treelstm, unet)
}
