"""Unrolled GAN (Metz et al. 2017): the generator looks ahead at how its opponent would answer.

For the generator's step the discriminator is trained `UNROLLED` steps further on a copy, and the
gradient goes back through those steps: a gradient of gradients, whose graph holds `UNROLLED`
backward passes (`create_graph`). Then the discriminator itself makes one step. Data are points on a
ring of eight normal distributions, as in the paper.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812

from models.workload import Workload, batch_size

UNROLLED = 5
NOISE = 64
HIDDEN = 192
INNER_RATE = 0.05


def perceptron(inputs: int, outputs: int) -> nn.Sequential:
    """tanh, because ReLU has no second derivative to speak of."""
    return nn.Sequential(
        nn.Linear(inputs, HIDDEN),
        nn.Tanh(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.Tanh(),
        nn.Linear(HIDDEN, outputs),
    )


def ring(points: int, generator: torch.Generator) -> Tensor:
    """Points from eight normal distributions on a circle of radius 2."""
    angle = torch.randint(8, (points,), generator=generator) * (math.pi / 4)
    centre = 2 * torch.stack([torch.cos(angle), torch.sin(angle)], dim=1)
    return centre + 0.02 * torch.randn(points, 2, generator=generator)


def discrimination(
    discriminator: nn.Module, weights: Mapping[str, Tensor], real: Tensor, fake: Tensor
) -> Tensor:
    """How badly a discriminator of these weights tells real from fake."""
    found_real = functional_call(discriminator, dict(weights), (real,))
    found_fake = functional_call(discriminator, dict(weights), (fake,))
    return F.softplus(-found_real).mean() + F.softplus(found_fake).mean()


def build(scale: float = 1.0, seed: int = 0) -> Workload:
    torch.manual_seed(seed)
    points = batch_size(1024, scale)
    generator, discriminator = perceptron(NOISE, 2), perceptron(2, 1)
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3, foreach=True)
    discriminator_optimizer = torch.optim.Adam(discriminator.parameters(), lr=1e-4, foreach=True)
    draws = torch.Generator().manual_seed(seed)

    def look_ahead(real: Tensor, fake: Tensor) -> Tensor:
        """The loss of the discriminator after `UNROLLED` steps on these points."""
        ahead: dict[str, Tensor] = dict(discriminator.named_parameters())
        for _ in range(UNROLLED):
            loss = discrimination(discriminator, ahead, real, fake)
            slopes = torch.autograd.grad(loss, list(ahead.values()), create_graph=True)
            ahead = {
                name: weight - INNER_RATE * slope
                for (name, weight), slope in zip(ahead.items(), slopes, strict=True)
            }
        return discrimination(discriminator, ahead, real, fake)

    def step() -> Tensor:
        real = ring(points, draws)
        noise = torch.randn(points, NOISE, generator=draws)
        generator_optimizer.zero_grad()
        loss = -look_ahead(real, generator(noise))
        loss.backward()  # type: ignore[no-untyped-call]
        generator_optimizer.step()

        discriminator_optimizer.zero_grad()  # Also of what looking ahead has left in them.
        with torch.no_grad():
            fake = generator(noise)
        answer = discrimination(discriminator, dict(discriminator.named_parameters()), real, fake)
        answer.backward()  # type: ignore[no-untyped-call]
        discriminator_optimizer.step()
        return loss.detach()

    return Workload(
        step, (generator, discriminator), (generator_optimizer, discriminator_optimizer)
    )
