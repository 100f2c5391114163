"""Scopes whose tensors torch's own allocator makes: the budget holds by our count, no bit differs,
and a tensor stays where it is when the scope ends."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import dtr_alloc
from dtr_alloc.demo import MODELS as DEMO
from dtr_alloc.demo import Job, Plan
from dtr_alloc.demo.models import gpt, lstm, resnet, treelstm, unet
from dtr_alloc.demo.train import train
from tests.live.test_resize import results
from tests.live.test_threads import LETTING_GO
from tests.support.exactness import bits, chain, same
from tests.support.own_process import own_process, printed
from tests.support.pool_memory import of_this_process
from tests.support.threads import in_threads

MIB = 1 << 20

guest = partial(dtr_alloc.rematerialize, memory="torch")

# The demo's, deep enough that three tenths of their activations are enough.
MODELS: dict[str, Callable[[], Job]] = {
    "resnet": partial(resnet, width=8),
    "gpt": partial(gpt, width=32, heads=2, length=32, texts=4, vocabulary=32),
    "lstm": partial(lstm, hidden=32, length=32, texts=16, vocabulary=32),
    "treelstm": partial(treelstm, hidden=32, leaves=32, samples=16, vocabulary=50),
    "unet": partial(unet, width=8, images=4, side=32),
}


@pytest.mark.parametrize(
    "make",
    [
        *(pytest.param(make, id=f"small {name}") for name, make in MODELS.items()),
        *(pytest.param(make, id=name, marks=pytest.mark.slow) for name, make in DEMO.items()),
    ],
)
def test_the_demos_models_train_exactly_at_shares_of_activations(make: Callable[[], Job]) -> None:
    plan = Plan(steps=2)
    eager = train(make, plan, None)
    free = train(make, plan, partial(guest, "1TiB"))
    assert free.digests == eager.digests
    assert free.stats[-1].evictions == 0
    fixed = free.gradient_bytes + free.optimizer_bytes
    peak = free.stats[-1].peak_bytes
    for share in (0.7, 0.5, 0.3):
        budget = fixed + int(share * (peak - fixed))
        tight = train(make, plan, partial(guest, budget, thrash_limit=0))
        assert tight.digests == eager.digests
        assert tight.stats[-1].evictions > 0
        assert tight.stats[-1].peak_bytes <= budget


def test_a_guest_counts_and_chooses_as_a_pool_does() -> None:
    figures = []
    budget = MIB + 8192  # Two pages more than 16 tensors, for the pool's pages that blocks share.
    for memory in ("pool", "torch"):
        with dtr_alloc.rematerialize(budget, memory=memory, clock="logical") as session:
            tensors = chain(64)
            for index in (0, 63, 31, 5, 62):
                dtr_alloc.materialize(tensors[index])
            stats = session.stats()
            evicted = [dtr_alloc.is_evicted(tensor) for tensor in tensors]
            del tensors
        figures.append((evicted, stats.evictions, stats.peak_bytes, stats.live_bytes))
    assert figures[0] == figures[1]


def test_counts_return_to_nothing() -> None:
    with guest("4MiB") as session:
        tensors = chain(100)
        session.check()
        assert 3 * MIB < session.stats().live_bytes <= 4 * MIB
        blocks = session._core.pool_stats().live_blocks
        tensors.clear()
        session.check()
        assert session.stats().live_bytes == 0
        counts = session._core.pool_stats()
        assert counts.live_blocks == 0 < blocks <= counts.peak_blocks
        session.reset_peak()
        assert session._core.pool_stats().peak_blocks == 0


def test_a_request_that_finds_no_room_at_first_is_counted() -> None:
    with guest("1MiB") as session:
        tensors = chain(8)
        assert session._core.pool_stats().failures == 0
        tensors += chain(8)
        assert session._core.pool_stats().failures > 0
        del tensors


def test_a_copy_of_nothing_leaves_nothing_behind() -> None:
    """Recipes keep the old content of what an operator writes, here of an empty index."""
    for _ in range(2):
        with guest("64MiB") as session:
            x, values = torch.rand(1 << 14).sin(), torch.ones(1 << 14) * 3
            torch.sort(x, out=(values, torch.empty(0, dtype=torch.long)))
            del x, values
            session.check()
        assert session._core.pool_stats().live_blocks == 0


def test_all_of_a_loan_comes_back_also_past_the_first_budget() -> None:
    with guest("16MiB") as session:
        with session.lend("12MiB"):
            session.resize("8MiB")
        assert session.stats().budget_bytes == 20 * MIB


def test_a_guest_needs_a_budget_and_a_name_that_is_known() -> None:
    with pytest.raises(ValueError, match=r'budget None with memory="torch".*give a budget'):
        guest(None).__enter__()
    with pytest.raises(ValueError, match="memory 'malloc' is not"):
        dtr_alloc.rematerialize("1MiB", memory="malloc").__enter__()  # type: ignore[arg-type]
    with guest("1MiB"):  # Nothing was left open.
        pass


@pytest.mark.parametrize("heuristic", ["megengine", dtr_alloc.Heuristic(selection="window")])
def test_a_heuristic_of_holes_finds_none_and_goes_on(heuristic: str | dtr_alloc.Heuristic) -> None:
    expected = [bits(tensor) for tensor in chain(48)]
    with guest("1MiB", heuristic=heuristic, thrash_limit=0) as session:
        tensors = chain(48)
        assert session.stats().evictions > 0
        assert same(bits(tensors[-1]), expected[-1])
        assert same(bits(tensors[5]), expected[5])
        del tensors


def test_blocks_cross_the_borders_of_scopes_both_ways() -> None:
    before = torch.ones(256, 64)
    with dtr_alloc.rematerialize("4MiB") as pooled:
        from_pool = before.exp()
    with guest("4MiB") as first:
        inside = from_pool + before
        del before, from_pool
        evicted = inside.exp()
        dtr_alloc.evict(evicted)
    assert pooled.stats().live_bytes == 0
    expected = bits(inside.exp())
    with guest("4MiB") as second:
        assert not dtr_alloc.evict(inside)  # Another scope's: a constant of this one.
        again = inside.exp()
        assert same(bits(again), expected)
        inside.resize_(512, 64)  # Grows into this scope.
        second.check()
    assert same(bits(evicted), expected)
    assert first.stats().live_bytes == 65536
    del evicted
    assert first.stats().live_bytes == 0
    with dtr_alloc.rematerialize("4MiB"):
        del inside, again
    assert second.stats().live_bytes == 0
    second.check()


def test_a_scope_that_ends_copies_nothing() -> None:
    with guest("4MiB") as session:
        tensors = chain(8)
        allocations = session._core.pool_stats().allocations
    assert session._core.pool_stats().allocations == allocations
    assert session.stats().live_bytes == sum(tensor.nbytes for tensor in tensors)
    session.check()


def test_what_does_not_fit_together_is_counted_no_longer_and_stays_where_it_is() -> None:
    expected = [bits(tensor) for tensor in chain(40)]
    scope = guest("1MiB")
    session = scope.__enter__()
    tensors = chain(40)
    with pytest.warns(UserWarning, match="now lie in ordinary memory"):
        scope.__exit__(None, None, None)
    assert session.stats().peak_bytes <= MIB
    assert all(same(bits(t), want) for t, want in zip(tensors, expected, strict=True))
    session.check()
    tensors.clear()
    assert session.stats().live_bytes == 0
    session.check()


def test_memory_that_died_can_be_handed_out_again_by_whoever_asks() -> None:
    for _ in range(50):
        with guest("1MiB") as session:
            kept = chain(12)
            session.check()
        ordinary = [torch.ones(256, 64) for _ in range(12)]
        del kept
        ordinary += [torch.ones(256, 64) for _ in range(12)]
        with dtr_alloc.rematerialize("1MiB"):
            del ordinary
    assert session.stats().live_bytes == 0


def test_a_guests_budget_may_grow_beyond_its_first() -> None:
    with guest("4MiB") as session:
        held = results(12)
        assert session.stats().live_bytes <= 4 * MIB
        session.resize("16MiB")
        with session.lend("2MiB"):
            assert session.stats().budget_bytes == 14 * MIB
        assert session.stats().budget_bytes == 16 * MIB
        assert [tensor[1].item() for tensor in held] == [float(n + 1) for n in range(12)]
        assert 12 * MIB <= session.stats().live_bytes <= 16 * MIB
        with pytest.raises(ValueError, match="above the largest possible, 16 TiB"):
            session.resize("17TiB")


def test_what_is_released_leaves_the_process() -> None:
    with guest("256MiB") as session:
        held = [torch.ones(1 << 14) * n for n in range(1024)]  # 64 KiB each.
        before = of_this_process("Anonymous")
        given = session.release()
        assert given >= 63 * MIB
        assert before - of_this_process("Anonymous") >= 0.9 * given
        assert float(held[7][0]) == 7.0


def test_what_a_smaller_budget_evicts_leaves_the_process() -> None:
    with guest("256MiB") as session:
        held = [torch.ones(1 << 14) * n for n in range(1024)]  # 64 KiB each.
        before = of_this_process("Anonymous")
        session.resize("8MiB")
        assert before - of_this_process("Anonymous") >= 50 * MIB
        session.resize("256MiB")
        assert float(held[7][0]) == 7.0


def test_a_tensor_of_a_guest_may_die_in_one_thread_while_another_evicts_it() -> None:
    program = LETTING_GO.replace('device="cpu"', 'memory="torch"').replace("800", "200")
    assert 'memory="torch"' in program
    assert printed(program) == "True\n"


def test_a_tensor_of_a_guest_may_die_in_a_thread_outside() -> None:
    with guest("2MiB") as session:
        held = [chain(16)]
        in_threads(held.clear, join=False)
        assert session.stats().live_bytes == 0
        session.check()


def test_a_machine_that_is_full_evicts_and_then_says_so() -> None:
    """A mapping for each tensor: what is freed in malloc's heap may lie in pieces."""
    program = """
import resource, torch, dtr_alloc
torch.set_num_threads(1)  # Another one's heap takes up addresses, too.
with dtr_alloc.rematerialize("1TiB", memory="torch") as session:
    used = int(open("/proc/self/statm").read().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
    held = [torch.ones(1 << 20) * n for n in range(32)]  # 128 MiB.
    assert session.stats().evictions > 0
    assert [float(one[0]) for one in held] == list(range(32))
    torch.empty(1 << 25)
"""
    done = own_process(program, MALLOC_MMAP_THRESHOLD_=str(1 << 20))
    full = "the machine has no more, and nothing is left to evict"
    error = done.stderr[done.stderr.index("torch.OutOfMemoryError: dtr_alloc is out of memory.") :]
    _, asked, machine = error.splitlines()[:3]
    assert asked == "  asked: 128.00 MiB, within the budget of 1048576.00 MiB"
    assert full in machine
    note = error[error.index("not all that the scope leaves behind can be read") :]
    assert "asked: 4.00 MiB, within" in note


def test_a_forked_child_and_an_exit_with_a_scope_open_end_well() -> None:
    program = """
import os, torch, dtr_alloc
torch.set_num_threads(1)  # OpenMP does not survive a fork.
scope = dtr_alloc.rematerialize("4MiB", memory="torch")
session = scope.__enter__()
x = torch.ones(1 << 16).exp()
y = x + 1
child = os.fork()
if child == 0:
    assert f"{y[0]:.3f}" == "3.718"
    z = [y * n for n in range(100)]
    del x, y, z
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert f"{y[0]:.3f}" == "3.718"
"""
    done = own_process(program)
    assert (done.returncode, done.stderr) == (0, "")


def test_raw_memory_of_a_guest_is_an_ordinary_allocation() -> None:
    with guest("1MiB") as session:
        x = torch.ones(256, 64).exp()
        seen = x.numpy()
        assert not dtr_alloc.evict(x)
        del x
        assert session.stats().live_bytes == 65536  # The array still has it.
        assert f"{seen[0, 0]:.3f}" == "2.718"
        del seen
        assert session.stats().live_bytes == 0


def test_the_profiler_counts_a_guests_memory_once() -> None:
    def allocated(run: Callable[[], Any]) -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.profiler.profile(profile_memory=True) as profile:
                run()
        return sum(max(event.self_cpu_memory_usage, 0) for event in profile.key_averages())

    def work() -> None:
        torch.empty(1 << 20)

    plain = allocated(work)
    with guest("64MiB"):
        assert allocated(work) == plain >= 4 * MIB
