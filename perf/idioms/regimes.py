"""Ways to train: several optimizers, inner loops, carried state, hooks of autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from idioms.registry import Step, mlp_of, program, supervised


def generator_and_critic() -> tuple[nn.ModuleDict, Tensor]:
    nets = {"g": mlp_of(128, 6), "d": nn.Sequential(mlp_of(128, 6), nn.Linear(128, 1))}
    return nn.ModuleDict(nets), torch.randn(512, 128)


@program
def gan() -> tuple[Step, nn.Module]:
    nets, real = generator_and_critic()
    opt = {name: torch.optim.Adam(net.parameters(), 2e-4) for name, net in nets.items()}
    bce = F.binary_cross_entropy_with_logits

    def step() -> Tensor:
        fake = nets["g"](torch.randn(512, 128))
        opt["d"].zero_grad()
        good, bad = nets["d"](real), nets["d"](fake.detach())
        d = bce(good, torch.ones_like(good)) + bce(bad, torch.zeros_like(bad))
        d.backward()
        opt["d"].step()
        opt["g"].zero_grad()
        judged = nets["d"](fake)
        g = bce(judged, torch.ones_like(judged))
        g.backward()
        opt["g"].step()
        return (d + g).detach().clone()

    return step, nets


@program
def wgan_gp() -> tuple[Step, nn.Module]:
    nets, real = generator_and_critic()
    opt = {name: torch.optim.Adam(net.parameters(), 2e-4) for name, net in nets.items()}

    def step() -> Tensor:
        for _ in range(2):
            opt["d"].zero_grad()
            fake = nets["g"](torch.randn(512, 128)).detach()
            at = torch.rand(512, 1)
            mixed = (at * real + (1 - at) * fake).requires_grad_()
            (slope,) = torch.autograd.grad(nets["d"](mixed).sum(), mixed, create_graph=True)
            penalty = (slope.norm(2, dim=1) - 1).square().mean()
            d = nets["d"](fake).mean() - nets["d"](real).mean() + 10 * penalty
            d.backward()
            opt["d"].step()
        opt["g"].zero_grad()
        g = -nets["d"](nets["g"](torch.randn(512, 128))).mean()
        g.backward()
        opt["g"].step()
        return (d + g).detach().clone()

    return step, nets


@program
def lbfgs() -> tuple[Step, nn.Module]:
    model, x = mlp_of(64, 8, nn.Tanh), torch.randn(512, 64)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, history_size=4)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    return (lambda: optimizer.step(closure).detach().clone()), model


@program
def parametrized_weights() -> tuple[Step, nn.Module]:
    model = nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(128, 128)), nn.ReLU(),
        parametrizations.weight_norm(nn.Linear(128, 128)), nn.ReLU(),
        parametrizations.orthogonal(nn.Linear(128, 128)), nn.ReLU(),
        *mlp_of(128, 6),
    )  # fmt: skip
    x = torch.randn(512, 128)
    return supervised(model, lambda: model(x).square().mean())


@program
def checkpointed_blocks() -> tuple[Step, nn.Module]:
    model, x = nn.ModuleList(mlp_of(128, 3) for _ in range(4)), torch.randn(512, 128)

    def loss() -> Tensor:
        h = x.clone().requires_grad_()
        for i, part in enumerate(model):
            h = checkpoint(part, h, use_reentrant=bool(i % 2))
        return h.square().mean()

    return supervised(model, loss)


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return grad * (s * (1 + x * (1 - s)))


@program
def custom_functions() -> tuple[Step, nn.Module]:
    model, x = nn.ModuleList(nn.Linear(128, 128) for _ in range(8)), torch.randn(512, 128)

    def loss() -> Tensor:
        h = x
        for layer in model:
            h = Swish.apply(layer(h))
        return h.square().mean()

    return supervised(model, loss)


@program
def maml() -> tuple[Step, nn.Module]:
    model, x = mlp_of(64, 4, nn.Tanh), torch.randn(4, 128, 64)
    names: dict[str, Tensor] = dict(model.named_parameters())

    def loss() -> Tensor:
        total = x.new_zeros(())
        for task in x:
            fast = dict(names)
            for _ in range(2):
                inner = torch.func.functional_call(model, fast, (task,)).square().mean()
                grads = torch.autograd.grad(inner, list(fast.values()), create_graph=True)
                fast = {n: p - 0.1 * g for (n, p), g in zip(fast.items(), grads, strict=True)}
            total = total + torch.func.functional_call(model, fast, (task,)).square().mean()
        return total

    return supervised(model, loss)


@program
def gradient_accumulation() -> tuple[Step, nn.Module]:
    model, x = mlp_of(128, 8), torch.randn(4, 256, 128)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def step() -> Tensor:
        losses = []
        for part in x:
            loss = model(part).square().mean() / 4
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack(losses).sum()

    return step, model


def truncated(by_hand: bool) -> tuple[Step, nn.Module]:
    model = nn.ModuleDict({"rnn": nn.LSTM(64, 64, 2), "out": nn.Linear(64, 64)})
    x = torch.randn(20, 8, 64)
    state = [torch.zeros(2, 8, 64), torch.zeros(2, 8, 64)]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step() -> Tensor:
        h = tuple(part.detach() for part in state)
        model.zero_grad()
        y, state[:] = model["rnn"](x, h)
        loss = model["out"](y).square().mean()
        loss.backward()
        if by_hand:
            with torch.no_grad():
                for p in model.parameters():
                    assert p.grad is not None
                    p.add_(p.grad, alpha=-0.1)
        else:
            optimizer.step()
        return loss.detach().clone()

    return step, model


@program
def truncated_bptt() -> tuple[Step, nn.Module]:
    return truncated(by_hand=False)


@program
def manual_sgd() -> tuple[Step, nn.Module]:
    return truncated(by_hand=True)


@program
def dqn() -> tuple[Step, nn.Module]:
    def net() -> nn.Sequential:
        return nn.Sequential(nn.Linear(8, 128), nn.ReLU(), mlp_of(128, 5), nn.Linear(128, 4))

    model, target = net(), net()
    s, after = torch.randn(512, 8), torch.randn(512, 8)
    act, reward = torch.randint(4, (512, 1)), torch.randn(512)

    def loss() -> Tensor:
        with torch.no_grad():
            best = reward + 0.99 * target(after).max(1).values
            for t, p in zip(target.parameters(), model.parameters(), strict=True):
                t.lerp_(p, 0.01)
        return F.smooth_l1_loss(model(s).gather(1, act).squeeze(1), best)

    return supervised(model, loss)


@program
def contrastive() -> tuple[Step, nn.Module]:
    model, x = mlp_of(128, 6), torch.randn(256, 128)

    def loss() -> Tensor:
        views = [x + 0.1 * torch.randn_like(x) for _ in range(2)]
        a, b = (F.normalize(model(view), dim=1) for view in views)
        return F.cross_entropy(a @ b.T / 0.1, torch.arange(256))

    return supervised(model, loss)


@program
def teacher_and_student() -> tuple[Step, nn.Module]:
    model, teacher, x = mlp_of(128, 6), mlp_of(128, 6), torch.randn(512, 128)

    def loss() -> Tensor:
        with torch.no_grad():
            wanted = teacher(x)
            for t, p in zip(teacher.parameters(), model.parameters(), strict=True):
                t.mul_(0.99).add_(p, alpha=0.01)
        return F.mse_loss(model(x + 0.1 * torch.randn_like(x)), wanted)

    return supervised(model, loss)


@program
def knowledge_distillation() -> tuple[Step, nn.Module]:
    model = nn.Sequential(mlp_of(128, 5), nn.Linear(128, 50))
    teacher, x = nn.Sequential(mlp_of(128, 8), nn.Linear(128, 50)), torch.randn(512, 128)
    y = torch.randint(50, (512,))

    def loss() -> Tensor:
        out = model(x)
        with torch.no_grad():
            soft = (teacher(x) / 2).softmax(-1)
        kept = F.kl_div((out / 2).log_softmax(-1), soft, reduction="batchmean")
        return kept + F.cross_entropy(out, y)

    return supervised(model, loss)


@program
def double_backward_penalty() -> tuple[Step, nn.Module]:
    model, x = mlp_of(128, 6, nn.Softplus), torch.randn(512, 128)

    def loss() -> Tensor:
        at = x.clone().requires_grad_()
        out = model(at).sum()
        (slope,) = torch.autograd.grad(out, at, create_graph=True)
        return out / at.numel() + slope.square().mean()

    return supervised(model, loss)


@program
def multi_task() -> tuple[Step, nn.Module]:
    heads = nn.ModuleList(nn.Sequential(mlp_of(128, 2), nn.Linear(128, 10)) for _ in range(4))
    model, x = nn.ModuleDict({"trunk": mlp_of(128, 6), "heads": heads}), torch.randn(512, 128)
    y = torch.randint(10, (4, 512))

    def loss() -> Tensor:
        h = model["trunk"](x)
        pairs = zip(heads, y, strict=True)
        return torch.stack([F.cross_entropy(head(h), labels) for head, labels in pairs]).sum()

    return supervised(model, loss)


@program
def saved_tensors_to_host() -> tuple[Step, nn.Module]:
    model, x = mlp_of(128, 6), torch.randn(512, 128)

    def loss() -> Tensor:
        with torch.autograd.graph.save_on_cpu():
            return model(x).square().mean()

    return supervised(model, loss)


@program
def mixed_precision() -> tuple[Step, nn.Module]:
    model, x = mlp_of(128, 6), torch.randn(512, 128)

    def loss() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x).float().square().mean()

    return supervised(model, loss)
