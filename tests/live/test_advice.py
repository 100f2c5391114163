"""What an OutOfMemoryError says about the budget that would do, and whether that does."""

import re
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

import dtr_alloc
from dtr_alloc.pool.size import LARGEST_BUDGET, parse_size
from dtr_alloc.runtime.scope import advice
from dtr_alloc.runtime.simulate.rules import Rules
from dtr_alloc.runtime.trace.format import Call, Mutate
from dtr_alloc.runtime.trace.from_records import trace_of
from tests.support.own_process import own_process
from tests.support.threads import in_threads

ADVISED = re.compile(r"; by a simulation of (.*), ([\d.]+[KM]iB) do$")
FIRST_STEP = "; the first step is not over, and a later request may need more: dtr-alloc plan"

Step = Callable[..., float]


@pytest.fixture(autouse=True)
def nothing_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "_before", {})


def descending(model: nn.Module, loss_of: Callable[[int], Tensor], momentum: float = 0.0) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)

    def step(rows: int = 512) -> float:
        optimizer.zero_grad()
        loss = loss_of(rows)
        torch.autograd.backward(loss)
        optimizer.step()
        return float(loss.item())

    return step


def deep(width: int, layers: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[m for _ in range(layers) for m in (nn.Linear(width, width), nn.Tanh())])


def training(width: int = 64) -> Step:
    model, x = deep(width, 10), torch.randn(2048, width)
    return descending(model, lambda rows: model(x[:rows]).square().mean(), momentum=0.9)


def within(budget: int | str, steps: int = 3, step: Step | None = None) -> list[float]:
    step = step or training()
    with dtr_alloc.rematerialize(budget, clock="logical"):
        return [step() for _ in range(steps)]


def measured(steps: int, step: Step | None = None) -> None:
    step = step or training()
    with dtr_alloc.measure():
        for _ in range(steps):
            step()


def report(run: Callable[[], Any]) -> str:
    try:
        run()
    except torch.OutOfMemoryError as error:
        return str(error)
    pytest.fail("it was not refused")


def refusal(run: Callable[[], Any]) -> str:
    return report(run).splitlines()[0]


def advised(text: str) -> tuple[str, int]:
    found = ADVISED.search(text)
    assert found is not None, text
    return found[1], parse_size(found[2])


def test_in_the_first_step_of_a_program_only_a_lower_bound_is_known() -> None:
    assert FIRST_STEP in refusal(lambda: within("500KiB"))
    measured(2, training(width=32))  # Another program.
    assert FIRST_STEP in refusal(lambda: within("500KiB"))


@pytest.mark.parametrize("steps", [1, 2])
def test_after_measured_steps_the_advice_runs_and_little_less_does_not(steps: int) -> None:
    step = training()
    wanted = [step() for _ in range(3)]
    measured(steps)
    with pytest.raises(torch.OutOfMemoryError) as refused:
        within("500KiB")
    error: Any = refused.value
    what, budget = advised(str(error).splitlines()[0])
    assert what == "what an earlier scope of this process did"
    assert error.suggested_budget == budget > error.needed > 500 << 10
    assert within(budget) == wanted
    refusal(lambda: within(int(budget / 1.05)))


class Needs:
    """A simulator of a program that needs more than its peak."""

    def __init__(self, least: int) -> None:
        self.least = least

    def run(self, budget: int, rules: object) -> SimpleNamespace:
        status = "ok" if budget >= self.least else "oom"
        return SimpleNamespace(status=status, peak_bytes=10**6, evictions=1, eager_evictions=0)


@pytest.mark.parametrize("least", [900_000, 1_500_000, 40_000_000])
def test_what_is_advised_has_run_though_the_time_for_a_search_is_over(
    least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advice, "_SECONDS", 0.0)
    simulators: Any = [Needs(least)]
    found = advice._smallest(simulators, Rules("dtr"), 800_000)
    assert found is not None
    assert least <= found < 2 * least


def test_what_asks_for_more_than_the_largest_budget_has_no_advice() -> None:
    simulators: Any = [Needs(900_000)]
    assert advice._smallest(simulators, Rules("dtr"), LARGEST_BUDGET + 512) is None


LIMITED = """
import resource, torch, dtr_alloc
from torch import nn
resource.setrlimit(resource.RLIMIT_AS, (64 << 30, -1))
net = nn.Sequential(*[nn.Linear(64, 64) for _ in range(8)])
optimizer = torch.optim.SGD(net.parameters())
with dtr_alloc.rematerialize("8MiB", device="cpu"):
    for rows in 512, 512, 100_000:
        net(torch.ones(rows, 64)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_limit_of_a_process_on_its_addresses_takes_no_advice_away() -> None:
    done = own_process(LIMITED)
    assert "2 optimizer steps seen so far needed less than this one\n" in done.stderr
    assert "ignored" not in done.stderr


def test_without_simulations_a_later_request_may_need_more(monkeypatch: pytest.MonkeyPatch) -> None:
    measured(1)
    monkeypatch.setattr(advice, "Simulator", Mock(side_effect=MemoryError))
    assert refusal(lambda: within("500KiB")).endswith("; a later request may need more")


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_an_interrupted_search_ends_a_program(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the handler of a signal raises it, which Python runs between any two of its lines."""
    monkeypatch.setattr(advice, "_advise", Mock(side_effect=KeyboardInterrupt))
    x = torch.ones(1 << 22, requires_grad=True)
    with dtr_alloc.rematerialize("4MiB") as session:
        with pytest.raises(KeyboardInterrupt):
            if where == "forward":
                x.exp()
            else:
                x[:10].sum().backward()  # type: ignore[no-untyped-call]
        assert float(x.detach()[:10].sum()) == 10
        session.check()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_error_in_a_search_leaves_the_one_it_was_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "_advise", Mock(side_effect=RuntimeError))
    x = torch.ones(1 << 22)
    with dtr_alloc.rematerialize("4MiB") as session:
        with pytest.raises(torch.OutOfMemoryError, match=r"asked: 16\.00 MiB"):
            x.exp()
        session.check()


def quasi_newton() -> Step:
    model, x = deep(64, 6), torch.randn(512, 64)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, history_size=4)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(x).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    return lambda: float(optimizer.step(closure).item())  # type: ignore[no-untyped-call]


def test_an_optimizer_whose_state_grows_for_two_steps_has_advice_after_them() -> None:
    step = quasi_newton()
    wanted = [step() for _ in range(4)]
    measured(2, quasi_newton())
    _, budget = advised(refusal(lambda: within("500KiB", step=quasi_newton())))
    assert within(budget, 4, quasi_newton()) == wanted
    refusal(lambda: within(int(budget / 1.05), 4, quasi_newton()))


def test_a_request_that_no_step_had_is_told_as_such() -> None:
    step = training()
    with dtr_alloc.rematerialize("8MiB", clock="logical"):
        step()
        step()
        text = refusal(lambda: torch.ones(3 << 20))
    assert text.endswith("may need more: 2 optimizer steps seen so far needed less than this one")


def test_the_step_that_fails_counts_as_far_as_it_got() -> None:
    def run(budget: int | str) -> list[float]:
        step = training()
        with dtr_alloc.rematerialize(budget, clock="logical"):
            return [step(rows) for rows in (64, 64, 2048)]

    text = refusal(lambda: run("1600KiB"))
    found = re.search(
        r"; by a simulation of 2 optimizer steps seen so far and of this one until here, "
        r"([\d.]+MiB) do; a later request may need more$",
        text,
    )
    assert found, text
    assert parse_size(found[1]) > 1600 << 10


def test_a_scope_that_is_refused_inside_of_another_takes_nothing_from_it() -> None:
    measured(2)
    step = training()
    with dtr_alloc.rematerialize("500KiB"):
        with pytest.raises(RuntimeError, match="do not nest"), dtr_alloc.measure():
            pass
        text = refusal(step)
        del step
    advised(text)


def test_a_scope_without_steps_takes_nothing_from_the_one_before_it() -> None:
    measured(2)
    with dtr_alloc.rematerialize("64MiB"):
        torch.ones(1000).exp()
    advised(refusal(lambda: within("500KiB")))


def test_what_several_threads_need_is_not_foretold() -> None:
    measured(2)
    with dtr_alloc.rematerialize("500KiB"):
        in_threads(lambda: torch.ones(1))
        text = refusal(lambda: training()())
    assert "what several threads need is not foretold" in text


def test_sizes_below_a_mib_are_told_in_kib() -> None:
    with dtr_alloc.rematerialize("4KiB"):
        text = report(lambda: torch.ones(1280))
    assert text.startswith("dtr_alloc is out of memory. Raise the budget to at least 5.00 KiB;")
    assert "asked: 5.00 KiB\n  budget: 4.00 KiB, of which 4.00 KiB are free\n" in text


def test_what_is_free_and_does_not_do_is_told_with_the_block_that_was_asked() -> None:
    with dtr_alloc.rematerialize((64 << 10) - 100):
        kept = torch.zeros(56 << 10, dtype=torch.uint8)
        kept.numpy()
        text = report(lambda: torch.empty((8 << 10) - 120, dtype=torch.uint8))
    assert "asked: 7.89 KiB, in a block of 8.00 KiB\n" in text
    assert "of which 7.90 KiB are free\n" in text
    assert "Raise the budget to at least 64.41 KiB" in text


def seen() -> tuple[list[Call | Mutate], list[str]]:
    (before,) = advice._before.values()
    trace = trace_of(before.records.tolist(), before.operators)
    items = trace.instructions
    # In what order a write makes several constant, and several are let go, is nobody's rule.
    calls = [replace(item, time=0) for item in items if isinstance(item, (Call, Mutate))]
    return calls, sorted(str(item) for item in items if not isinstance(item, (Call, Mutate)))


def carried_state() -> Step:
    torch.manual_seed(0)
    rnn, x = nn.LSTM(128, 128), torch.randn(5, 8, 128)
    state: list[Tensor] = [torch.zeros(1, 8, 128), torch.zeros(1, 8, 128)]

    def loss_of(_: int) -> Tensor:
        y, state[:] = rnn(x, [part.detach() for part in state])
        return y.square().mean()  # type: ignore[no-any-return]

    return descending(rnn, loss_of)


def handed_out() -> Step:
    torch.manual_seed(0)
    model, x = nn.Linear(256, 256), torch.randn(64, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> float:
        optimizer.zero_grad()
        y = model(x)
        z = y.exp()
        z.detach().numpy()
        (z.relu() * y.detach().to_sparse().to_dense()).mean().backward()
        optimizer.step()
        return 0.0

    return step


def nested_tensors() -> Step:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
    parts = [torch.randn(rows, 64) for rows in (20, 40)]

    def loss_of(_: int) -> Tensor:
        out = model(torch.nested.nested_tensor(parts, layout=torch.strided))
        return torch.stack([part.square().mean() for part in out.unbind()]).sum()

    return descending(model, loss_of)


def kept_loss() -> Step:
    """A loss whose storage has a number for each element, kept while its weights are written."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 64), nn.Linear(64, 256))
    x, y = torch.randn(128, 64), torch.randn(128, 256)
    return descending(model, lambda _: nn.functional.mse_loss(model(x), y))


def adversaries() -> Step:
    torch.manual_seed(0)
    makes, judges = nn.Linear(64, 64), nn.Linear(64, 1)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (makes, judges)]

    def step() -> float:
        fakes = makes(torch.randn(128, 64)).tanh()
        losses = -judges(fakes), judges(fakes.detach())
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            torch.autograd.backward(loss.mean())
            optimizer.step()
        return 0.0

    return step


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    "make", [training, carried_state, handed_out, nested_tensors, kept_loss, adversaries]
)
def test_what_is_measured_is_recorded_as_in_a_scope_without_a_budget(
    make: Callable[[], Step],
) -> None:
    measured(2, make())
    by_measure = seen()
    step = make()
    with dtr_alloc.rematerialize(None):
        step()
        step()
    assert by_measure == seen()


def test_a_first_operator_that_needs_more_than_all_before_it_is_of_another_program() -> None:
    within("64MiB")
    with dtr_alloc.rematerialize("1MiB"):
        text = refusal(lambda: torch.ones(1 << 22))
    assert "at least 16.00 MiB" in text
    assert FIRST_STEP in text


def test_a_program_whose_first_operator_is_refused_is_advised_by_the_one_before_it() -> None:
    def program() -> None:
        x = torch.ones(1 << 20, requires_grad=True)
        optimizer = torch.optim.SGD([x], lr=0.1)
        x.exp().sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    with dtr_alloc.measure():
        program()
    with dtr_alloc.rematerialize("1MiB"):
        text = refusal(program)
    assert "at least 4.00 MiB" in text
    (advised,) = re.findall(r"if this is the same program, ([\d.]+MiB) do", text)
    with dtr_alloc.rematerialize(advised):
        program()
