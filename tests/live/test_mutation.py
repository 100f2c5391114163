"""Debug mode: writes that nobody declared are errors that name what made the tensor, and declared
ones are none."""

import multiprocessing.shared_memory
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dtr_alloc
from dtr_alloc import _core
from tests.support.exactness import alike, assert_exact, bits, grad_of, run, same
from tests.support.instruments import instrumented
from tests.support.threads import in_threads


@torch.library.custom_op("dtr_debug::double_in_secret", mutates_args=())
def double_in_secret(x: Tensor) -> Tensor:
    x.numpy().__imul__(2)
    return x.sum().clone()


@torch.library.custom_op("dtr_debug::double", mutates_args={"x"})
def double(x: Tensor) -> Tensor:
    x.numpy().__imul__(2)
    return x.sum().clone()


def test_an_operator_that_writes_an_argument_without_saying_so() -> None:
    with dtr_alloc.rematerialize("4MiB", debug=True):
        x = torch.ones(64, 64).exp()
        with pytest.raises(RuntimeError) as caught:
            double_in_secret(x)
        text = str(caught.value)
        assert "dtr_debug::double_in_secret wrote a tensor" in text
        assert "the result of aten::exp, float [64, 64]" in text
        assert "mutates_args" in text
        assert float(double(x)) == pytest.approx(4 * 64 * 64 * float(torch.ones(1).exp()))


@pytest.mark.parametrize(
    ("shape", "kind", "place"),
    [((64, 64), np.float32, (3, 4)), ((1003,), np.uint8, -1)],
    ids=["a number", "the last byte, which no word holds"],
)
def test_an_array_that_is_changed_after_recipes_read_it(shape: Any, kind: Any, place: Any) -> None:
    with dtr_alloc.rematerialize("4MiB", debug=True):
        array = np.ones(shape, kind)
        made = torch.from_numpy(array).exp()
        array[place] = 7
        dtr_alloc.evict(made)
        with pytest.raises(RuntimeError, match="aten::exp reads a tensor that was written") as text:
            made.sum()
        assert "made by no operator of the scope" in str(text.value)
        assert "torch counted no write" in str(text.value)
        array[place] = 1  # As it was: everything can be recomputed again.
        assert same(bits(made), bits(torch.ones(shape).exp()))


def test_the_next_operator_that_reads_a_changed_array_tells_at_once() -> None:
    with dtr_alloc.rematerialize("4MiB", debug=True):
        array = np.ones((64, 64), dtype=np.float32)
        x = torch.from_numpy(array)
        made = x.exp()
        array += 1
        with pytest.raises(RuntimeError, match="aten::sin reads a tensor that was written"):
            x.sin()
        del made
        assert same(bits(x.sin()), bits((torch.ones(64, 64) * 2).sin()))


def test_constants_of_inference_mode_which_counts_no_writes() -> None:
    with torch.inference_mode(), dtr_alloc.rematerialize("4MiB", debug=True):
        array = np.ones((64, 64), dtype=np.float32)
        made = torch.from_numpy(array).exp()
        assert dtr_alloc.evict(made)
        assert same(bits(made), bits(torch.ones(64, 64).exp()))
        array += 1
        assert dtr_alloc.evict(made)
        with pytest.raises(RuntimeError, match="torch counted no write"):
            made.sum()
        del made


def test_a_value_that_recipes_read_may_be_pinned() -> None:
    with dtr_alloc.rematerialize("4MiB", debug=True):
        x = torch.ones(64, 64).exp()
        made = x.exp()
        dtr_alloc.pin(x)
        assert dtr_alloc.evict(made)
        assert same(bits(made), bits(torch.ones(64, 64).exp().exp()))


@pytest.mark.parametrize("debug", [False, True])
def test_a_constant_that_an_operator_of_another_thread_writes(debug: bool) -> None:
    """Which torch tells from 2.13 on: its kernel takes the address."""
    with dtr_alloc.rematerialize("4MiB", debug=debug):
        weight = torch.ones(1, 100)
        product = weight.expand(40, 100) * torch.ones(40, 100)
        in_threads(lambda: weight.mul_(2), join=False)
        dtr_alloc.evict(product)
        if _core.sees_raw_access:
            assert product.sum() == 4000
        elif debug:
            told = "torch counted the write, so an operator made it"
            with pytest.raises(RuntimeError, match=told):
                product.sum()
        del product  # Else the scope could not bring it back at its end, and would raise likewise.


def test_a_gradient_written_through_an_array_names_what_made_it() -> None:
    with dtr_alloc.rematerialize("4MiB", debug=True):
        x = torch.ones(64, 64, requires_grad=True)
        (x.exp() * 2).sum().backward()  # type: ignore[no-untyped-call]
        norm = grad_of(x).square()
        view = torch.utils.dlpack.from_dlpack(grad_of(x))
        array = view.numpy()
        later = view.sin()
        array[0] = 0
        dtr_alloc.evict(later)
        with pytest.raises(RuntimeError, match="reads a tensor that was written"):
            later.sum()
        del later
        assert same(bits(norm), bits((torch.ones(64, 64).exp() * 2).square()))


def test_memory_that_another_process_may_write() -> None:
    shared = multiprocessing.shared_memory.SharedMemory(create=True, size=4096)
    try:
        with dtr_alloc.rematerialize("4MiB", debug=True):
            x = torch.frombuffer(shared.buf, dtype=torch.float32)
            x.fill_(1)
            made = x.exp()
            other = multiprocessing.shared_memory.SharedMemory(shared.name)
            assert other.buf is not None
            other.buf[0:4] = b"\0\0\0\0"
            other.close()
            dtr_alloc.evict(made)
            with pytest.raises(RuntimeError, match="another process"):
                made.sum()
            del x, made
    finally:
        shared.close()
        shared.unlink()


def training() -> Iterator[Tensor]:
    model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Dropout(0.3), nn.Linear(64, 32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(3):
        loss = model(torch.randn(64, 32)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss
    yield from (*model.parameters(), *model.buffers())


def views_and_writes() -> Iterator[Tensor]:
    array = np.ones((64, 64), dtype=np.float32)
    x = torch.from_numpy(array)
    early = x.exp()
    x[:, 3].mul_(2)
    x.t_()
    late = x.exp()
    batch = np.ones((64, 64), dtype=np.float32)
    for step in range(3):  # A buffer that is filled anew, and nothing lives on that read it.
        batch[:] = step
        yield (torch.from_numpy(batch) * 2).sum()
    yield from (early, late, x)


@pytest.mark.parametrize("program", [training, views_and_writes])
def test_declared_writes_are_no_errors(program: Callable[[], Iterator[Tensor]]) -> None:
    expected = run(program)
    with instrumented(evict_always=True), dtr_alloc.rematerialize(None, debug=True):
        assert alike(run(program), expected)
    assert_exact(program)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_recurrent_layers_train_in_debug_mode(kind: type[nn.LSTM], bidirectional: bool) -> None:
    def program() -> Iterator[Tensor]:
        layer = kind(32, 32, num_layers=2, bidirectional=bidirectional)
        made, _ = layer(torch.randn(10, 4, 32))
        loss = made.square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        yield loss
        yield from (p.grad for p in layer.parameters() if p.grad is not None)

    expected = run(program)
    with dtr_alloc.rematerialize("64MiB", debug=True):
        assert alike(run(program), expected)
    assert_exact(program, modes=["recorded", "evict_always"])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_debug_mode_takes_nested_tensors_which_tell_no_sizes() -> None:
    def program() -> Iterator[Tensor]:
        layer = torch.nn.Linear(32, 32)
        rows = [torch.randn(rows, 32) for rows in (20, 50, 35)]
        padded = layer(torch.nested.nested_tensor(rows)).to_padded_tensor(0.0)
        padded.square().mean().backward()
        yield grad_of(layer.weight)

    expected = run(program)
    with dtr_alloc.rematerialize("64MiB", debug=True):
        assert alike(run(program), expected)
