"""What only a GPU can show: torch's own CUDA tensors on the pool, evicted and recomputed.

The allocator is for a whole process, so each program runs in one of its own and prints what the
test compares. `make gpu` runs them.
"""

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


TRAIN = """
net, step = network()
losses = [step().hex() for _ in range(3)]
peak = torch.cuda.max_memory_allocated()
print(json.dumps([losses, sums(net), peak]))
"""


def test_training_under_half_of_the_peak_is_exact() -> None:
    losses, gradients, peak = tell(TRAIN)
    found_losses, found_gradients, found_peak = tell(f"swap({int(peak * 0.6)})\n{TRAIN}")
    assert found_losses == losses
    assert found_gradients == gradients
    assert found_peak <= peak * 0.6


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


def test_out_of_memory_is_torchs_and_the_program_goes_on() -> None:
    name, text, total = tell(
        """
        swap("256MiB")
        try:
            torch.empty(1 << 30, device="cuda")
        except torch.OutOfMemoryError as error:
            name, text = type(error).__name__, str(error)
        print(json.dumps([name, text, torch.ones(1000, device="cuda").sum().item()]))
        """
    )
    assert name == "OutOfMemoryError"
    assert "raise the budget to at least" in text
    assert total == 1000


def test_a_captured_graph_replays_right_while_others_allocate() -> None:
    assert tell(
        """
        swap("1GiB")
        x = torch.zeros(1 << 20, device="cuda")
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            (x + 1).exp().sum()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = (x + 1).mul(2).sum()
        noise = [torch.full((1 << 20,), 9.0, device="cuda") for _ in range(16)]
        right = []
        for value in (1.0, 2.0, 3.0):
            x.fill_(value)
            graph.replay()
            right.append(y.item() == (value + 1) * 2 * (1 << 20))
        intact = all(bool((n == 9).all()) for n in noise)
        del graph
        print(json.dumps([right, intact]))
        """
    ) == [[True, True, True], True]


def test_cudnns_benchmark_works() -> None:
    assert tell(
        """
        torch.use_deterministic_algorithms(False)
        swap("2GiB")
        torch.backends.cudnn.benchmark = True
        net = torch.nn.Conv2d(16, 32, 3).cuda()
        y = net(torch.randn(8, 16, 64, 64, device="cuda"))
        y.sum().backward()
        print(json.dumps(list(y.shape)))
        """
    ) == [8, 32, 62, 62]


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
