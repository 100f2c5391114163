"""A replay warns of nothing, whoever asks for it and whatever filters are set by then."""

import pickle
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dtr_alloc
from tests.support.exactness import bits, grad_of, same, scope


@contextmanager
def told() -> Iterator[list[str]]:
    """What is warned in the body, every time."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        texts: list[str] = []
        yield texts
        texts += [str(one.message) for one in seen]


def lone_variance(x: Tensor) -> Tensor:
    """Of one sample each, of which torch warns at each call."""
    return torch.nan_to_num(x[:, :1].var(1, keepdim=True)) + x


@torch.library.custom_op("dtr_silence::by_python", mutates_args=())
def by_python(x: Tensor) -> Tensor:
    warnings.warn("from Python", stacklevel=1)
    return x * 2


@torch.library.custom_op("dtr_silence::by_torch_in_python", mutates_args=())
def by_torch_in_python(x: Tensor) -> Tensor:
    x[:, :1].var(1)
    return x * 2


WARNING = [lone_variance, by_python, by_torch_in_python]


@pytest.mark.parametrize("warns", WARNING)
def test_a_program_is_warned_once_for_each_own_call(warns: Callable[[Tensor], Tensor]) -> None:
    with scope(None) as session, told() as texts:
        x = warns(torch.ones(1024, 64))
        assert dtr_alloc.evict(x)
        x.sum()
        assert session.stats().rematerializations > 0
    assert len(texts) == 1


@pytest.mark.parametrize("warns", WARNING)
def test_a_replay_is_no_error_where_warnings_are_errors(warns: Callable[[Tensor], Tensor]) -> None:
    with scope(None) as session:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            x = warns(torch.ones(1024, 64))
        dtr_alloc.evict(x)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # In front of all that were set before.
            x.sum()
        assert session.stats().rematerializations > 0


def test_a_backward_pass_does_not_raise_what_the_program_chose_to_ignore() -> None:
    def step() -> list[tuple[Any, ...]]:
        torch.manual_seed(0)
        layer = nn.Linear(64, 64)
        h = layer(torch.randn(128, 64)).square()
        for _ in range(4):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                spread = lone_variance(h)
            h = (h + spread).tanh() + h
        loss = h.mean()
        loss.backward()
        return [bits(loss), bits(grad_of(layer.weight))]

    expected = step()
    with scope(None, evict_always=True) as session:
        assert all(same(a, b) for a, b in zip(step(), expected, strict=True))
        assert session.stats().rematerializations > 0


def test_another_thread_is_warned_while_one_replays() -> None:
    @torch.library.custom_op("dtr_silence::waits", mutates_args=())
    def waits(x: Tensor) -> Tensor:
        if x.grad_fn is None and again:
            replaying.set()
            warned.wait()
        again.append(True)
        warnings.warn("of the replay", stacklevel=1)
        return x * 2

    again: list[bool] = []
    replaying, warned = threading.Event(), threading.Event()

    def warn() -> None:
        replaying.wait()
        warnings.warn("of the other thread", stacklevel=1)
        warned.set()

    with scope(None), told() as texts:
        x = waits(torch.ones(64, 64))
        dtr_alloc.evict(x)
        thread = threading.Thread(target=warn)
        thread.start()
        x.sum()
        thread.join()
    assert texts == ["of the replay", "of the other thread"]


def test_filters_of_a_process_that_has_replayed_can_be_sent_to_another() -> None:
    with scope(None), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = by_python(torch.ones(1024, 64))
        dtr_alloc.evict(x)
        x.sum()
        assert len(pickle.loads(pickle.dumps(warnings.filters))) == len(warnings.filters)
