"""Models of the transformers library, unedited, train and generate exactly under budgets."""

from dataclasses import replace

import pytest

pytest.importorskip("transformers", reason="the transformers library is not installed")

import torch
from hugging_face import WAYS, failures, generations, trainings
from models.hugging_face import HUGGING_FACE, Architecture

from dtr_alloc.demo import Comparison, Plan, Row, compare

ONCE = Plan((0.7, 0.4), steps=3, rounds=1)
GENERATORS = [name for name, architecture in HUGGING_FACE.items() if architecture.generates]


def shallow(name: str, layers: int, samples: int) -> Architecture:
    return replace(HUGGING_FACE[name], layers=layers, samples=samples)


# Routed experts, keys and values shared by heads, dropout; batch statistics and in-place sums.
@pytest.mark.parametrize(
    ("name", "layers", "checkpoint"), [("mixtral", 3, False), ("gpt2", 6, True)]
)
def test_a_shallow_model_is_exact_in_a_budget(name: str, layers: int, checkpoint: bool) -> None:
    make = shallow(name, layers, 16)
    result = compare(name, lambda: make.job(name, checkpoint=checkpoint), Plan((0.7,), 3, 1))
    assert result.failures() == []
    assert [row.identical for row in result.rows] == [True, True]
    assert result.rows[1].rematerializations > 0


def test_a_shallow_model_generates_bit_for_bit_with_its_cache() -> None:
    result = generations("gpt2", "sampled", Plan((0.9,), steps=1, rounds=1))
    assert failures([], [result]) == []
    assert result.rows[1].evictions > 0
    assert result.rows[1].peak_bytes <= int(0.9 * result.peak_bytes)


def test_a_training_that_is_refused_is_a_failure_and_a_generation_is_none() -> None:
    refused = Row(0.4, 4 << 20, feasible=False, error="budget 4.00 MiB: too small")
    comparison = Comparison("gpt2", 10 << 20, 0, 0, steps=3, rows=[refused])
    assert failures([comparison], []) == ["gpt2 at 40%: refused"]
    assert failures([], [comparison]) == []


def test_there_are_nine_and_their_batches_come_from_the_generator_alone() -> None:
    assert len(HUGGING_FACE) == 9
    for architecture in HUGGING_FACE.values():
        first, again, other = (
            architecture.batch(2, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
        )
        assert all(torch.equal(first[name], again[name]) for name in first)
        assert not any(torch.equal(first[name], other[name]) for name in first)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(HUGGING_FACE))
def test_every_model_trains_bit_for_bit_at_both_budgets(name: str) -> None:
    trained = list(trainings(name, ONCE))
    assert failures(trained, []) == []
    assert len(trained) == 1 + HUGGING_FACE[name].checkpoints
    for comparison in trained:
        assert [row.identical for row in comparison.rows] == [True] * 3


@pytest.mark.slow
@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("name", GENERATORS)
def test_every_generation_is_exact_or_refused(name: str, way: str) -> None:
    result = generations(name, way, Plan((0.9, 0.7, 0.4), steps=1, rounds=1))
    assert failures([], [result]) == []
    assert result.rows[0].identical
