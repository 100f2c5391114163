"""Convolutions, batch norm, recurrent layers and attention, recomputed inside the backward pass.

On a GPU that runs in a thread of autograd's own, where libraries keep caches of their own: cuDNN's
plans, workspaces, handles. A replay there must take the algorithm of the forward pass. Where cuDNN
searches for one by time (`benchmark`), the last bits may differ: that is told, and no error."""

from typing import Any

import pytest
import torch

import dtr_alloc
from tests.gpu.programs import assert_exact, backward, losses_of, result, swap, told, trained


def convolutions(device: str, budget: int | None, search: bool, channels_last: bool) -> Any:
    if search and device == "cuda":
        torch.use_deterministic_algorithms(False)
    watched = swap(device, budget)
    width, side, count = (64, 64, 16) if device == "cuda" else (8, 16, 4)
    layers: list[torch.nn.Module] = []
    for i in range(8):
        layers += [
            torch.nn.Conv2d(width, width, 3 if i % 2 else 1, padding=i % 2, bias=False),
            torch.nn.BatchNorm2d(width),
            torch.nn.ReLU(inplace=True),
        ]
    net: Any = torch.nn.Sequential(*layers).to(device)
    kind = torch.channels_last if channels_last else torch.contiguous_format
    net = net.to(memory_format=kind)
    x = torch.randn(count, width, side, side, device=device).to(memory_format=kind)

    def forward() -> torch.Tensor:
        net.zero_grad()
        loss: torch.Tensor = net(x).square().mean()
        return loss

    with torch.backends.cudnn.flags(enabled=True, benchmark=search):
        losses = losses_of(3, forward)
    values = [float(value) for value in losses]
    return result(watched, [*losses, *trained(net)], losses=values)


@pytest.mark.parametrize("channels_last", [False, True])
def test_convolutions_and_batch_norm_replayed_in_backward_are_exact(
    device: str, channels_last: bool
) -> None:
    assert_exact(convolutions, device, 0.6, False, channels_last)


def test_with_cudnns_benchmark_results_are_near_and_a_difference_is_told(device: str) -> None:
    # Searching takes workspaces of any size; 60 % of the peak without them makes it evict.
    budget = int(told(convolutions, device, None, False, True)["peak"] * 0.6)
    plain = told(convolutions, device, None, True, True)
    found = told(convolutions, device, budget, True, True)
    assert found["evictions"] > 0
    assert found["losses"] == pytest.approx(plain["losses"], rel=1e-3)
    differing = sum(a != b for a, b in zip(plain["sums"], found["sums"], strict=True))
    print(f"with benchmark {differing} of {len(plain['sums'])} tensors differ")
    again = told(convolutions, device, None, True, True)
    unstable = sum(a != b for a, b in zip(plain["sums"], again["sums"], strict=True))
    print(f"plain torch differs from itself in {unstable}")


def touched_in_backward(device: str, budget: int, search: bool) -> Any:
    """A convolution's result, evicted by hand, and brought back in the thread of the backward
    pass; is it the same?"""
    if device == "cuda":
        torch.use_deterministic_algorithms(False)
    swap(device, budget)
    torch.manual_seed(0)
    conv: Any = torch.nn.Conv2d(32, 48, 3, padding=1).to(device)
    x = torch.randn(8, 32, 40, 40, device=device)
    with torch.backends.cudnn.flags(enabled=True, benchmark=search):
        with torch.no_grad():
            y = conv(x)
        before = y.clone()
        dtr_alloc.pin(before)
        gone = dtr_alloc.evict(y)
        found: list[Any] = []
        z = torch.ones((), device=device, requires_grad=True)
        out: Any = z * 2
        out.register_hook(lambda gradient: found.append((y - before).abs().max()))
        backward(out)
    return [gone, float(found[0])]


@pytest.mark.parametrize("search", [False, True])
def test_a_convolution_brought_back_by_autograds_thread_is_the_same(
    device: str, search: bool
) -> None:
    gone, difference = told(touched_in_backward, device, 256 << 20, search)
    assert gone
    print(f"benchmark {search}: the largest difference is {difference}")
    assert difference < 1e-2  # In TF32.
    if not search:
        assert difference == 0


def recurrent(device: str, budget: int | None, kind: str) -> Any:
    watched = swap(device, budget)
    width, length, batch = (256, 64, 128) if device == "cuda" else (16, 16, 32)
    made = {"LSTM": torch.nn.LSTM, "GRU": torch.nn.GRU}[kind]
    before = torch.nn.Linear(width, width).to(device)
    layer: Any = made(width, width, num_layers=2, batch_first=True).to(device)
    after = torch.nn.Linear(width, width).to(device)
    x = torch.randn(batch, length, width, device=device)

    def forward() -> torch.Tensor:
        y = torch.tanh(before(x))
        for _ in range(8):  # As large together as cuDNN's workspaces, which a budget must hold.
            y = torch.nn.functional.gelu(y * 2)
        z, _ = layer(y)
        return torch.sigmoid(after(torch.tanh(z))).square().mean()

    losses = losses_of(3, forward)
    tensors = [t for module in (before, layer, after) for t in trained(module)]
    return result(watched, [*losses, *tensors])


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_a_recurrent_layer_replayed_in_backward_is_exact(device: str, kind: str) -> None:
    assert_exact(recurrent, device, 0.8, kind)


def attention(device: str, budget: int | None, backend: str, dropout: float) -> Any:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    chosen = {
        "flash": SDPBackend.FLASH_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "math": SDPBackend.MATH,
    }[backend]
    if backend == "cudnn":  # It has no deterministic backward pass.
        torch.use_deterministic_algorithms(False)
    watched = swap(device, budget)
    heads, length, batch = (8, 512, 16) if device == "cuda" else (2, 32, 8)
    width = 64 * heads
    kind = torch.bfloat16 if device == "cuda" else torch.float32
    torch.manual_seed(0)
    layers: list[Any] = [torch.nn.Linear(width, 3 * width).to(device, kind) for _ in range(4)]
    x = torch.randn(batch, length, width, device=device, dtype=kind)
    losses = []
    for _ in range(2):
        y = x
        for layer in layers:
            q, k, v = (
                part.view(batch, length, heads, 64).transpose(1, 2)
                for part in layer(y).chunk(3, dim=-1)
            )
            try:
                with sdpa_kernel(chosen):
                    z = torch.nn.functional.scaled_dot_product_attention(
                        q, k, v, dropout_p=dropout, is_causal=True
                    )
            except RuntimeError as error:
                if "No available kernel" not in str(error):
                    raise
                return {"absent": str(error)}
            y = torch.tanh(z.transpose(1, 2).reshape(batch, length, width)) + y
        del q, k, v, z
        loss = y.float().square().mean()
        del y
        backward(loss)
        losses.append(loss.detach().clone())
        del loss
    values = [float(value) for value in losses]
    tensors = [t for layer in layers for t in trained(layer)]
    return result(watched, [*losses, *tensors], losses=values)


@pytest.mark.parametrize("backend", ["flash", "efficient", "cudnn", "math"])
def test_attention_replayed_in_backward_is_exact(device: str, backend: str) -> None:
    if device == "cpu" and backend in ("efficient", "cudnn"):
        pytest.skip("the CPU has no such kernel")
    dropout = 0.1 if device == "cuda" else 0.0  # The CPU's flash kernel has none.
    plain = told(attention, device, None, backend, dropout)
    if "absent" in plain:
        pytest.skip(plain["absent"])
    found = told(attention, device, int(plain["peak"] * 0.7), backend, dropout)
    assert found["evictions"] > 0
    assert found["losses"][0] == plain["losses"][0]  # The forward pass is the same in all.
    if backend == "cudnn":
        assert found["losses"] == pytest.approx(plain["losses"], rel=1e-2)
    else:
        assert found["sums"] == plain["sums"]
