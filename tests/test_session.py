"""The scope: budgets, what lives on, control by hand, raw access, threads, forks, and bad input."""

import copy
import gc
import io
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dtr_alloc
from dtr_alloc.runtime._testing import instrumented
from tests.exactness import bits, same, scope

MIB = 1 << 20


def chain(length: int, rows: int = 256) -> list[Tensor]:
    """`length` tensors of 64 KiB (for 256 rows), each computed from the one before."""
    tensors = [torch.ones(rows, 64).exp()]
    while len(tensors) < length:
        tensors.append((tensors[-1] * 1.01).sin())
    return tensors


# ---- The budget ----------------------------------------------------------------------------------


def test_a_deep_recomputation_gives_up_what_it_needs_later_only() -> None:
    def factors() -> list[Tensor]:
        return [torch.full((16384,), 1 + i / 7) for i in range(16)]

    def product(side: list[Tensor]) -> Tensor:
        total = side[0].exp()
        for factor in side:
            total = total * factor
        return total

    expected = bits(product(factors()))
    with dtr_alloc.rematerialize((1 << 20) + 8192, clock="logical") as session:
        side = factors()
        total = product(side)
        dtr_alloc.evict(total)
        for factor in side:  # 16 of 64 KiB: no room for a 17th, and each is an argument on the way.
            dtr_alloc.materialize(factor)
        assert not any(map(dtr_alloc.is_evicted, side))
        assert same(bits(total), expected)
        session.check()
        assert session.stats().peak_bytes <= (1 << 20) + 8192
        del side, total, factor


def test_the_pool_never_passes_the_budget_and_every_tensor_reads_right() -> None:
    expected = [bits(t) for t in chain(64)]
    with dtr_alloc.rematerialize("1MiB") as session:
        tensors = chain(64)
        for index in (0, 63, 31, 5, 62):
            assert same(bits(tensors[index]), expected[index])
        stats = session.stats()
        assert stats.budget_bytes == MIB
        assert stats.peak_bytes <= MIB
        assert stats.evictions > 40
        assert stats.rematerializations > 0
        del tensors
    session.check()


def test_a_budget_of_a_few_bytes_too_little_says_what_would_do() -> None:
    with dtr_alloc.rematerialize("1MiB") as session:
        kept = torch.ones(1000, 64)
        with pytest.raises(torch.OutOfMemoryError) as caught:
            torch.ones(1 << 20).exp()
        text = str(caught.value)
        assert "budget 1.00 MiB: 4.00 MiB asked" in text
        assert "raise the budget to at least" in text
        assert bool((kept + 1 == 2).all())
        session.check()


def test_the_budget_that_would_do_is_more_than_the_one_that_did_not() -> None:
    with dtr_alloc.rematerialize("1MiB"):
        pinned = torch.empty((1 << 20) - 1024, dtype=torch.uint8)  # Nobody can compute it again.
        with pytest.raises(torch.OutOfMemoryError, match=r"to at least 1\.01 MiB"):
            torch.empty(1536, dtype=torch.uint8)
        del pinned


def test_a_request_that_fails_though_the_bytes_are_free_asks_for_more_than_there_was() -> None:
    with scope("1MiB") as session:
        session._core.fail_allocation(1)
        with pytest.raises(torch.OutOfMemoryError, match=r"smaller pieces.*to at least 1\.01 MiB"):
            torch.ones(1000)


def test_after_running_out_of_memory_the_same_work_succeeds_with_less() -> None:
    expected = bits(chain(18)[-1])
    with dtr_alloc.rematerialize("1MiB") as session:
        tensors = chain(32)
        with pytest.raises(torch.OutOfMemoryError):
            torch.cat(tensors)
        session.check()
        assert same(bits(tensors[17]), expected)
        tensors.clear()


def test_without_a_budget_nothing_is_evicted() -> None:
    with dtr_alloc.rematerialize(None) as session:
        chain(64)
        stats = session.stats()
        assert (stats.evictions, stats.rematerializations, stats.budget_bytes) == (0, 0, None)
        assert stats.recorded > 64


def test_thrashing_is_an_error_that_names_the_ratio() -> None:
    with (
        pytest.raises(torch.OutOfMemoryError, match=r"recomputes \d+ times longer than"),
        dtr_alloc.rematerialize("2MiB", heuristic="lru", thrash_limit=0.5),
    ):
        for _ in range(1000):
            tensors = chain(200)
            total = torch.zeros(256, 64)
            for tensor in reversed(tensors):
                total = total + tensor


@pytest.mark.parametrize("heuristic", ["dtr", "dtr_local", "lru", "size"])
def test_every_preset_keeps_the_budget_and_the_bits(heuristic: str) -> None:
    expected = bits(chain(48)[-1])
    with dtr_alloc.rematerialize("1MiB", heuristic=heuristic) as session:
        tensors = chain(48)
        assert same(bits(tensors[-1]), expected)
        assert session.stats().evictions > 0
        assert session.stats().peak_bytes <= MIB
        del tensors


def test_a_logical_clock_makes_two_runs_evict_alike() -> None:
    def evictions() -> tuple[int, int]:
        with dtr_alloc.rematerialize("1MiB", clock="logical") as session:
            tensors = chain(100)
            for tensor in tensors[::7]:
                tensor.sum()
            stats = session.stats()
            del tensor, tensors
        return stats.evictions, stats.rematerializations

    first = evictions()
    assert first == evictions()
    assert first[0] > 0


def test_measure_counts_eagers_peak_and_evicts_nothing() -> None:
    with dtr_alloc.measure(timeline=True) as session:
        a = torch.ones(256, 256)
        b = a + 1
        del a, b
        c = torch.ones(256)
        stats = session.stats()
        numbers = stats.peak_bytes - 2 * 256 * 256 * 4  # The 1s, a granule each.
        assert 0 <= numbers <= 1024
        assert stats.live_bytes == c.numel() * 4
        assert stats.recorded == 0
        assert session.timeline()[-1] == stats.live_bytes


def test_two_thousand_operators_on_dropped_tensors_leave_no_records() -> None:
    with dtr_alloc.rematerialize("1MiB") as session:
        x = torch.ones(256, 64)
        for _ in range(2000):
            x = x * 1.0001
            x = x.detach()
        session.commit()
        assert session.stats().records == 0


# ---- What lives on -------------------------------------------------------------------------------


def test_tensors_that_outlive_the_scope_are_ordinary_and_exact() -> None:
    expected = [bits(t) for t in chain(12)]
    with dtr_alloc.rematerialize("2MiB"):
        tensors = chain(12)
        dtr_alloc.evict(tensors[3])
    gc.collect()
    for tensor, want in zip(tensors, expected, strict=True):
        assert same(bits(tensor), want)
        tensor.add_(1)
        assert not dtr_alloc.is_evicted(tensor)


def test_what_does_not_fit_the_budget_together_survives_the_scope() -> None:
    expected = [bits(t) for t in chain(40)]
    scope = dtr_alloc.rematerialize("1MiB")
    session = scope.__enter__()
    tensors = chain(40)
    with pytest.warns(UserWarning, match="now lie in ordinary memory") as warned:
        scope.__exit__(None, None, None)
    assert warned[0].filename == __file__
    assert session.stats().peak_bytes <= MIB
    assert all(same(bits(t), want) for t, want in zip(tensors, expected, strict=True))


def test_a_scope_left_by_an_exception_commits_as_well() -> None:
    kept: list[Tensor] = []
    with pytest.raises(KeyError), dtr_alloc.rematerialize("2MiB"):
        kept.extend(chain(8))
        dtr_alloc.evict(kept[4])
        raise KeyError
    assert same(bits(kept[4]), bits(chain(8)[4]))


def test_scopes_follow_each_other_and_tensors_of_one_are_constants_of_the_next() -> None:
    with dtr_alloc.rematerialize("2MiB"):
        first = chain(4)[-1]
    with dtr_alloc.rematerialize("2MiB") as session:
        second = first.exp()
        assert dtr_alloc.evict(second)
        assert not dtr_alloc.evict(first)
        assert same(bits(second), bits(first.exp()))
        session.check()


def test_resize_set_and_data_swaps_of_evicted_tensors() -> None:
    with scope("4MiB") as session:
        a, b, c = chain(3)
        want = bits(a)
        for tensor in (a, b, c):
            dtr_alloc.evict(tensor)
        a.resize_(300, 64)
        assert same(bits(a[:256]), want)
        b.data = c.exp()
        b.set_(c)  # type: ignore[call-overload]
        session.check()
        assert same(bits(b), bits(c))


# ---- By hand -------------------------------------------------------------------------------------


def test_evict_materialize_and_pin_by_hand() -> None:
    with dtr_alloc.rematerialize("4MiB") as session:
        x = torch.ones(256, 64).exp()
        assert not dtr_alloc.is_evicted(x)
        assert dtr_alloc.evict(x)
        assert dtr_alloc.is_evicted(x)
        assert not dtr_alloc.evict(x)
        assert session.stats().live_bytes == 0
        dtr_alloc.materialize(x)
        assert not dtr_alloc.is_evicted(x)
        assert session.stats().live_bytes == 2 * 256 * 64 * 4  # And what it was computed from.
        dtr_alloc.pin(x)
        assert not dtr_alloc.evict(x)
        assert bool((x == torch.ones(1).exp()).all())


def test_by_hand_outside_a_scope_does_nothing() -> None:
    x = torch.ones(4)
    assert not dtr_alloc.evict(x)
    assert not dtr_alloc.is_evicted(x)
    dtr_alloc.materialize(x)
    dtr_alloc.pin(x)
    assert bool((x == 1).all())


def test_a_chain_of_200_000_operators_comes_back_without_deep_recursion() -> None:
    with dtr_alloc.rematerialize("512MiB") as session:
        chain = [torch.zeros(128)]
        for _ in range(200_000):
            chain.append(chain[-1] + 1)
        assert all(dtr_alloc.evict(x) for x in chain)
        assert bool((chain[-1] == 200_000).all())
        assert session.stats().rematerializations >= 200_000


# ---- Raw access ----------------------------------------------------------------------------------


def raw_readers() -> dict[str, object]:
    return {
        "numpy": lambda t: t.numpy(),
        "asarray": np.asarray,
        "tolist": lambda t: np.asarray(t.tolist(), dtype=np.float32),
        "pickle": lambda t: pickle.loads(pickle.dumps(t)).numpy(),
        "deepcopy": lambda t: copy.deepcopy(t).numpy(),
        "save": lambda t: saved(t).numpy(),
        "dlpack": lambda t: torch.utils.dlpack.from_dlpack(t).numpy(),
        "storage": lambda t: np.frombuffer(bytes(t.untyped_storage()), np.float32).reshape(t.shape),
        "share_memory_": lambda t: t.share_memory_().numpy(),
    }


def saved(tensor: Tensor) -> Tensor:
    buffer = io.BytesIO()
    torch.save(tensor, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer)
    assert isinstance(loaded, Tensor)
    return loaded


@pytest.mark.parametrize("way", list(raw_readers()))
def test_raw_access_to_an_evicted_tensor_brings_it_back(way: str) -> None:
    read = raw_readers()[way]
    assert callable(read)
    expected = (torch.ones(256, 64) * 2).exp().numpy()
    with dtr_alloc.rematerialize("4MiB"):
        x = (torch.ones(256, 64) * 2).exp()
        dtr_alloc.evict(x)
        assert np.array_equal(read(x), expected)


def test_memory_seen_through_numpy_is_never_evicted_again() -> None:
    with dtr_alloc.rematerialize("1MiB") as session:
        x = torch.ones(256, 64).exp()
        seen = x.numpy()
        before = seen.copy()
        chain(64)
        assert session.stats().evictions > 0
        assert not dtr_alloc.evict(x)
        assert np.array_equal(seen, before)
        seen[:] = 5
        assert bool((x == 5).all())


def test_memory_filled_through_a_pointer_is_not_recomputed_from_nothing() -> None:
    with scope(None, evict_always=True):
        x = torch.empty(256, 64)
        np.copyto(x.numpy(), 3.0)
        y = torch.tensor(np.full(1000, 7.0, dtype=np.float32).tolist())
        assert bool((x * 2 == 6).all())
        assert bool((y == 7).all())


def test_a_thread_without_the_runtime_gets_an_error_that_names_the_remedy() -> None:
    with dtr_alloc.rematerialize("4MiB"):
        x = torch.ones(256, 64).exp()
        dtr_alloc.evict(x)
        caught: list[Exception] = []

        def touch() -> None:
            try:
                x.sum()
            except Exception as error:
                caught.append(error)

        thread = threading.Thread(target=touch)
        thread.start()
        thread.join()
        assert "dtr_alloc.materialize" in str(caught[0])
        assert float(x[0, 0]) == float(torch.ones(1).exp())


def test_a_scope_left_while_another_thread_holds_an_evicted_tensor() -> None:
    go, done = threading.Event(), threading.Event()
    found: list[tuple[object, ...]] = []
    with dtr_alloc.rematerialize("4MiB"):
        x = torch.ones(256, 64).exp()
        dtr_alloc.evict(x)

        def later(mine: Tensor) -> None:
            go.wait()
            found.append(bits(mine))
            done.set()

        thread = threading.Thread(target=later, args=(x,))
        thread.start()
    go.set()
    done.wait()
    thread.join()
    assert same(found[0], bits(torch.ones(256, 64).exp()))


# ---- Autograd threads, forks, exits --------------------------------------------------------------


def test_backward_called_from_another_thread_is_exact() -> None:
    def program() -> Iterator[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))
        loss = model(torch.randn(128, 64)).square().mean()
        yield loss
        yield from torch.autograd.grad(loss, list(model.parameters()))

    expected = [bits(t) for t in program()]
    with scope(None, evict_always=True) as session:
        found = [bits(t) for t in program()]
        assert session.stats().rematerializations > 0
    assert all(same(a, b) for a, b in zip(expected, found, strict=True))


class Squares(torch.utils.data.Dataset[Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((512,), float(index)).square()


def test_dataloader_workers_and_forked_children() -> None:
    with dtr_alloc.rematerialize("4MiB") as session:
        x = torch.ones(256, 64).exp()
        dtr_alloc.evict(x)
        loader = torch.utils.data.DataLoader(Squares(), batch_size=4, num_workers=2)
        batches = [batch.exp().log() for batch in loader]
        assert float(batches[1][3, 0]) == pytest.approx(49.0)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writer, str(float(x[0, 0])).encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert float(os.read(reader, 64)) == float(torch.ones(1).exp())
        os.close(reader)
        os.close(writer)
        session.check()


def test_a_child_that_leaves_its_parents_scope_keeps_its_own() -> None:
    parents = dtr_alloc.rematerialize("4MiB")
    with parents:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            with dtr_alloc.rematerialize("4MiB"):
                x = torch.ones(256, 64).exp()
                parents.__exit__(None, None, None)
                os.write(writer, str(dtr_alloc.evict(x)).encode())
                os._exit(0)
        os.waitpid(child, 0)
        os.close(writer)
        assert os.read(reader, 64) == b"True"
        os.close(reader)


def test_instruments_are_those_of_the_block_around() -> None:
    with dtr_alloc.rematerialize(None) as session:
        torch.ones(1000).exp()
        assert session.stats().evictions == 0
    with instrumented(evict_always=True):
        opened = dtr_alloc.rematerialize(None)
        with opened as session:
            kept = torch.ones(1000).exp()
            assert session.stats().evictions > 0
    with dtr_alloc.rematerialize(None) as session:
        kept = kept.exp()
        assert session.stats().evictions == 0


def test_a_process_that_exits_inside_a_scope_ends_well() -> None:
    program = """
import torch, dtr_alloc
scope = dtr_alloc.rematerialize("4MiB")
session = scope.__enter__()
x = torch.ones(256, 64).exp()
y = x.sin()
dtr_alloc.evict(x)
print(float(y[0, 0]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


OPEN = """
scope = dtr_alloc.rematerialize("1MiB")
scope.__enter__()
kept = [torch.ones(256, 256).exp().sin() for _ in range(12)]  # 3 MiB
"""
SUSPENDED = """
def steps():
    with dtr_alloc.rematerialize("1MiB"):
        kept = [torch.ones(256, 256).exp().sin() for _ in range(12)]
        yield kept
generator = steps()
kept = next(generator)
"""
# What a module from before ours holds goes after the globals of ours have gone.
LATE = "import os; os.kept = dtr_alloc.runtime.scope, dict(globals())"
# Nothing is brought back for the end, and what is evicted can be read up to it.
ENDED = """
import atexit, gc
evicted = sum(map(dtr_alloc.is_evicted, kept))
atexit._run_exitfuncs()
scope = generator = None
gc.collect()
assert sum(map(dtr_alloc.is_evicted, kept)) == evicted > 0
assert {float(x[0, 0]) for x in kept} == {float(torch.ones(1).exp().sin())}
"""


@pytest.mark.parametrize("end", ["", LATE, ENDED])
@pytest.mark.parametrize("begin", [OPEN, SUSPENDED])
def test_a_process_that_exits_with_a_scope_open_says_nothing(begin: str, end: str) -> None:
    program = "import torch, dtr_alloc\n" + begin + end
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_process_exits_though_a_thread_has_joined_its_open_scope() -> None:
    program = """
import threading, time, torch, dtr_alloc
scope = dtr_alloc.rematerialize("1MiB")
scope.__enter__()
joined = threading.Event()
def work():
    with dtr_alloc.join_scope():
        joined.set()
        time.sleep(1000)
threading.Thread(target=work, daemon=True).start()
joined.wait()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_cycles_with_evicted_tensors_are_collected() -> None:
    with dtr_alloc.rematerialize("4MiB") as session:
        for _ in range(20):
            holder: list[object] = chain(3)  # type: ignore[assignment]
            holder.append(holder)
            dtr_alloc.evict(holder[1])  # type: ignore[arg-type]
        del holder
        gc.collect()
        assert session.stats().records == 0
        assert session.stats().live_bytes == 0


# ---- Failures ------------------------------------------------------------------------------------


def test_an_operator_that_raises_leaves_everything_usable() -> None:
    expected = bits(chain(1)[0])
    with dtr_alloc.rematerialize("4MiB") as session:
        a, b = chain(2)
        dtr_alloc.evict(a)
        with pytest.raises(RuntimeError):
            torch.mm(a, b)
        with pytest.raises(IndexError):
            a.index_add_(5, torch.tensor([0]), b)
        session.check()
        assert same(bits(a), expected)


def test_every_allocation_of_a_training_step_may_fail() -> None:
    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Embedding(16, 32), nn.TransformerEncoderLayer(32, 2, 64, batch_first=True),
            nn.Linear(32, 16),
        )  # fmt: skip
        return model, torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, words: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(words).flatten(0, 1), words.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss

    words = torch.arange(64).reshape(4, 16) % 16
    model, optimizer = build()
    step(model, optimizer, words)
    torch.manual_seed(1)
    expected = [bits(step(model, optimizer, words)), *(bits(p) for p in model.parameters())]

    failures = 0
    with scope(None) as session:
        allocation = 0
        while True:
            allocation += 1
            model, optimizer = build()
            step(model, optimizer, words)
            session._core.fail_allocation(allocation)
            torch.manual_seed(1)
            try:
                loss = step(model, optimizer, words)
            except torch.OutOfMemoryError as error:
                assert "raise the budget" in str(error)
                failures += 1
                session.check()
                torch.manual_seed(1)
                loss = step(model, optimizer, words)
            else:
                session._core.fail_allocation(0)
            found = [bits(loss), *(bits(p) for p in model.parameters())]
            assert all(same(a, b) for a, b in zip(expected, found, strict=True))
            if failures < allocation:
                break
        assert failures > 80


# ---- Bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "text"),
    [("8 apples", "is not a size"), (0, "0"), (-5, "-5"), (float("nan"), "nan"), (True, "True")],
)
def test_a_budget_that_is_no_size_is_refused(budget: object, text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        dtr_alloc.rematerialize(budget).__enter__()  # type: ignore[arg-type]
    assert not dtr_alloc.is_evicted(torch.ones(1))


@pytest.mark.parametrize("budget", ["512GiB", "16TiB"])
def test_a_budget_beyond_this_machine_works_and_costs_no_memory(budget: str) -> None:
    with dtr_alloc.rematerialize(budget) as session:
        x = torch.ones(256, 64).exp()
        dtr_alloc.evict(x)
        assert float(x[0, 0]) == float(torch.ones(1).exp())
        assert session._core.pool_stats().committed <= 4 * MIB
        session.check()


def test_a_budget_above_the_largest_names_both() -> None:
    text = '^budget "17TiB" is above the largest possible, 16 TiB$'
    with pytest.raises(ValueError, match=text):
        dtr_alloc.rematerialize("17TiB").__enter__()


def test_a_process_with_few_addresses_says_so() -> None:
    program = """
import resource, torch, dtr_alloc
resource.setrlimit(resource.RLIMIT_AS, (1 << 38, 1 << 38))
with dtr_alloc.rematerialize("1TiB"):
    pass
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert "MemoryError: this process cannot reserve the addresses of another pool" in last


@pytest.mark.parametrize(
    ("limit", "error", "text"),
    [
        (float("nan"), ValueError, "^thrash_limit is nan; it must be 0 or more$"),
        (-1, ValueError, "^thrash_limit is -1; it must be 0 or more$"),
        ("a", TypeError, "^thrash_limit 'a' is not a number$"),
        (None, TypeError, "^thrash_limit None is not a number$"),
        (True, TypeError, "^thrash_limit True is not a number$"),
    ],
)
def test_a_thrash_limit_that_is_none_is_refused(
    limit: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        dtr_alloc.rematerialize("1MiB", thrash_limit=limit).__enter__()
    with pytest.raises(error, match=text):
        dtr_alloc.allocator("1MiB", thrash_limit=limit)


@pytest.mark.parametrize("limit", [0, float("inf"), np.float32(2.5)])
def test_no_thrash_limit_may_be_written_as_none_at_all(limit: float) -> None:
    with dtr_alloc.rematerialize("256KiB", thrash_limit=limit) as session:
        total = sum(float(x.sum()) for x in chain(16))
    assert total > 0
    assert session.stats().evictions > 0


@pytest.mark.parametrize("device", ["gpu", "", None, 0, "meta", torch.device("meta")])
def test_a_device_without_a_scope_is_refused(device: Any) -> None:
    for make in (dtr_alloc.measure, lambda device: dtr_alloc.rematerialize("1MiB", device=device)):
        with pytest.raises(ValueError, match='has no scope; only "cpu" has'):
            make(device=device).__enter__()


@pytest.mark.parametrize("device", ["cpu", "cpu:0", torch.device("cpu")])
def test_the_cpu_may_be_given_as_torch_gives_it(device: str | torch.device) -> None:
    with dtr_alloc.rematerialize("1MiB", device=device), pytest.raises(RuntimeError):
        dtr_alloc.measure(device=device).__enter__()


def test_unknown_heuristics_clocks_and_devices_are_refused() -> None:
    with pytest.raises(ValueError, match="there are dtr, dtr_full, dtr_local, e_star, lru, "):
        dtr_alloc.rematerialize("1MiB", heuristic="magic").__enter__()
    with pytest.raises(ValueError, match="clock"):
        dtr_alloc.rematerialize("1MiB", clock="sun").__enter__()
    with pytest.raises(ValueError, match='only "cpu"'):
        dtr_alloc.rematerialize("1MiB", device="cuda").__enter__()


def test_nested_and_reentered_scopes_are_refused_and_the_outer_one_goes_on() -> None:
    with dtr_alloc.rematerialize("4MiB") as session:
        x = torch.ones(256, 64).exp()
        with pytest.raises(RuntimeError, match="do not nest"):
            dtr_alloc.rematerialize("1MiB").__enter__()
        with pytest.raises(RuntimeError, match="do not nest"):
            dtr_alloc.measure().__enter__()
        assert dtr_alloc.evict(x)
        assert float(x[0, 0]) > 2
        session.check()
    with dtr_alloc.rematerialize("1MiB"):
        pass


@pytest.mark.parametrize("make", [dtr_alloc.measure, lambda: dtr_alloc.rematerialize("1MiB")])
def test_a_scope_is_used_once(make: Callable[[], Any]) -> None:
    scope = make()
    for _ in range(2):
        with ExitStack() as stack:
            stack.enter_context(make())
            with pytest.raises(RuntimeError, match="do not nest"):
                scope.__enter__()
    with scope, pytest.raises(RuntimeError, match="a scope is used once"):
        scope.__enter__()
    with pytest.raises(RuntimeError, match=r"call rematerialize\(\) or measure\(\) again"):
        scope.__enter__()
    with pytest.raises(RuntimeError, match="was not entered"):
        make().__exit__(None, None, None)


def test_a_scope_decorates_a_function_that_is_called_repeatedly() -> None:
    scope = dtr_alloc.rematerialize("1MiB")

    @scope
    def evicts(power: int) -> bool:
        """Whether."""
        return dtr_alloc.evict(torch.ones(256, 64).pow(power))

    assert [evicts(1), evicts(power=2)] == [True, True]
    assert (evicts.__name__, evicts.__doc__) == ("evicts", "Whether.")
    with scope:
        pass
    assert evicts(3)


def test_the_summary_names_time_and_memory() -> None:
    with dtr_alloc.rematerialize("1MiB") as session:
        chain(64)
    text = session.summary()
    for word in ("evictions", "peak", "budget 1 MiB", "recomputing", "finding memory"):
        assert word in text


# ---- Found by review -----------------------------------------------------------------------------


def test_running_out_of_memory_while_a_random_operator_is_recomputed_raises() -> None:
    for allocation in range(1, 6):
        with scope(None) as session:
            x = torch.randn(10_000)
            want = bits(x)
            dtr_alloc.evict(x)
            session._core.fail_allocation(allocation)
            try:
                dtr_alloc.materialize(x)
            except torch.OutOfMemoryError:
                assert dtr_alloc.is_evicted(x)
            session._core.fail_allocation(0)
            assert same(bits(x), want)


def test_a_scope_that_could_not_commit_leaves_the_next_one_sound() -> None:
    kept: list[object] = []
    acts: list[Tensor] = []

    def overfill() -> None:
        with dtr_alloc.rematerialize("8MiB"):
            x = torch.randn(256, 1024)
            acts.extend((x + i).exp() for i in range(4))
            del x
            kept.extend(torch.empty(256, 1024).numpy() for _ in range(9))

    with pytest.raises(torch.OutOfMemoryError):
        overfill()
    kept.clear()
    acts.clear()
    gc.collect()
    with dtr_alloc.rematerialize("64MiB") as session:
        tensors = chain(4)
        session.check()
        assert len(tensors) == 4


def test_a_backward_pass_that_broke_off_keeps_no_scope_open() -> None:
    kept: list[object] = []

    def refuse(gradient: Tensor) -> Tensor:
        kept.extend(torch.empty(256, 1024).numpy() for _ in range(9))
        return gradient

    def overfill() -> None:
        with dtr_alloc.rematerialize("8MiB"):
            x = torch.randn(256, 1024, requires_grad=True)
            first, second = (x + 1).exp(), (x + 2).exp().exp()
            second.register_hook(refuse)  # type: ignore[no-untyped-call]  # Runs while the first branch waits for its turn.
            dtr_alloc.evict(first)
            (first.sum() + second.sum()).backward()  # type: ignore[no-untyped-call]

    with pytest.raises(torch.OutOfMemoryError):
        overfill()
    kept.clear()
    gc.collect()
    with dtr_alloc.rematerialize("64MiB") as session:
        assert len(chain(4)) == 4
        session.check()


def test_batch_norm_in_eval_mode_holds_on_to_no_batch() -> None:
    with dtr_alloc.rematerialize("16MiB") as session, torch.no_grad():
        norm = nn.BatchNorm2d(64).eval()
        for _ in range(100):
            x = torch.empty(16, 64, 8, 8)
            x.numpy()[:] = 1
            norm(x)
        del x
        assert session.stats().live_bytes < MIB


def test_an_optimizer_step_that_raises_does_not_stop_the_recording() -> None:
    class Broken(torch.optim.SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            raise ValueError("broken")

    weight = nn.Parameter(torch.randn(1000))
    with scope(None):
        with pytest.raises(ValueError, match="broken"):
            Broken([weight], lr=0.1).step()
        (weight * 2).sum()
        with torch.no_grad():
            y = torch.randn(1000).exp()
        assert dtr_alloc.evict(y)


@pytest.mark.parametrize("by_name", [False, True])
def test_a_step_is_not_recorded_but_its_closure_is(by_name: bool) -> None:
    made = {}

    class Optimizer(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            with torch.enable_grad():
                result = closure()
            made["state"] = torch.ones(1000).exp()
            return result

    def closure() -> Tensor:
        with torch.no_grad():
            made["evaluated"] = torch.ones(1000).exp()
        return (weight * 2).sum()

    weight = nn.Parameter(torch.randn(1000))
    with scope(None):
        optimizer = Optimizer([weight], lr=0.1)
        loss = optimizer.step(closure=closure) if by_name else optimizer.step(closure)
        made["after"] = torch.ones(1000).exp()
        assert loss.item() == (weight * 2).sum().item()
        assert {name: dtr_alloc.evict(tensor) for name, tensor in made.items()} == {
            "evaluated": True,
            "state": False,
            "after": True,
        }


def test_banishing_keeps_what_readers_read_when_an_argument_becomes_constant() -> None:
    x = torch.randn(64, 64)
    with dtr_alloc.rematerialize("4MiB", policy="banish"):
        a = x.exp()
        b = a * 2
        c = b + 3
        dtr_alloc.evict(c)
        dtr_alloc.evict(b)
        del a
        b.add_(100)
        assert torch.equal(c, x.exp() * 2 + 3)


def test_recipes_keep_what_they_read_of_a_constant_whose_memory_is_handed_out() -> None:
    weight = torch.ones(64, 64)
    with dtr_alloc.rematerialize("4MiB"):
        y = weight.exp()
        weight.numpy()[:] = 5
        dtr_alloc.evict(y)
        assert torch.equal(y, torch.ones(64, 64).exp())


def test_a_step_that_raised_is_over_at_the_next_operator_with_gradients() -> None:
    class Raising(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            raise RuntimeError("no step")

    weight = torch.ones(8, requires_grad=True)
    with dtr_alloc.rematerialize("16MiB"):
        with pytest.raises(RuntimeError, match="no step"):
            Raising([weight], lr=0.1).step()
        assert weight[0].item() == 1
        with torch.no_grad():
            evaluated = torch.ones(1000).exp()
        assert dtr_alloc.evict(evaluated)
