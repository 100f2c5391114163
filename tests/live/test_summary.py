"""What a session tells of a budget: which one to try, in figures for trackers, and in the log."""

import logging
import math
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

import dtr_alloc
from dtr_alloc.pool.size import parse_size
from dtr_alloc.runtime.scope.steps import Steps
from dtr_alloc.runtime.scope.summary import rows

WIDTH, LAYERS = 128, 12


def training(steps: int = 2, optimizes: bool = True) -> Callable[[], list[Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(*[m for _ in range(LAYERS) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh())])
    optimizer = torch.optim.AdamW(model.parameters())

    def run() -> list[Tensor]:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(4096, WIDTH)).square().mean().backward()
            if optimizes:
                optimizer.step()
        return [parameter.detach() for parameter in model.parameters()]

    return run


def advised(session: dtr_alloc.Session) -> str:
    found = re.search(r'rematerialize\("(.*)"\): enough for what was', session.summary())
    assert found is not None
    return found[1]


def row(session: dtr_alloc.Session, name: str) -> str:
    (line,) = (line for line in session.summary().splitlines() if line.strip().startswith(name))
    return line


def test_measured_steps_tell_what_must_stay_and_a_budget_that_is_enough() -> None:
    train, again = training(), training()
    with dtr_alloc.measure() as session:
        expected = train()
    parameters = sum(p.nbytes for p in expected)
    stays = parse_size(" ".join(row(session, "must stay").split()[2:4]))
    assert 3 * parameters <= stays < 3.5 * parameters  # Gradients, and twice as much of AdamW.
    activations = parse_size(" ".join(row(session, "activations").split()[1:3]))
    assert abs(stays + activations - session.stats().peak_bytes) < 20_000  # Of what is rounded.
    budget = parse_size(advised(session))
    assert stays + 0.6 * activations <= budget < session.stats().peak_bytes
    with dtr_alloc.rematerialize(budget) as within:
        assert all(map(torch.equal, again(), expected))
    assert within.stats().evictions > 0


def test_a_scope_of_measure_does_not_say_that_nothing_can_be_recomputed() -> None:
    with dtr_alloc.measure() as session:
        training()()
    assert row(session, "operators").endswith("not recorded by measure()")
    for absent in ("can be recomputed", "evictable", "operators run again"):
        assert absent not in session.summary()


def test_without_a_step_of_an_optimizer_what_is_left_must_stay() -> None:
    with dtr_alloc.measure() as session:
        training(optimizes=False)()
        assert "no step of an optimizer was seen" in row(session, "must stay")
        assert parse_size(advised(session)) < session.stats().peak_bytes


def test_where_no_smaller_budget_is_enough_none_is_named() -> None:
    with dtr_alloc.measure() as session:
        torch.ones(1 << 18)
    assert "no budget below the peak is enough" in row(session, "try")
    with dtr_alloc.measure() as session:
        pass
    assert "a smaller batch: all of the peak must stay" in row(session, "try")


def test_where_nothing_can_be_simulated_six_tenths_are_tried() -> None:
    with dtr_alloc.measure() as session:
        training()()
    unknown = Mock(enough=Mock(return_value=None))
    steps = Steps()
    s = replace(session.stats(), peak_bytes=100 << 20, live_bytes=10 << 20)
    told = {name: rest for name, *rest in rows(s, session._core, steps, unknown)}
    assert told["try"][0] == "64MiB"
    assert told["try"][1].endswith("six tenths of the activations, and what must stay")


def test_metrics_are_a_flat_dict_of_floats_of_all_figures() -> None:
    with dtr_alloc.rematerialize("12MiB") as session:
        training()()
    metrics, stats = session.metrics(), asdict(session.stats())
    assert {type(value) for value in metrics.values()} == {float}
    assert all(map(math.isfinite, metrics.values()))
    derived = {"dtr_alloc/steps": 2.0, "dtr_alloc/recompute_share": 0.0}
    assert metrics.keys() == {f"dtr_alloc/{name}" for name in stats} | derived.keys()
    assert all(metrics[f"dtr_alloc/{name}"] == value for name, value in stats.items())
    assert metrics["dtr_alloc/steps"] == 2
    assert 0 < metrics["dtr_alloc/recompute_share"] < 1
    share = f"{100 * metrics['dtr_alloc/recompute_share']:.1f} %"
    assert row(session, "recomputing").endswith(share)


def test_what_is_not_known_is_no_metric() -> None:
    with dtr_alloc.measure() as session:
        assert "dtr_alloc/budget_bytes" not in session.metrics()


def test_the_log_tells_once_that_the_budget_is_reached(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dtr_alloc")
    with dtr_alloc.rematerialize("12MiB"):
        training()()
        (told,) = caplog.messages
    assert re.fullmatch(r"the budget of 12 MiB is reached, in step 1: .* evicted so far", told)
    assert caplog.messages == [told]


def test_without_a_step_the_scopes_end_tells_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dtr_alloc")
    with dtr_alloc.rematerialize("12MiB"):
        training(optimizes=False)()
        assert caplog.messages == []
    assert len(caplog.messages) == 1


def test_a_budget_that_is_not_reached_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dtr_alloc")
    with dtr_alloc.rematerialize("1GiB"):
        training()()
    assert caplog.messages == []
