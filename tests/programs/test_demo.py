"""The demo: its models keep what they promise, and the comparison finds what it has to find."""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import dtr_alloc
from dtr_alloc.__main__ import main
from dtr_alloc.demo import MODELS, Comparison, Job, Plan, Row, compare, draw, table, write_json
from dtr_alloc.demo.models import gpt, random_tree
from dtr_alloc.demo.train import Training, train

MIB = 1 << 20

tiny_gpt = partial(gpt, layers=3, width=32, heads=2, length=16, texts=4, vocabulary=32)


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    yield
    torch.set_num_threads(1)


def comparison(*rows: Row) -> Comparison:
    """A model with a peak of 40 MiB, of which 30 are activations."""
    line = np.linspace(0, 40 * MIB, 100).astype(np.int64)
    return Comparison(
        "gpt", 40 * MIB, 4 * MIB, 6 * MIB, steps=4, step_ms=80.0, rows=list(rows), timeline=line
    )


def kept_row() -> Row:
    return Row(
        0.5, 25 * MIB, peak_bytes=25 * MIB, evictions=12, rematerializations=30, step_ms=88.0,
        slowdown=1.1, slowdown_plain=0.9, timeline=np.linspace(0, 25 * MIB, 130).astype(np.int64),
    )  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_model_trains_the_same_twice_from_one_seed(name: str) -> None:
    first = train(MODELS[name], Plan(steps=2), None)
    assert train(MODELS[name], Plan(steps=2), None).digests == first.digests
    assert train(MODELS[name], Plan(steps=2, seed=1), None).digests != first.digests


@pytest.mark.parametrize("name", MODELS)
def test_half_of_a_models_activations_are_enough_for_any_operator(name: str) -> None:
    torch.manual_seed(0)
    job = MODELS[name]()
    optimizer = job.optimizer(job.model.parameters())
    generator = torch.Generator().manual_seed(0)
    largest = []  # Of the operators before an optimizer's step.
    with dtr_alloc.rematerialize(None) as session:
        for _ in range(2):
            optimizer.zero_grad()
            job.loss(job.model, job.batch(generator)).backward()  # type: ignore[no-untyped-call]
            largest.append(session.stats().largest_operator_bytes)
            optimizer.step()
    gradients = sum(p.grad.nbytes for p in job.model.parameters() if p.grad is not None)
    kept = sum(t.nbytes for s in optimizer.state.values() for t in s.values() if torch.is_tensor(t))
    activations = session.stats().peak_bytes - gradients - kept
    assert 20e6 <= activations <= 100e6
    assert 0 < largest[0] < activations / 4
    assert activations > 2 * (gradients + kept)


def test_a_random_tree_holds_each_leaf_once_in_order() -> None:
    import random

    def leaves(tree: Any) -> list[int]:
        return [tree] if isinstance(tree, int) else leaves(tree[0]) + leaves(tree[1])

    tree = random_tree(0, 50, random.Random(0))
    assert leaves(tree) == list(range(50))
    assert tree != random_tree(0, 50, random.Random(1))


def test_a_budget_is_a_share_of_activations_plus_what_cannot_be_recomputed() -> None:
    assert comparison().activation_bytes == 30 * MIB
    assert comparison().budget_bytes(0.5) == 25 * MIB


def test_a_row_that_keeps_its_promises_has_no_failures() -> None:
    assert comparison(kept_row()).failures() == []
    assert kept_row().identical


def test_any_broken_promise_is_a_failure() -> None:
    different, above, idle = kept_row(), kept_row(), kept_row()
    different.differences = ["loss 1", "gradient a", "parameter a", "parameter b"]
    above.peak_bytes += 512
    idle.evictions = 0
    assert comparison(different, above, idle).failures() == [
        "gpt at 50%: differs from eager in loss 1, gradient a, parameter a and 1 more",
        "gpt at 50%: the pool's peak is 512 bytes above the budget",
        "gpt at 50%: nothing was evicted, so nothing was shown",
    ]


def test_a_pool_that_changes_results_without_evicting_is_a_failure() -> None:
    broken = comparison(kept_row())
    broken.differences = ["loss 0"]
    assert broken.failures() == ["gpt in the pool, nothing evicted: differs from eager in loss 0"]


def test_budgets_within_a_percent_of_each_other_are_rows_of_their_own() -> None:
    told: list[str] = []
    result = compare("gpt", tiny_gpt, Plan((0.504, 0.5), steps=2, rounds=1), told.append)
    assert [row.ratio for row in result.rows] == [None, 0.504, 0.5]
    assert all(row.step_ms > 0 for row in result.rows)
    assert told[-2:] == ["round 1, at 50.4%", "round 1, at 50%"]


def test_a_budget_above_the_peak_need_not_evict() -> None:
    row = kept_row()
    row.budget_bytes, row.evictions = 41 * MIB, 0
    assert comparison(row).failures() == []


def test_a_budget_below_the_floor_fails_from_one_half_up(monkeypatch: pytest.MonkeyPatch) -> None:
    real = dtr_alloc.rematerialize

    def refuse(budget: int | None, **options: Any) -> Any:
        if budget is not None:
            raise torch.OutOfMemoryError("too small. Raise the budget to at least 17.5 MiB")
        return real(None, **options)

    monkeypatch.setattr(dtr_alloc, "rematerialize", refuse)
    result = compare("gpt", tiny_gpt, Plan((0.5, 0.3), steps=2, rounds=1))
    assert [row.feasible for row in result.rows] == [True, False, False]
    assert [row.floor_bytes for row in result.rows[1:]] == [int(17.5 * MIB)] * 2
    assert not result.rows[1].identical
    assert result.failures() == ["gpt at 50%: below the floor, where half must be enough"]


def test_demo_json_holds_every_run_with_exact_bytes(tmp_path: Path) -> None:
    below = Row(0.3, 19 * MIB, feasible=False, floor_bytes=20 * MIB)
    write_json(tmp_path / "demo.json", [comparison(kept_row(), below)], Plan())
    document = json.loads((tmp_path / "demo.json").read_text())
    assert document["ok"] is True
    assert document["failures"] == []
    assert (document["steps"], document["rounds"], document["seed"]) == (4, 5, 0)
    (model,) = document["models"]
    assert model["model"] == "gpt"
    assert model["activation_bytes"] == 30 * MIB
    half, third = model["runs"]
    assert half["budget_bytes"] == half["peak_bytes"] == 25 * MIB
    assert half["identical"] is True
    assert (half["evictions"], half["rematerializations"]) == (12, 30)
    assert third["feasible"] is False
    assert third["floor_bytes"] == 20 * MIB
    assert half.keys() == third.keys()


@pytest.mark.parametrize("models", [1, 3, 5])
def test_the_picture_is_drawn_for_any_number_of_models(tmp_path: Path, models: int) -> None:
    below = Row(0.3, 19 * MIB, feasible=False, floor_bytes=20 * MIB)
    draw(tmp_path / "demo.png", [comparison(kept_row(), below)] * models)
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_has_three_rows_for_a_model_and_one_per_budget() -> None:
    assert table([comparison(kept_row()), comparison(kept_row(), kept_row())]).row_count == 9


def test_a_slowdown_is_time_over_either_eager_of_its_round(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    made = iter(range(1, 100))  # The machine is slower at each training.

    def watch(name: str) -> None:
        real = getattr(dtr_alloc, name)

        def scope(*arguments: Any, **options: Any) -> Any:
            opened.append(name)
            return real(*arguments, **options)

        monkeypatch.setattr(dtr_alloc, name, scope)

    def timed(*arguments: Any) -> Training:
        opened.clear()
        training = train(*arguments)
        way = opened[0] if opened else "eager"
        ns = {"eager": 10, "measure": 8, "rematerialize": 20}[way]
        wall = {"eager": 12, "measure": 10, "rematerialize": 30}[way]
        slower = 2 ** ((next(made) - 4) // 4)  # After the four trainings that are not timed.
        return replace(training, processor_ns=[1000, ns * slower], step_ns=[1000, wall * slower])

    watch("measure")
    watch("rematerialize")
    monkeypatch.setattr("dtr_alloc.demo.train.train", timed)
    result = compare("gpt", tiny_gpt, Plan((0.5,), steps=2, rounds=3))
    assert [row.slowdown for row in result.rows] == [2.5, 2.5]
    assert [row.slowdown_plain for row in result.rows] == [2.0, 2.0]
    assert [row.slowdown_wall for row in result.rows] == [3.0, 3.0]
    assert [row.slowdown_plain_wall for row in result.rows] == [2.5, 2.5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "alexnet"], "no model 'alexnet': choose from resnet, gpt"),
        (["--budget", "8 apples"], 'budget "8 apples" is not a size'),
        (["--budget", "0.5"], 'or a share as "50%"'),
        (["--budget", "-50%"], 'budget "-50%" is not a size'),
        (["--budget", "2GiB"], "'2GiB' is no share of the activation peak"),
        (["--steps", "1"], "1 is not in the range x>=2"),
        (["--threads", "0"], "0 is not in the range x>=1"),
    ],
)
def test_a_bad_option_is_refused_before_any_training(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, ["demo", *arguments])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (__file__, "is a file"),
        ("/proc/x", r"^Error: the folder /proc/x cannot be made: .*; give --out another$"),
        ("/proc", r"^Error: /proc/demo.json cannot be written: .*; name another file$"),
    ],
)
def test_a_folder_that_takes_no_results_is_refused_before_any_training(
    out: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dtr_alloc.demo.progress.compare_all", lambda *_: pytest.fail("trained"))
    result = CliRunner().invoke(main, ["demo", "--out", out])
    assert result.exit_code == (2 if out == __file__ else 1)
    assert re.search(message, result.output, re.M)


@pytest.mark.parametrize("broken", [False, True])
def test_the_command_exits_with_1_on_a_difference_and_writes_its_files_anyway(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, broken: bool
) -> None:
    made = 0

    def make() -> Job:
        nonlocal made
        made += 1
        job = tiny_gpt()
        if broken and made > 1:
            with torch.no_grad():
                next(job.model.parameters()).add_(1)
        return job

    models: dict[str, Callable[[], Job]] = {"gpt": make}
    monkeypatch.setattr("dtr_alloc.demo.MODELS", models)
    out = tmp_path / "new" / "folder"
    arguments = ["demo", "--steps", "2", "--rounds", "1", "--budget", "50%", "--out", str(out)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == int(broken), result.output
    assert ("differs from eager in" in " ".join(result.output.split())) is broken
    assert json.loads((out / "demo.json").read_text())["ok"] is not broken
    assert (out / "demo.png").exists()


def test_the_demo_runs_without_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("dtr_alloc.commands.programs.has_matplotlib", lambda: False)
    monkeypatch.setattr("dtr_alloc.demo.MODELS", {"gpt": tiny_gpt})
    arguments = ["demo", "--steps", "2", "--rounds", "1", "--budget", "50%"]
    result = CliRunner().invoke(main, [*arguments, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "no picture: pip install matplotlib" in " ".join(result.output.split())
    assert [file.name for file in tmp_path.iterdir()] == ["demo.json"]
