"""FSDP2 frees a layer's parameters between its passes: what was computed from them can be
recomputed while they are gathered, and stays in memory where it may be needed at other times."""

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.utils.checkpoint import checkpoint

import dtr_alloc
from dtr_alloc import _core
from tests.support.own_process import printed
from tests.support.sharded_layers import (
    DEPTH,
    Step,
    assert_exact,
    batch,
    gradients,
    make_model,
    needs_torchs_word,
    one_process,
    peak_of,
    plain_step,
    releasing,
    sharded,
    taken_from,
    train,
)
from tests.support.sharded_programs import Block

pytestmark = needs_torchs_word


@pytest.fixture(autouse=True, scope="module")
def a_group() -> Iterator[None]:
    with one_process():
        yield


LATE = """
import torch, dtr_alloc
with dtr_alloc.rematerialize("1MiB"):
    from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.fsdp._fully_shard import _fsdp_param
    assert hasattr(FSDPParam.free_unsharded_param, "__wrapped__")
assert not hasattr(FSDPParam.free_unsharded_param, "__wrapped__")
own = _fsdp_param.free_storage
with dtr_alloc.rematerialize("1MiB"):
    assert _fsdp_param.free_storage is not own
assert _fsdp_param.free_storage is own
"""


def test_fsdp_is_as_it_was_after_a_scope_and_may_be_imported_in_one() -> None:
    """As Trainer and Accelerate do."""
    printed(LATE)


def test_an_fsdp_without_one_of_the_names_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

    monkeypatch.delattr(FSDPParam, "to_unsharded")
    with dtr_alloc.rematerialize("1MiB") as session:
        assert "has no to_unsharded: recipes keep copies" in session.summary()


IN_FEWER_BITS = MixedPrecisionPolicy(param_dtype=torch.bfloat16)


@pytest.mark.parametrize("share", [0.7, 0.5])
def test_layers_are_recomputed_while_their_parameters_are_gathered(share: float) -> None:
    assert_exact(share)


@pytest.mark.parametrize("options", [{"mp_policy": IN_FEWER_BITS}, {"reshard_after_forward": 1}])
def test_they_may_be_gathered_in_fewer_bits_or_from_a_part_of_the_processes(options: Any) -> None:
    assert_exact(0.6, **options)


@pytest.mark.parametrize("memory", ["pool", "torch"])
def test_nothing_of_a_layer_need_stay_but_what_it_returns(memory: Any) -> None:
    model = make_model()
    with dtr_alloc.rematerialize("64MiB", memory=memory) as session:
        loss = plain_step(model, 0)
        before = session.stats().live_bytes
        session.release()
        kept = session.stats().live_bytes
        loss.backward()  # type: ignore[no-untyped-call]
    assert kept < before / 2


def test_what_a_layer_returns_stays_until_the_next_one_reads_it() -> None:
    plain, model = make_model(), make_model()
    with dtr_alloc.rematerialize("64MiB") as session:
        for block in model:
            block.register_forward_pre_hook(releasing(session), prepend=True)
        found = train(model)
    assert all(map(torch.equal, found, train(plain)))


def two_batches(switch: str) -> Step:
    """The first one's backward pass is without what the model's setter of this name puts on."""

    def loss_of(model: Any, step: int) -> Tensor:
        getattr(model, switch)(False)
        plain_step(model, 10 + step).backward()  # type: ignore[no-untyped-call]
        getattr(model, switch)(True)
        return plain_step(model, step)

    return loss_of


def evaluated(model: nn.Module, step: int) -> Tensor:
    loss = plain_step(model, step)
    with torch.no_grad():
        plain_step(model, 10 + step)
    return loss


def twice(model: nn.Module, step: int) -> Tensor:
    made: Tensor = model(model(batch(step)))
    return made.square().mean()


def checkpointed(model: Any, step: int) -> Tensor:
    def forward(x: Tensor) -> Tensor:
        for block in model.children():
            x = checkpoint(block, x, use_reentrant=False)
        return x

    model.forward = forward
    return plain_step(model, step)


STEPS: dict[str, tuple[float, Step]] = {
    "adds batches before gradients are reduced": (0.6, two_batches("set_requires_gradient_sync")),
    "keeps parameters behind a backward pass": (0.7, two_batches("set_reshard_after_backward")),
    "evaluates between forward and backward": (0.6, evaluated),
    "runs a layer twice before its backward pass": (0.6, twice),
    "checkpoints activations as well": (0.95, checkpointed),
}


@pytest.mark.parametrize(("share", "loss_of"), STEPS.values(), ids=STEPS)
def test_a_program_trains_exactly_that(share: float, loss_of: Step) -> None:
    assert_exact(share, loss_of)


def test_what_is_read_outside_of_its_layer_stays_in_memory() -> None:
    """The loss reads what a hook took from within a layer, when others' parameters are there."""

    def with_hidden(model: nn.Module) -> Step:
        taken = taken_from(model)

        def loss_of(model: nn.Module, step: int) -> Tensor:
            made: Tensor = model(batch(step))
            return made.square().mean() + taken.pop().square().mean()

        return loss_of

    model, plain = make_model(), make_model()
    expected = train(plain, with_hidden(plain))
    with dtr_alloc.rematerialize("64MiB") as session:
        # Before the loss's own backward pass reads it again.
        found = train(model, with_hidden(model), session.release)
    assert all(map(torch.equal, found, expected))


def test_what_outlives_its_backward_pass_is_recomputed_before_the_parameters_go() -> None:
    """No gradient needs it, so that the backward pass itself does not bring it back."""
    model = make_model()
    taken = taken_from(model, "down", Tensor.detach)
    torch.manual_seed(7)
    plain_step(model, 0)
    torch.manual_seed(7)
    with dtr_alloc.rematerialize("64MiB") as session:
        loss = plain_step(model, 0)
        session.release()
        loss.backward()  # type: ignore[no-untyped-call]
        session.release()
        assert torch.equal(taken[1], taken[0])


def test_the_first_of_many_backward_passes_of_a_layer_leaves_the_others_evictable() -> None:
    """A block in a loop: each round has a backward pass of its own."""
    model = make_model()
    stays: list[int] = []
    with dtr_alloc.rematerialize("256MiB") as session:

        def look(_: Tensor) -> None:
            stats = session.stats()
            stays.append(stats.live_bytes - stats.evictable_bytes)

        x = batch(0)
        for _ in range(6):
            x = model(x)
            x.register_hook(look)
        loss = x.square().mean()
        session.release()
        loss.backward()  # type: ignore[no-untyped-call]
        del x
    assert max(stays) < 3 * min(stays)


@pytest.mark.parametrize("resharding", [True, False])
def test_many_forward_passes_may_share_a_backward_pass(resharding: bool) -> None:
    def backward(model: nn.Module, session: dtr_alloc.Session | None) -> list[Tensor]:
        torch.manual_seed(7)
        loss = sum((plain_step(model, step) for step in range(4)), torch.zeros(()))
        if session:
            session.release()
        loss.backward()  # type: ignore[no-untyped-call]
        return gradients(model)

    expected = backward(make_model(reshard_after_forward=resharding), None)
    model = make_model(reshard_after_forward=resharding)
    with dtr_alloc.rematerialize("64MiB") as session:
        found = backward(model, session)
    assert all(map(torch.equal, found, expected))


def test_a_pinned_tensor_can_be_read_and_written_between_the_passes() -> None:
    plain, model = make_model(), make_model()

    def written(model: nn.Module, session: dtr_alloc.Session | None) -> Tensor:
        def take(made: Tensor) -> Tensor:
            needed.append(made.detach().exp())
            if session:
                dtr_alloc.pin(needed[0])
            return made.detach() * needed[0]  # Needs it, and the layer's parameters.

        needed: list[Tensor] = []
        taken = taken_from(model, take=take)
        torch.manual_seed(7)
        plain_step(model, 0)
        if session:
            session.release()
        before = needed[0].numpy().copy()
        needed[0].mul_(2)
        assert (needed[0].numpy() == 2 * before).all()
        taken.clear()
        return torch.from_numpy(before)

    expected = written(plain, None)
    with dtr_alloc.rematerialize("64MiB") as session:
        found = written(model, session)
    assert torch.equal(found, expected)


class Pair(tuple[Any, ...]):
    """Of a library that knows nothing of pytrees."""


@dataclass
class Made:
    x: Tensor
    hidden: list[Tensor]


def first(made: Any) -> Tensor:
    while not isinstance(made, Tensor):
        if isinstance(made, Made):
            made = made.x
        else:
            made = next(iter(made.values() if isinstance(made, dict) else made))
    return made


@pytest.mark.parametrize(
    "wrap", [list, Pair, lambda made: {"made": made}, lambda made: Made(made[0], made[1:])]
)
def test_what_a_layer_returns_is_found_in_any_container(wrap: Callable[[Any], Any]) -> None:
    hiddens: list[Tensor] = []  # Read outside of their layers, as what these return may be.

    class Wrapping(Block):
        def forward(self, x: Any) -> Any:
            x = first(x)
            hiddens.append(nn.functional.gelu(self.up(self.norm(x))))
            return wrap([x + self.down(hiddens[-1]), hiddens[-1]])

    def loss_of(model: nn.Module, step: int) -> Tensor:
        hiddens.clear()
        return first(model(batch(step))).square().mean() + hiddens[0].square().mean()

    def make() -> nn.Sequential:
        torch.manual_seed(0)
        return sharded([Wrapping() for _ in range(DEPTH)])

    expected = train(make(), loss_of)
    model = make()
    with dtr_alloc.rematerialize("64MiB") as session:
        for block in model.children():
            block.register_forward_pre_hook(releasing(session), prepend=True)
        found = train(model, loss_of)
        hiddens.clear()
    assert all(map(torch.equal, found, expected))


def test_an_interrupt_while_a_layer_is_recomputed_reaches_the_program() -> None:
    """What is still needed is recomputed as the parameters go, and a recomputation may be slow."""
    interrupts = [False]

    @torch.library.custom_op("tests_sharded::slow", mutates_args=())
    def slow(x: Tensor) -> Tensor:
        if interrupts[0]:
            raise KeyboardInterrupt
        return x.exp()

    model = make_model()
    taken = taken_from(model, take=lambda made: slow(made.detach()))
    with dtr_alloc.rematerialize("64MiB") as session:
        loss = plain_step(model, 0)
        session.release()
        interrupts[0] = True
        with pytest.raises(KeyboardInterrupt):
            loss.backward()  # type: ignore[no-untyped-call]
        interrupts[0] = False
        taken.clear()
        del loss


def test_a_budget_that_is_too_small_is_an_error_of_memory_also_between_two_passes() -> None:
    model = make_model()
    budget = int(0.25 * peak_of(plain_step))
    with pytest.raises(torch.OutOfMemoryError), dtr_alloc.rematerialize(budget):
        train(model)
    gc.collect()
    plain_step(model, 0)


def test_what_inference_took_from_within_a_layer_stays_in_memory() -> None:
    model = make_model()
    taken = taken_from(model)
    with torch.no_grad():
        plain_step(model, 0)
        expected = taken.pop().clone()
        with dtr_alloc.rematerialize("64MiB") as session:
            plain_step(model, 0)
            plain_step(model, 0)
            session.release()
            assert all(torch.equal(one, expected) for one in taken)


def test_parameters_that_no_recipe_reads_any_more_are_not_missed() -> None:
    """What is read while some are elsewhere stays, where it goes back too far to see what for."""
    parameter = torch.ones(1000)
    with dtr_alloc.rematerialize("64MiB") as session:
        made = parameter + 1
        session._core.content_goes(parameter, _core.Stays.all)
        assert not dtr_alloc.evict(made)  # It stays instead.
        kept = [torch.ones(1000)]
        for _ in range(300):
            kept.append(kept[-1] + 1)
        assert all(map(dtr_alloc.evict, kept))
        assert float(kept[-1][0]) == 301
        session.check()
