"""Guest mode: torch's own allocator keeps the memory, and the runtime evicts (torch_memory.md). The
stand-in of test_cuda_guest.py has no expandable segments, nor torch's statistics and refusals."""

from typing import Any

import pytest
import torch

import dtr_alloc
from dtr_alloc.pool.size import LARGEST_BUDGET
from tests.gpu.programs import MIB, assert_exact, backward, digest, result, swap, told, trained


def perceptron(device: str, budget: int | None, held: int | None = None) -> Any:
    """Activations of 16 MiB each on a GPU. Where torch may hold `held` bytes and no more, it turns
    requests down as it does where the card is full."""
    watched = swap(device, budget, memory="torch")
    if held is not None:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(held / total)
    width, batch = (512, 8192) if device == "cuda" else (32, 1024)
    layers: list[torch.nn.Module] = []
    for _ in range(12):
        layers += [torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.Dropout(0.1)]
    net = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.Adam(net.parameters())
    x = torch.randn(batch, width, device=device)
    losses = []
    try:
        for _ in range(4):
            optimizer.zero_grad()
            loss = (net(x) - x).square().mean()
            backward(loss)
            optimizer.step()
            losses.append(loss.detach().clone())
            del loss
    except torch.OutOfMemoryError:
        return "out of memory"
    figures: dict[str, Any] = {}
    if device == "cuda":
        statistics = torch.cuda.memory_stats()
        figures = {name: statistics[name] for name in ("num_ooms", "num_alloc_retries")}
        figures["held"] = torch.cuda.max_memory_reserved()
        segments = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
        figures["expandable"] = any(segment["is_expandable"] for segment in segments)
    return result(watched, [*losses, *trained(net)], **figures)


def test_a_model_trains_exactly_within_the_budget_of_a_guest(device: str) -> None:
    assert_exact(perceptron, device, 0.7)


@pytest.mark.gpu
def test_with_expandable_segments_a_model_trains_exactly_within_the_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    plain, found = assert_exact(perceptron, "cuda", 0.7)
    assert plain["expandable"]
    assert found["expandable"]


@pytest.mark.gpu
@pytest.mark.parametrize("expandable", [False, True])
def test_what_torch_turns_down_is_served_after_evictions(
    expandable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", f"expandable_segments:{expandable}")
    plain = told(perceptron, "cuda", None)
    held = int(plain["held"] * 0.7)
    assert told(perceptron, "cuda", None, held) == "out of memory"
    found = told(perceptron, "cuda", LARGEST_BUDGET, held)
    assert found["num_alloc_retries"] > 0
    assert found["evictions"] > 0
    assert found["num_ooms"] == 0
    assert found["sums"] == plain["sums"]


def leaves(device: str, budget: int) -> Any:
    """Comes when CUDA is in use, and goes while tensors are evicted."""
    early = torch.randn(1 << 20, device=device)
    expected = [digest((early + n).sin()) for n in range(16)]
    allocator: Any = dtr_alloc.allocator(budget, memory="torch", thrash_limit=0.0)
    allocator.install()
    tensors = [(early + n).sin() for n in range(16)]  # 64 MiB.
    peak = torch.cuda.max_memory_allocated()
    evicted = sum(map(dtr_alloc.is_evicted, tensors))
    allocator.remove()
    left = sum(map(dtr_alloc.is_evicted, tensors))
    same = [digest(tensor) for tensor in tensors] == expected
    del tensors
    return {"peak": peak, "evicted": evicted, "left": left, "same": same}


@pytest.mark.gpu
def test_a_guest_comes_late_and_goes_with_every_tensor_back() -> None:
    found = told(leaves, "cuda", 40 * MIB)
    assert found["peak"] <= 40 * MIB
    assert found["evicted"] > 0
    assert found["left"] == 0
    assert found["same"]
