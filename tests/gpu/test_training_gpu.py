"""Training loops as people write them are exact under eviction: autocast, fused steps, loaders.
Each program trains on plain torch and under a share of its peak there, and comes to the same
bits."""

import builtins
from typing import Any

import pytest
import torch

import dtr_alloc
from tests.gpu.programs import (
    assert_exact,
    backward,
    in_process,
    result,
    swap,
    text_of,
    told,
    trained,
)

SMALL = 160 << 20  # On a GPU cuBLAS takes 32 MiB for each thread that multiplies.


def perceptron(device: str, budget: int | None, half: bool, optimizer: str) -> Any:
    watched = swap(device, budget)
    width, batch = (512, 8192) if device == "cuda" else (32, 1024)
    layers: list[torch.nn.Module] = []
    for _ in range(8):
        layers += [torch.nn.Linear(width, width), torch.nn.LayerNorm(width), torch.nn.GELU()]
        layers += [torch.nn.Dropout(0.1)]
    net = torch.nn.Sequential(*layers).to(device)
    makers: dict[str, Any] = {
        "fused AdamW": lambda: torch.optim.AdamW(net.parameters(), fused=True),
        "foreach SGD": lambda: torch.optim.SGD(net.parameters(), 0.01, 0.9, foreach=True),
    }
    made = makers[optimizer]()
    kind = torch.float16 if device == "cuda" else torch.bfloat16
    scaler = torch.amp.GradScaler(device, init_scale=1024.0, enabled=half)
    x = torch.randn(batch, width, device=device)
    losses = []
    for step in range(4):
        made.zero_grad(set_to_none=step % 2 == 0)
        with torch.autocast(device, kind, enabled=half):
            loss = (net(x) - x).square().mean()
        backward(scaler.scale(loss))
        scaler.step(made)
        scaler.update()
        losses.append(loss.detach().clone())
        del loss
    return result(watched, [*losses, *trained(net)], scale=scaler.get_scale())


@pytest.mark.parametrize("optimizer", ["fused AdamW", "foreach SGD"])
@pytest.mark.parametrize("half", [False, True])
def test_autocast_scaled_gradients_and_fused_steps_are_exact(
    device: str, half: bool, optimizer: str
) -> None:
    plain, found = assert_exact(perceptron, device, 0.7, half, optimizer)
    assert found["scale"] == plain["scale"]


def interrupted(device: str, budget: int | None) -> Any:
    """The second backward pass raises half way; the program catches it and goes on."""
    watched = swap(device, budget)
    fails = [False]

    class Fragile(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            if fails[0]:
                raise ArithmeticError("half way")
            return gradients[0] * 2

    width, batch = (512, 8192) if device == "cuda" else (32, 1024)
    layers = [torch.nn.Linear(width, width).to(device) for _ in range(8)]
    x = torch.randn(batch, width, device=device)
    raised = 0
    for step in range(4):
        fails[0] = step == 1
        y = x
        for i, layer in enumerate(layers):
            y = torch.tanh(layer(y))
            if i == 4:
                y = Fragile.apply(y)  # type: ignore[no-untyped-call]
        loss = y.square().mean()
        del y
        try:
            backward(loss)
        except ArithmeticError:
            raised += 1
        del loss
    tensors = [t for layer in layers for t in trained(layer)]
    return result(watched, tensors, raised=raised)


def test_a_backward_pass_that_raises_leaves_a_program_that_can_go_on(device: str) -> None:
    _, found = assert_exact(interrupted, device, 0.7)
    assert found["raised"] == 1


def loaded(device: str, budget: int | None) -> Any:
    """Batches come from worker processes that were forked beside the pool."""
    from torch.utils.data import DataLoader, TensorDataset

    watched = swap(device, budget)
    width = 64
    data = TensorDataset(torch.randn(512, width), torch.randn(512, width))
    net = torch.nn.Sequential(
        *[m for _ in range(6) for m in (torch.nn.Linear(width, width), torch.nn.Tanh())]
    ).to(device)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    loader = DataLoader(data, 128, num_workers=2, pin_memory=device == "cuda")
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            given, wanted = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            backward((net(given) - wanted).square().mean())
            optimizer.step()
    return result(watched, trained(net))


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_workers_of_a_loader_may_be_forked_beside_the_pool(device: str) -> None:
    plain = told(loaded, device, None)
    found = told(loaded, device, SMALL)
    assert found["sums"] == plain["sums"]


def left_alive(device: str, budget: int) -> Any:
    """Ends with tensors that live, are evicted, and are held by a graph of autograd."""
    swap(device, budget)
    x = torch.randn(1 << 18, device=device, requires_grad=True)
    y = x.sin()
    layers = [(y * i).cos() for i in range(8)]
    builtins.kept = [x, y, *layers, torch.stack(layers).sum()]  # type: ignore[attr-defined]
    dtr_alloc.evict(layers[3])
    return dtr_alloc.is_evicted(layers[3])


def test_a_process_may_end_with_tensors_that_live_and_are_evicted(device: str) -> None:
    assert in_process(text_of(left_alive, device, 64 << 20)) is True


def out_of_memory(device: str, budget: int) -> Any:
    """Asks for too much in the middle of a step, catches it, and trains on a smaller batch."""
    watched = swap(device, budget)
    net = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(8)]).to(device)
    refused = 0
    for batch in (256, 1 << 24, 256):
        try:
            x = torch.randn(batch, 64, device=device)
            backward(net(x).square().mean())
            del x
        except torch.OutOfMemoryError as error:
            refused += "Raise the budget to at least" in str(error)
    return result(watched, trained(net), refused=refused)


def test_after_an_out_of_memory_error_the_program_trains_on(device: str) -> None:
    found = told(out_of_memory, device, SMALL)
    assert found["refused"] == 1
    assert found["peak"] <= SMALL
