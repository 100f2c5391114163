"""How perf/peers/restored.py finds an answer: of tools that spoil one thing, made for this."""

import warnings
from collections.abc import Callable

import numpy as np
import pytest
from blocks.answers import Run, answer


def program(spoil: Callable[[Run], None], question_matters: bool = True) -> Callable[..., Run]:
    """Trains without a library; the tool spoils what came of it."""

    def train(question: str, with_tool: bool) -> Run:
        asked = np.full(1, float(question != "" and question_matters))
        run = Run([asked], [np.ones(4) + asked], [np.zeros(1)], [np.ones(1)], np.full(2, 0.5), 6)
        if question == "write_later" and not with_tool:
            raise RuntimeError("written")
        if with_tool:
            spoil(run)
        return run

    return train


def spoil(part: str, by: float) -> Callable[[Run], None]:
    def spoiled(run: Run) -> None:
        setattr(run, part, [one + by for one in getattr(run, part)])

    return spoiled


def warn(run: Run) -> None:
    warnings.warn("not restored", stacklevel=1)


def fail(run: Run) -> None:
    raise ValueError("cannot run again")


@pytest.mark.parametrize("part", ["losses", "gradients", "generators", "buffers"])
def test_another_value_anywhere_is_wrong_and_is_named(part: str) -> None:
    found = answer(program(spoil(part, 1.0)), "random")
    assert (found["answer"], found["differs"]) == ("wrong", [part])


def test_the_last_digits_are_told_from_another_value() -> None:
    assert answer(program(spoil("gradients", 1e-7)), "random")["answer"] == "rounded"
    assert answer(program(lambda run: None), "random")["answer"] == "restored"


@pytest.mark.parametrize(("times", "word"), [(1.0, "once"), (1.9, "twice"), (2.5, "wrong")])
def test_statistics_tell_how_often_a_batch_was_taken(times: float, word: str) -> None:
    def take(run: Run) -> None:
        assert run.mean is not None
        run.mean = times * run.mean

    assert answer(program(take), "statistics")["answer"] == word


def test_an_error_and_a_warning_of_the_tool_are_told() -> None:
    found = answer(program(fail), "buffer")
    assert found == {"answer": "error", "error": "ValueError: cannot run again"}
    assert answer(program(warn), "buffer")["warnings"] == ["not restored"]


def test_a_write_after_the_block_is_compared_with_a_run_that_has_none() -> None:
    found = answer(program(lambda run: None), "write_later")
    assert (found["answer"], found["differs"]) == ("wrong", ["losses", "gradients"])


def test_a_question_that_changes_nothing_is_refused() -> None:
    with pytest.raises(AssertionError, match="autocast: changes nothing"):
        answer(program(lambda run: None, question_matters=False), "autocast")
