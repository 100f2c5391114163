"""Operators of other libraries: what is recorded, what stays in memory, and why."""

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dtr_alloc
from tests.support import exactness
from tests.support.exactness import assert_exact_within, comes_back, scope
from tests.support.library_operators import (
    CACHE,
    KEPT,
    attention,
    double_,
    halves,
    plain,
    product,
    squared,
)
from tests.support.threads import in_threads

NAMES = ("dtr_lib::*", "dtr_lib_plain::*")


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    yield
    CACHE.clear()
    KEPT.clear()


assert_exact = functools.partial(exactness.assert_exact, recordable=NAMES)


def wide(rows: int = 64) -> Tensor:
    return torch.randn(rows, 64)


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        made, _ = attention(*self.qkv(x).chunk(3, -1))
        mixed: Tensor = x + self.out(torch.nn.functional.dropout(made, 0.1))
        return mixed


def train_attention() -> list[Tensor]:
    model = nn.Sequential(*[Attending() for _ in range(6)])
    loss = model(torch.randn(4, 64, 64)).square().mean()
    loss.backward()
    return [loss, *(p.grad for p in model.parameters() if p.grad is not None)]


def test_attention_by_custom_op_is_recomputed_bit_for_bit() -> None:
    assert_exact(train_attention, recordable=())
    assert "dtr_lib::" not in assert_exact_within(0.5, train_attention).summary()


def test_dropout_that_says_nothing_of_its_numbers_stays_or_draws_the_same_again() -> None:
    def program() -> list[Tensor]:
        x = wide().requires_grad_()
        hidden = x.exp()
        made = [plain.dropout(hidden.detach() * scale, 0.5) for scale in (1.0, 2.0)]
        loss = (hidden * made[0] * plain.dropout(made[1], 0.0)).sum()
        (grad,) = torch.autograd.grad(loss, x)
        return [*made, grad, torch.rand(3)]

    assert_exact(program, recordable=())
    assert_exact(program)
    with scope(None) as session:
        assert not dtr_alloc.evict(plain.dropout(wide(), 0.5))
    assert "dtr_lib_plain::dropout: has no pt2_compliant_tag" in session.summary()


def test_an_operator_that_drew_nothing_first_may_draw_later() -> None:
    def program() -> list[Tensor]:
        made = []
        for p in (0.0, 0.5, 0.0, 0.5):
            made.append(plain.dropout(wide(), p))
            dtr_alloc.evict(made[-1])
        return [*made, torch.rand(3)]

    assert_exact(program, recordable=("dtr_lib_plain::dropout",))


def test_a_replay_leaves_the_programs_numbers_alone() -> None:
    """A draw between the call and its replay is the program's: a state put back would repeat it."""
    with scope(None, recordable=NAMES):
        x = wide()
        for p in (0.0, 0.5):
            made = plain.dropout(x, p)
            torch.rand(5)
            state = torch.get_rng_state()
            assert comes_back(made)
            assert torch.equal(torch.get_rng_state(), state)


def test_a_custom_op_without_backward() -> None:
    def program() -> list[Tensor]:
        x = wide().requires_grad_()
        (grad,) = torch.autograd.grad((x.exp() * squared(x.detach().cos())).sum(), x)
        return [squared(wide().exp()), grad]

    assert_exact(program)
    with scope(None) as session:
        x = wide().requires_grad_()
        with pytest.raises(RuntimeError):
            squared(x.exp()).sum().backward()
        session.check()


def test_an_operator_that_writes_its_argument_is_not_run_again() -> None:
    def program() -> list[Tensor]:
        x = wide().exp()
        before = x.sin()
        double_(x)
        dtr_alloc.evict(before)
        return [before, x, x.cos()]

    assert_exact(program)


def test_a_view_of_an_argument_is_no_result_of_its_own() -> None:
    def program(view: Callable[[Tensor], Tensor]) -> list[Tensor]:
        x = wide().exp()
        seen = view(x)
        dtr_alloc.evict(x)
        x.add_(1)
        return [seen, x, seen.sin()]

    assert_exact(lambda: program(plain.view))
    assert_exact(lambda: program(plain.secret_view))
    with scope(None, recordable=NAMES) as session:
        x = wide()
        recorded = session.stats().recorded
        plain.view(x), plain.secret_view(x)
        assert session.stats().recorded == recorded


def test_a_list_of_results_stays_and_is_named() -> None:
    assert_exact(lambda: [*halves(wide().exp()), *[half.sin() for half in halves(wide())]])
    with scope(None) as session:
        assert not any(dtr_alloc.evict(half) for half in halves(wide()))
    assert "dtr_lib::halves: returns a list of tensors" in session.summary()


def test_an_operator_of_a_library_without_cpp() -> None:
    assert_exact(lambda: [plain.sin(wide().exp()).cos(), plain.sin(wide())])
    with scope(None, recordable=("dtr_lib_plain::sin",)):
        assert dtr_alloc.evict(plain.sin(wide()))
    with scope(None):
        assert not dtr_alloc.evict(plain.sin(wide()))


def test_a_generator_that_is_given_is_not_repeated() -> None:
    def program() -> list[Tensor]:
        generator = torch.Generator().manual_seed(5)
        return [plain.noisy(wide(), generator), plain.noisy(wide(), None), torch.rand(3)]

    assert_exact(program)


def test_memory_that_the_library_keeps_is_not_the_runtimes() -> None:
    def program() -> list[Tensor]:
        CACHE.clear()
        one = plain.cached(wide())
        dtr_alloc.evict(one)
        other = plain.cached(wide())
        return [one, other, one + other]

    assert_exact(program)
    CACHE.clear()
    with scope(None, recordable=NAMES) as session:
        plain.cached(wide())
    assert "dtr_lib_plain::cached: returns memory that it keeps" in session.summary()


def test_an_argument_of_a_replay_that_is_kept_says_so_when_it_is_read() -> None:
    with scope(None, recordable=NAMES):
        made = plain.keeps(wide().exp())
        kept = made.clone()
        assert dtr_alloc.evict(made)
        assert torch.equal(made, kept)
        assert len(KEPT) == 2
        assert torch.equal(KEPT[0].cos(), kept)
        with pytest.raises(RuntimeError, match="an operator that remembers an argument"):
            KEPT[1].data_ptr()
        KEPT.clear()


def test_an_operator_of_as_many_arguments_as_torch_allows_is_recorded() -> None:
    library: Any = torch.library.Library("dtr_lib_many", "DEF")  # type: ignore
    numbers = ", ".join(f"int n{n}" for n in range(63))
    library.define(f"sum(Tensor x, {numbers}) -> Tensor")
    library.impl("sum", lambda x, *numbers: x + sum(numbers), "CPU")
    with scope(None, recordable=("dtr_lib_many::*",)):
        assert comes_back(torch.ops.dtr_lib_many.sum(wide(), *range(63)))
    library._destroy()


def test_an_operator_that_talks_to_other_processes_stays() -> None:
    with scope(None, recordable=("dtr_lib_plain::*",)) as session:
        assert not dtr_alloc.evict(plain.all_reduce(wide()))
    assert "dtr_lib_plain::all_reduce: talks to other processes" in session.summary()


def test_a_replay_casts_as_autocast_did() -> None:
    """Torch's operators run below autocast, while a kernel in Python may call some above it."""

    def program() -> list[Tensor]:
        x, y = wide(), wide()
        with torch.autocast("cpu", torch.float16):
            made = product(x, y)
        dtr_alloc.evict(made)
        plain_again = product(x, y)
        dtr_alloc.evict(plain_again)
        with torch.autocast("cpu", torch.bfloat16):
            return [made.clone(), plain_again.clone(), product(x, y)]

    assert_exact(program)
    assert torch.get_autocast_dtype("cpu") is torch.bfloat16
    assert torch.is_autocast_cache_enabled()


@torch.library.custom_op("dtr_lib::mixed", mutates_args=())
def mixed(
    parts: list[Tensor],
    perhaps: list[Tensor | None],
    other: Tensor | None,
    scale: float,
    how: str,
    sizes: list[int],
    dtype: torch.dtype,
    *,
    flag: bool = False,
) -> tuple[Tensor, float, Tensor]:
    found = [part for part in (*parts, *perhaps, other) if part is not None]
    made = torch.stack(found).sum(0).to(dtype) * scale
    return made.reshape(sizes), scale, getattr(made, how)() if flag else made.new_zeros(())


def test_arguments_and_results_of_every_kind() -> None:
    def program() -> list[Tensor]:
        x, y = wide().exp(), wide().exp()
        shape = [32, 128]
        one, _, other = mixed([x, y], [None, x.sin()], None, 0.5, "cos", shape, torch.float64)
        two, _, same_type = mixed([y], [], x, 2.0, "sin", shape, torch.float32, flag=True)
        dtr_alloc.evict(x)
        return [one, other, two, same_type, mixed([x], [], y, 1, "cos", shape, torch.half)[0]]

    assert_exact(program)
    with scope(None):
        assert dtr_alloc.evict(mixed([wide()], [], None, 1, "", [4096], torch.float32)[0])


def test_a_rate_of_dropout_keeps_no_operator_from_being_recorded_that_draws_from_torch() -> None:
    @torch.library.custom_op("dtr_lib::dropped", mutates_args=())
    def dropped(x: Tensor, dropout: float) -> Tensor:
        return nn.functional.dropout(x, dropout)

    with scope(None):
        assert comes_back(dropped(torch.ones(64, 64), 0.5))


def test_threads_of_a_scope_share_the_operators_of_a_library() -> None:
    def chain(seed: int) -> Tensor:
        x = torch.linspace(seed, seed + 1, 64 * 64).reshape(64, 64)
        made = [attention(x, x, x)[0]]
        for _ in range(20):
            made.append(plain.sin(squared(made[-1]) + made[-1]))
        return torch.stack([tensor.sum() for tensor in made])

    expected = [chain(seed) for seed in range(2)]
    found: dict[int, Tensor] = {}
    with scope("256KiB", recordable=NAMES) as session:

        def work(seed: int) -> None:
            found[seed] = chain(seed)

        in_threads(*(functools.partial(work, seed) for seed in range(2)))
        assert session.stats().evictions > 0
    assert all(torch.equal(found[seed], expected[seed]) for seed in range(2))


def test_an_operator_around_triton_kernels_is_one_of_them() -> None:
    @torch.library.triton_op("dtr_lib::around_kernels", mutates_args=())
    def around_kernels(x: Tensor) -> Tensor:
        return x.cos() * 2  # A kernel would be called by torch.library.wrap_triton.

    assert_exact(lambda: [around_kernels(wide().exp()), around_kernels(wide()).sin()])
    with scope(None):
        assert dtr_alloc.evict(around_kernels(wide()))


def test_debug_mode_runs_the_first_call_of_each_twice() -> None:
    with dtr_alloc.rematerialize(None, recordable=NAMES, debug=True) as session:
        x = wide()
        before = session._core.stats().verified
        plain.sin(x)
        plain.dropout(x, 0.5)
        assert session._core.stats().verified == before + 2
        plain.sin(x)
        assert session._core.stats().verified == before + 2
        with pytest.raises(RuntimeError, match=r"dtr_lib_plain::counts made other bytes when it"):
            plain.counts(wide())
        session.check()


def test_other_shapes_when_it_runs_again_are_an_error() -> None:
    with scope(None, recordable=NAMES) as session:
        made = plain.shrinks(wide())
        assert dtr_alloc.evict(made)
        with pytest.raises(RuntimeError, match="dtr_lib_plain::shrinks made 15872 bytes when it"):
            made.sum()
        session.check()
        KEPT.clear()  # It makes what it made at first.
        made.sum()


def test_a_first_call_that_compiles_is_not_taken_as_its_price() -> None:
    calls = 0

    @torch.library.custom_op("dtr_lib::slow_at_first", mutates_args=())
    def slow_at_first(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        for _ in range(3000 if calls == 1 else 0):
            x = x + 0
        return x.clone()

    with dtr_alloc.rematerialize(None) as session:
        x = wide(256)
        for _ in range(100):
            x = x.sin()
        before = session.stats().kernel_ns
        slow_at_first(x)
        assert session.stats().kernel_ns - before < before


@pytest.mark.parametrize(
    ("names", "error", "text"),
    [
        ("dtr_lib::*", TypeError, "is not a tuple of names"),
        (7, TypeError, "is not a tuple of names"),
        ((7,), TypeError, "recordable has 7, which is not the name of an operator"),
        (("sin",), ValueError, "recordable has 'sin'; a name is"),
        (("*",), ValueError, "a name is"),
        (("dtr_*::sin",), ValueError, "a name is"),
        (("aten::sin",), ValueError, "torch's own operators need nobody's word"),
        (("dtr_lib::atention",), ValueError, "but no operator is called so"),
        (("dtr_no_such::*",), ValueError, "but no operator is called so"),
        (("dtr_lib::double_",), ValueError, "which writes an argument: it is never run again"),
        (("dtr_lib::halves",), ValueError, "which returns a list of tensors"),
        (("dtr_lib_plain::view",), ValueError, "which returns the memory of an argument"),
        (("dtr_lib_plain::noisy",), ValueError, "which is given a generator"),
        (("dtr_lib_plain::all_reduce",), ValueError, "which talks to other processes"),
        (("quantized::linear",), ValueError, "which takes an object that no recipe can keep"),
        (("prims::*",), ValueError, "which belongs to torch's compilers"),
        (("c10d::*",), ValueError, "which talks to other processes"),
    ],
)
def test_names_that_do_nothing_are_refused(names: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        dtr_alloc.rematerialize("1MiB", recordable=names).__enter__()
    with pytest.raises(error, match=text):
        dtr_alloc.allocator("1MiB", recordable=names)
    assert not dtr_alloc.is_evicted(torch.ones(1))


def test_names_that_are_taken() -> None:
    for names in ([], ("dtr_lib::*",), ["dtr_lib::at*", "dtr_lib_plain::sin"], ("dtr_lib::*",) * 2):
        with scope(None, recordable=names):
            assert dtr_alloc.evict(attention(wide(), wide(), wide())[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["fasterrcnn_mobilenet_v3_large_320_fpn", "ssdlite320_mobilenet_v3_large"]
)
def test_torchvisions_detectors(name: str) -> None:
    detection = pytest.importorskip("torchvision.models.detection")
    torch.manual_seed(1)
    model = getattr(detection, name)(weights=None, weights_backbone=None, num_classes=5).train()
    boxes = torch.tensor([[30.0, 30.0, 190.0, 220.0], [60.0, 90.0, 280.0, 250.0]])
    start = copy.deepcopy(model.state_dict())

    def program() -> Iterator[Tensor]:
        model.zero_grad()
        model.load_state_dict(start)
        target = {"boxes": boxes, "labels": torch.tensor([1, 2])}
        losses = model([torch.rand(3, 320, 320)] * 2, [target] * 2)
        sum(losses.values()).backward()
        yield from losses.values()
        yield from (p.grad for p in model.parameters() if p.grad is not None)
        yield from model.buffers()

    for names in ((), ("torchvision::*",)):
        session = assert_exact_within(0.7, program, recordable=names)
        roi_stays = name.startswith("fasterrcnn") and not names
        assert ("torchvision::roi_align: has no" in session.summary()) == roi_stays
