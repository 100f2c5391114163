"""What only a GPU can show: torch's own CUDA tensors on the pool, evicted and recomputed. The
allocator is for a whole process, so each program runs in one of its own and prints what is
tested."""

import textwrap
from typing import Any

import pytest

from tests.gpu.programs import TELL_A_HANG, in_process

pytestmark = pytest.mark.gpu

PRELUDE = """
import json, os, torch, dtr_alloc
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
torch.use_deterministic_algorithms(True)
MIB = 1 << 20
def swap(budget="512MiB", **options):
    allocator = dtr_alloc.allocator(budget, **options)
    torch.cuda.memory.change_current_allocator(allocator)
    return allocator
def network(batch=4096, width=1024, layers=16):
    torch.manual_seed(0)
    net = torch.nn.Sequential(*[m for _ in range(layers) for m in (
        torch.nn.Linear(width, width), torch.nn.BatchNorm1d(width), torch.nn.ReLU(inplace=True),
        torch.nn.Dropout(0.1))]).cuda()
    x = torch.randn(batch, width, device="cuda")
    def step():
        net.zero_grad(set_to_none=True)
        loss = net(x).square().mean()
        loss.backward()
        return loss.item()
    return net, step
def sums(net):
    return [p.grad.double().sum().item().hex() for p in net.parameters()] + [
        b.double().sum().item().hex() for b in net.buffers()]
"""


def tell(program: str) -> Any:
    return in_process(TELL_A_HANG + PRELUDE + textwrap.dedent(program))


def test_something_was_evicted_and_the_steady_state_makes_no_time_stamps() -> None:
    evictions, grown, records = tell(
        """
        allocator = swap("400MiB", thrash_limit=0)
        net, step = network()
        for _ in range(28):  # An operator is measured in 25 runs at most (operator_costs.h).
            step()
        before = allocator._core.session().stats().time_stamps
        for _ in range(3):
            step()
        grown = allocator._core.session().stats().time_stamps - before
        stats = allocator.session.stats()
        allocator.session.check()
        print(json.dumps([stats.evictions, grown, stats.records]))
        """
    )
    assert evictions > 0
    assert grown == 0
    assert records > 0


def test_torchs_figures_agree_with_tensors() -> None:
    figures = tell(
        """
        swap("512MiB")
        a = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
        b = torch.empty(100, dtype=torch.uint8, device="cuda")
        allocated = torch.cuda.memory_allocated()
        del b
        peak = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        print(json.dumps([
            allocated, torch.cuda.memory_allocated(), peak, torch.cuda.max_memory_allocated(),
            torch.cuda.memory_reserved() >= 64 * MIB, "Allocated memory" in
            torch.cuda.memory_summary(), torch.cuda.mem_get_info()[0] > 0,
            len(torch.cuda.memory_snapshot()) > 0, torch.cuda.memory.get_allocator_backend()
            if hasattr(torch.cuda.memory, "get_allocator_backend") else "dtr_alloc"]))
        """
    )
    mib = 1 << 20
    assert figures[:4] == [64 * mib + 512, 64 * mib, 64 * mib + 512, 64 * mib]
    assert figures[4:8] == [True, True, True, True]


def test_cupy_and_torch_share_one_budget() -> None:
    pytest.importorskip("cupy")
    live, evictions, same = tell(
        """
        import cupy
        allocator = swap("256MiB", thrash_limit=0)
        cupy.cuda.set_allocator(dtr_alloc.cupy_allocator(allocator))
        x = torch.arange(8 << 20, dtype=torch.float32, device="cuda")
        y = [x * float(i) for i in range(1, 7)]
        array = cupy.ones(16 << 20, dtype="float32")
        live = torch.cuda.memory_allocated()
        same = all(bool((t == x * float(i)).all()) for i, t in zip(range(1, 7), y))
        print(json.dumps([live, allocator.session.stats().evictions, same
                          and float(array.sum()) == 16 << 20]))
        """
    )
    assert live <= 256 << 20
    assert evictions > 0
    assert same


def test_a_dropout_and_attention_are_recomputed_with_the_same_numbers() -> None:
    assert tell(
        """
        allocator = swap("1GiB")
        torch.manual_seed(0)
        q = torch.randn(4, 8, 512, 64, device="cuda", dtype=torch.bfloat16)
        outputs = [
            torch.nn.functional.dropout(q, 0.3),
            torch.nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.2),
            torch.rand_like(q),
            torch.randn(4, 512, device="cuda"),
            torch.bernoulli(q.abs().clamp(0, 1)),
        ]
        before = [o.clone() for o in outputs]
        for copy in before:
            dtr_alloc.pin(copy)
        evicted = [dtr_alloc.evict(o) for o in outputs]
        print(json.dumps([evicted, [bool((a == b).all()) for a, b in zip(before, outputs)]]))
        """
    ) == [[True] * 5, [True] * 5]
