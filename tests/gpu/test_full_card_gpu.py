"""A card that another process fills: what the budget allows, the device may not have. These tests
take the whole card, so they run one by one, after all others (`alone`)."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from tests.gpu.programs import losses_of, result, swap, told, trained

pytestmark = [pytest.mark.gpu, pytest.mark.alone]
GIB = 1 << 30
FILL = """
import sys, torch
torch.cuda.init()
held = []
free, _ = torch.cuda.mem_get_info()
size = free - int(sys.argv[1])
while size > 1 << 20:
    try:
        held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        break
    except torch.OutOfMemoryError:
        size -= 1 << 29
print("full", flush=True)
sys.stdin.read()
"""


@contextmanager
def neighbour(leaves: int) -> Iterator[None]:
    """Another process holds all of the card but `leaves` bytes."""
    command = [sys.executable, "-c", FILL, str(leaves)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == "full"
            yield
        finally:
            process.kill()


def perceptron(device: str, budget: int | None, batch: int) -> Any:
    """Activations of some GiB, parameters of some MiB."""
    watched = swap(device, budget)
    width = 1024
    net = torch.nn.Sequential(
        *[m for _ in range(24) for m in (torch.nn.Linear(width, width), torch.nn.GELU())]
    ).to(device)
    x = torch.randn(batch, width, device=device)
    losses = losses_of(2, lambda: net(x).square().mean())
    return result(watched, [*losses, *trained(net)])


def test_a_budget_that_the_card_cannot_give_is_met_by_eviction() -> None:
    batch = 1 << 15  # 128 MiB a layer's result; some 6 GiB in all.
    plain = told(perceptron, "cuda", None, batch)
    assert plain["peak"] > 5 * GIB
    with neighbour(leaves=4 * GIB):
        found = told(perceptron, "cuda", 40 * GIB, batch)
    assert found["evictions"] > 0
    assert found["sums"] == plain["sums"]


def refused(device: str, budget: int) -> Any:
    """One tensor that no eviction can make room for is refused, and the program goes on."""
    swap(device, budget)
    text = ""
    try:
        torch.empty(30 << 30, dtype=torch.uint8, device=device)
    except (torch.OutOfMemoryError, MemoryError) as error:
        text = str(error)
    return [text, float(torch.ones(1 << 20, device=device).sum())]


def test_what_the_card_cannot_give_at_all_is_an_error_and_no_crash() -> None:
    with neighbour(leaves=4 * GIB):
        text, total = told(refused, "cuda", 40 * GIB)
    assert text
    assert total == 1 << 20
