"""Code that torch did not run operator by operator: captured graphs, compiled code, own kernels.
What it reads must be there, what it writes must not be taken for recomputable, and a captured graph
must find its own memory as it was at each launch."""

from typing import Any

import pytest
import torch

import dtr_alloc
from tests.gpu.programs import MIB, assert_exact, digest, losses_of, result, swap, told, trained


def graphed(device: str, budget: int | None) -> Any:
    """A part of the network is a graph, forward and backward, with dropout in it; what lies around
    it is evicted."""
    watched = swap(device, budget)
    width, batch = 512, 8192
    torch.manual_seed(0)
    inner: Any = torch.nn.Sequential(
        torch.nn.Linear(width, width),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(width, width),
    ).to(device)
    outer = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(8)).to(device)
    sample = torch.randn(batch, width, device=device, requires_grad=True)
    captured: Any = torch.cuda.make_graphed_callables(inner, (sample,))
    x = torch.randn(batch, width, device=device)

    def forward() -> torch.Tensor:
        y = x
        for i, layer in enumerate(outer):
            y = torch.nn.functional.gelu(layer(y))
            if i == 3:
                y = captured(y) + y
        return y.square().mean()

    losses = losses_of(3, forward)
    return result(watched, [*losses, *trained(inner), *trained(outer)])


@pytest.mark.gpu
def test_a_graph_with_dropout_and_backward_trains_as_without_dtr_alloc() -> None:
    assert_exact(graphed, "cuda", 0.8)


def launched(device: str, budget: int) -> Any:
    """Launches a graph again and again, between evictions and moves of pages."""
    watched = swap(device, budget)
    static = torch.zeros(1 << 20, device=device)
    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        (static * 2 + 1).mul(3).sum()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        answer = (static * 2 + 1).mul(3).sum()
    right = []
    for turn in range(20):
        static.fill_(turn)
        kept = [torch.full((2 << 20,), 1.0, device=device).mul(i).sin() for i in range(40)]
        graph.replay()
        right.append(float(answer) == (2 * turn + 1) * 3 * (1 << 20))
        right += [bool((k == k[0]).all()) for k in kept]  # The graph wrote into none of them.
    return [all(right), watched.evictions() > 0]


@pytest.mark.gpu
def test_a_graph_finds_its_memory_while_others_are_evicted() -> None:
    assert told(launched, "cuda", 256 * MIB) == [True, True]


def compiled(device: str, budget: int | None, backend: str) -> Any:
    """Every second block is compiled; those between are evicted."""
    watched = swap(device, budget)
    width, batch = (512, 8192) if device == "cuda" else (32, 1024)

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.linear = torch.nn.LayerNorm(width), torch.nn.Linear(width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.gelu(self.linear(self.norm(x))) + x

    blocks: Any = torch.nn.ModuleList(Block() for _ in range(8)).to(device)
    for block in blocks[::4]:
        block.compile(backend=backend)
    x = torch.randn(batch, width, device=device)

    def forward() -> torch.Tensor:
        y = x
        for block in blocks:
            y = block(y)
        return y.square().mean()

    losses = losses_of(3, forward)
    return result(watched, [*losses, *trained(blocks)])


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_blocks_between_evicted_ones_train_as_without_dtr_alloc(device: str) -> None:
    torch.compiler.reset()
    backend = "inductor" if device == "cuda" else "aot_eager"
    assert_exact(compiled, device, 0.85, backend)


@pytest.mark.gpu
def test_blocks_compiled_by_our_backend_train_as_without_dtr_alloc() -> None:
    assert_exact(compiled, "cuda", 0.85, "dtr_alloc")


doubled: Any = None  # triton_kernel's: imported late, since Triton may be absent.


def own_kernel(device: str, budget: int) -> Any:
    """The kernel reads an evicted tensor, and writes one from which others were computed."""
    swap(device, budget)
    count = 1 << 20 if device == "cuda" else 1 << 12
    x = torch.arange(count, dtype=torch.float32, device=device)
    source, target = x.mul(3), torch.zeros(count, device=device)
    before = target + 1
    gone = dtr_alloc.evict(source)
    doubled[(count // 1024,)](source, target, count, block=1024)
    again = dtr_alloc.evict(before)
    same = digest(before) == digest(torch.ones(count, device=device))
    return [gone, bool((target == x * 6).all()), same, isinstance(again, bool)]


def test_a_kernel_of_the_users_reads_what_was_evicted(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    if device == "cpu" and torch.cuda.is_available():
        pytest.skip("Triton's interpreter is chosen once for a process")
    from tests.gpu import triton_kernel

    monkeypatch.setitem(globals(), "doubled", triton_kernel.doubled)
    assert told(own_kernel, device, 64 * MIB, needs=[triton_kernel]) == [True] * 4
