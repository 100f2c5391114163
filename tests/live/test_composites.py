"""Composite operators whose kernels read through pointers, above the key at which a scope sees
operators: with evicted arguments they give what eager gives, twice, and so do gradients."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import rnn

import dtr_alloc
from tests.support.exactness import MODES, alike, assert_exact, comes_back, grad_of, run, scope

PIECES = 8300  # Their 64-bit indices take more than 64 KiB, so that they can be evicted.

# They warn of what they do to the numbers, that they will go, and of an output's size.
quantizing = pytest.mark.filterwarnings(
    "ignore:FOUND weight out of range:UserWarning",
    "ignore:fbgemm_.* is deprecated:UserWarning",
    "ignore:An output with one or more elements was resized:UserWarning",
)


def gone(*tensors: Tensor) -> None:
    """Evicts them. In eager nothing happens."""
    for tensor in tensors:
        dtr_alloc.evict(tensor)


def steps(batch_sizes: Tensor, data: Tensor) -> rnn.PackedSequence:
    gone(batch_sizes, data)
    return rnn.PackedSequence(data, batch_sizes)


def tensor_split() -> Iterator[Tensor]:
    x, points = torch.randn(2 * PIECES, requires_grad=True), torch.arange(PIECES)
    h = x.sin()
    for _ in range(2):
        gone(points, h)
        pieces = torch.tensor_split(h, points)
        assert len(pieces) == PIECES + 1
        yield from pieces[5:7]
        yield pieces[-1]
    gone(h)
    pieces[-1].square().sum().backward()  # type: ignore[no-untyped-call]
    yield grad_of(x)


def padded() -> Iterator[Tensor]:
    x = torch.randn(PIECES, 2, 3, requires_grad=True)
    packed = rnn.pack_padded_sequence(x.sin(), [PIECES, PIECES - 5])
    for _ in range(2):
        again, lengths = rnn.pad_packed_sequence(steps(packed.batch_sizes, packed.data))
        yield from (again, lengths)
    gone(packed.batch_sizes)
    again.square().mean().backward()  # type: ignore[no-untyped-call]
    yield grad_of(x)


def lstm_over_a_packed_sequence() -> Iterator[Tensor]:
    layer = nn.LSTM(3, 4)
    x = torch.randn(PIECES, 2, 3, requires_grad=True)
    packed = rnn.pack_padded_sequence(x.sin(), [PIECES, PIECES - 5])
    gone(packed.batch_sizes)
    made, (h, c) = layer(packed)
    out, _ = rnn.pad_packed_sequence(made)
    gone(packed.batch_sizes, made.data)
    out.mean().backward()  # type: ignore[no-untyped-call]
    yield from (out, h, c, grad_of(x), *(p.grad for p in layer.parameters()))


def ctc_loss(kind: torch.dtype) -> Iterator[Tensor]:
    x = torch.randn(6, PIECES, 4, requires_grad=True)
    words = torch.randint(1, 4, (PIECES, 2))
    lengths = torch.full((PIECES,), 6, dtype=kind), torch.full((PIECES,), 2, dtype=kind)
    for _ in range(2):
        gone(*lengths, words)
        loss = nn.functional.ctc_loss(x.log_softmax(2), words, *lengths)
        yield loss
    gone(*lengths, words)
    loss.backward()  # type: ignore[no-untyped-call]
    yield grad_of(x)


def quantization_parameters() -> Iterator[Tensor]:
    x = torch.randn(64, 64).sin()
    for tensor in (x, x.t()):
        gone(x)
        least, most = torch.choose_qparams_optimized(tensor, 4096, 200, 0.16, 8)
        yield from (torch.as_tensor(least), torch.as_tensor(most))


def packed_halves() -> Iterator[Tensor]:
    weight, x, bias = torch.randn(32, 64).sin(), torch.randn(5, 64).sin(), torch.randn(32).sin()
    for _ in range(2):
        gone(weight)
        packed = torch.fbgemm_pack_gemm_matrix_fp16(weight)
        gone(x, bias)
        yield torch.fbgemm_linear_fp16_weight_fp32_activation(x, packed, bias)
        gone(x, bias)
        yield torch.fbgemm_linear_fp16_weight(x, packed, bias)


def packed_integers() -> Iterator[Tensor]:
    weight, x = torch.randn(300, 300).sin(), torch.randn(5, 300).sin()
    bias = torch.randn(300).sin()
    gone(weight)
    quantized, offsets, scale, zero = torch.fbgemm_linear_quantize_weight(weight)
    quantized = quantized.clone()  # 90,000 bytes, which can be evicted.
    gone(quantized)
    packed = torch.fbgemm_pack_quantized_matrix(quantized)
    for _ in range(2):
        gone(x, bias, quantized, offsets)
        yield torch.fbgemm_linear_int8_weight_fp32_activation(
            x, quantized, packed, offsets, scale, zero, bias
        )
    yield from (quantized, offsets)


def saturated() -> Iterator[Tensor]:
    weight = torch.randn(64, 64) * 1e5 * 2
    gone(weight)
    read = [weight.sin(), weight * 2, weight * 3]
    gone(weight)
    yield torch._saturate_weight_to_fp16(weight)
    gone(*read)
    yield from (weight, *read, weight.cos())


def sobol() -> Iterator[Tensor]:
    for scramble in (False, True):
        engine = torch.quasirandom.SobolEngine(400, scramble=scramble, seed=0)  # type: ignore[no-untyped-call]
        for _ in range(2):
            gone(engine.sobolstate, engine.quasi)
            yield engine.draw(5)
            gone(engine.sobolstate, engine.quasi)
            engine.fast_forward(3)  # type: ignore[no-untyped-call]
        yield from (engine.sobolstate, engine.quasi)


def kron_into() -> Iterator[Tensor]:
    x, out = torch.randn(10, 10).sin(), torch.randn(50, 50).sin()  # It is resized.
    read = [out * 2, out * 3]
    gone(x, out)
    torch.kron(x, x, out=out)
    gone(x, *read)
    yield from (out, x, *read)


def set_over() -> Iterator[Tensor]:
    x, source = torch.randn(1000).sin(), torch.randn(1000).sin()
    read = [x * 2, source * 3]
    gone(x, source)
    x.set_(source, 10, [20, 20], [20, 1])  # type: ignore[call-overload]
    gone(source, *read)
    source.mul_(2)
    yield from (x, source, *read)


PROGRAMS: dict[str, Callable[[], Iterator[Tensor]]] = {
    "tensor_split": tensor_split,
    "pad_packed_sequence": padded,
    "LSTM": lstm_over_a_packed_sequence,
    "ctc_loss": lambda: ctc_loss(torch.int64),
    "ctc_loss of 32-bit lengths": lambda: ctc_loss(torch.int32),
    "choose_qparams_optimized": quantization_parameters,
    "fbgemm_pack_gemm_matrix_fp16": packed_halves,
    "fbgemm_linear_quantize_weight": packed_integers,
    "_sobol_engine_draw": sobol,
    "kron.out": kron_into,
    "set_": set_over,
    "_saturate_weight_to_fp16 of an activation": saturated,
}


@quantizing
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_composite_that_reads_pointers_reads_evicted_tensors(name: str) -> None:
    # Of thousands of steps one mode does: each takes seconds.
    assert_exact(PROGRAMS[name], modes=["evict_always"] if name == "LSTM" else MODES)


@quantizing
def test_what_a_composite_writes_through_a_pointer_counts_as_written() -> None:
    """The tensor is a constant, which recipes have read."""

    def program(weight: Tensor) -> list[Tensor]:
        read = [weight.sin(), weight * 2, weight * 3]
        torch._saturate_weight_to_fp16(weight)
        gone(*read)
        return [weight, *read, weight.cos()]

    weight = torch.randn(64, 64) * 1e5
    expected = program(weight.clone())
    with scope(None):
        assert all(map(torch.equal, program(weight), expected))


def test_what_composites_only_read_can_be_evicted_again() -> None:
    with dtr_alloc.rematerialize(None) as session:
        x, points = torch.randn(2 * PIECES).sin(), torch.arange(PIECES)
        for _ in range(2):
            assert dtr_alloc.evict(points)
            pieces = torch.tensor_split(x, points)
        assert dtr_alloc.evict(points)
        assert dtr_alloc.evict(x)
        del pieces
        assert dtr_alloc.evict(torch.randn(64, 64).sin())
        weight = torch.randn(32, 64).sin()
        torch.choose_qparams_optimized(weight, 2048, 200, 0.16, 8)
        assert dtr_alloc.evict(weight)
        session.check()


def test_what_a_composite_calls_is_recorded() -> None:
    with dtr_alloc.rematerialize(None):
        x = torch.randn(PIECES, 2, 3).sin()
        packed = rnn.pack_padded_sequence(x, [PIECES, PIECES - 5])
        again, _ = rnn.pad_packed_sequence(packed)
        assert comes_back(again)


def test_a_budget_that_evicts_between_the_lines_lets_ragged_pieces_be_split() -> None:
    def program() -> list[Tensor]:
        offsets = torch.full((PIECES,), 2).cumsum(0)
        x = torch.randn(20_000).sin()
        y = [x.cos() for _ in range(4)]
        z = torch.stack(y).sum(0)
        return [*torch.tensor_split(x, offsets)[:3], z]

    expected = run(program)
    for budget in range(700 << 10, 1000 << 10, 50 << 10):
        with dtr_alloc.rematerialize(budget), torch.no_grad():
            assert alike(run(program), expected)


def test_too_small_a_budget_is_told_as_of_any_operator() -> None:
    with dtr_alloc.rematerialize("300KiB"):
        points = torch.arange(3 * PIECES)
        assert dtr_alloc.evict(points)
        fixed = torch.ones(40 << 10).numpy()
        with pytest.raises(torch.OutOfMemoryError, match="budget"):
            torch.tensor_split(torch.ones(10), points)
        del fixed
        assert len(torch.tensor_split(torch.ones(10), points)) == 3 * PIECES + 1
