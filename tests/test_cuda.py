"""`dtr_alloc.allocator`: what it says where it cannot serve, and all of torch's interface over the
fake driver where torch has CUDA.

The allocator is for a whole process and for good, so each program runs in one of its own. No GPU is
there: torch refuses its tensors, but its statistics, snapshot and the requests of other libraries
go through.
"""

import json
import os
import pickle
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import dtr_alloc
from dtr_alloc import _core

with_cuda = pytest.mark.skipif(
    not hasattr(_core, "CudaAllocator"), reason="torch or this build has no CUDA"
)
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")

PRELUDE = """
import json, torch, dtr_alloc
from dtr_alloc import _core
MIB = 1 << 20
def swap(budget="64MiB", **options):
    allocator = dtr_alloc.allocator(budget, **options)
    torch.cuda.memory.change_current_allocator(allocator)
    return allocator
def refused(call):
    try:
        call()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return None
"""


def tell(program: str, driver: str = "") -> Any:
    """What the program printed last, as JSON."""
    env = dict(os.environ, DTR_ALLOC_LIBCUDA=driver)
    text = PRELUDE + textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", text],
        capture_output=True,
        text=True,
        env=env,
        cwd=tempfile.gettempdir(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.skipif(torch.version.cuda is not None, reason="torch has CUDA")
def test_a_torch_without_cuda_is_told_what_is_missing() -> None:
    with pytest.raises(RuntimeError) as caught:
        dtr_alloc.allocator("8GiB")
    text = str(caught.value)
    assert f"torch {torch.__version__} is built without CUDA" in text
    assert "install a CUDA build of torch and build dtr_alloc again" in text
    assert """rematerialize('8GiB', device="cpu")""" in text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"budget": "8"}, 'budget "8" is not a size'),
        ({"budget": 0}, "budget 0 is not above zero"),
        ({"budget": "1GiB", "device": "cpu"}, 'device "cpu" is not a CUDA device'),
        ({"budget": "1GiB", "device": -1}, "device -1 is not the number of a CUDA device"),
        ({"budget": "1GiB", "heuristic": "best"}, "best"),
        ({"budget": "1GiB", "thrash_limit": -1}, "thrash_limit is -1"),
        ({"budget": "1GiB", "scorer": "gpu"}, "scorer 'gpu' is not one of"),
    ],
)
def test_an_argument_that_is_not_understood_changes_nothing(
    arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        dtr_alloc.allocator(**arguments)
    with dtr_alloc.rematerialize("1MiB"):
        pass


@with_cuda
@without_gpu
def test_without_a_gpu_torch_accepts_it_and_a_tensor_is_refused_cleanly() -> None:
    name, before, after = tell(
        """
        swap()
        name = _core.current_cuda_allocator()
        before = torch._C._cuda_memoryStats(0)["allocated_bytes"]["all"]["current"]
        print(json.dumps([name, before, refused(lambda: torch.empty(8, device="cuda"))]))
        """
    )
    assert (name, before) == ("dtr_alloc", 0)
    assert after[0] == "RuntimeError"
    assert "NVIDIA driver" in after[1]


@with_cuda
@without_gpu
def test_without_a_driver_a_request_says_what_is_missing() -> None:
    kind, text = tell(
        """
        allocator = swap()
        print(json.dumps(refused(lambda: allocator.allocate(512))))
        """
    )
    assert kind == "RuntimeError"
    assert "no CUDA driver: libcuda.so.1 could not be opened" in text


@with_cuda
def test_it_is_refused_once_cuda_is_in_use() -> None:
    first, second = tell(
        """
        allocator = dtr_alloc.allocator("64MiB", rematerialize=False)
        _core.cuda_allocator_in_use = lambda: True
        print(json.dumps([refused(allocator.allocator), refused(lambda: swap("1GiB"))]))
        """
    )
    for kind, text in (first, second):
        assert kind == "RuntimeError"
        assert "it is too late to change the CUDA allocator" in text
        assert "directly after the imports" in text


@with_cuda
def test_there_is_one_session_in_a_process(fake_driver: str) -> None:
    again, scope = tell(
        """
        swap()
        print(json.dumps([
            refused(lambda: dtr_alloc.allocator("1GiB")),
            refused(lambda: dtr_alloc.rematerialize("1MiB").__enter__()),
        ]))
        """,
        fake_driver,
    )
    assert "call dtr_alloc.allocator() once" in again[1]
    assert "serves this process already" in scope[1]


@with_cuda
@pytest.mark.parametrize("rematerialize", [True, False])
def test_statistics_are_those_of_the_pool(fake_driver: str, rematerialize: bool) -> None:
    stats = tell(
        f"""
        allocator = swap(rematerialize={rematerialize})
        a, b = allocator.allocate(3 * MIB), allocator.allocate(100)
        allocator.free(a)
        allocator.allocate(MIB)
        stats = torch._C._cuda_memoryStats(0)
        torch._C._cuda_resetPeakMemoryStats(0)
        torch._C._cuda_resetAccumulatedMemoryStats(0)
        stats["later"] = torch._C._cuda_memoryStats(0)["allocated_bytes"]["all"]
        allocator._core.check(0)
        print(json.dumps(stats))
        """,
        fake_driver,
    )
    mib = 1 << 20
    whole = stats["allocated_bytes"]["all"]
    assert whole == {
        "current": mib + 512,
        "peak": 3 * mib + 512,
        "allocated": 4 * mib + 512,
        "freed": 3 * mib,
    }
    assert stats["active_bytes"]["all"] == stats["allocated_bytes"]["large_pool"] == whole
    assert stats["allocation"]["all"] == {"current": 2, "peak": 2, "allocated": 3, "freed": 1}
    assert stats["reserved_bytes"]["all"]["current"] == 4 * mib
    assert stats["inactive_split_bytes"]["all"]["current"] == 3 * mib - 512
    assert stats["num_ooms"] == 0
    assert stats["later"] == {"current": mib + 512, "peak": mib + 512, "allocated": 0, "freed": 0}


@with_cuda
def test_a_snapshot_has_every_block_and_opens_in_the_visualiser(
    fake_driver: str, tmp_path: Path
) -> None:
    path = tmp_path / "snapshot.pickle"
    addresses = tell(
        f"""
        import pickle
        allocator = swap()
        a, b, c = (allocator.allocate(n * MIB) for n in (1, 2, 5))
        allocator.free(b)
        with open({str(path)!r}, "wb") as file:
            pickle.dump(torch.cuda.memory._snapshot(), file)
        from torch.cuda import _memory_viz as viz
        snapshot = torch.cuda.memory._snapshot()
        assert "<html>" in viz.segment_plot(snapshot) or len(viz.segment_plot(snapshot)) > 1000
        assert torch.cuda.memory_snapshot() == snapshot["segments"]
        print(json.dumps([a, c]))
        """,
        fake_driver,
    )
    snapshot = pickle.loads(path.read_bytes())
    mib = 1 << 20
    (segment,) = snapshot["segments"]
    assert segment["address"] == addresses[0]
    assert segment["total_size"] == 8 * mib
    assert segment["allocated_size"] == segment["active_size"] == 6 * mib
    blocks = [(b["address"], b["size"], b["state"]) for b in segment["blocks"]]
    assert blocks == [
        (addresses[0], mib, "active_allocated"),
        (addresses[0] + mib, 2 * mib, "inactive"),
        (addresses[1], 5 * mib, "active_allocated"),
    ]


@with_cuda
def test_an_out_of_memory_error_is_torchs_and_says_what_would_do(fake_driver: str) -> None:
    plain, served, stats = tell(
        """
        def fill(allocator):
            for _ in range(8):
                allocator.allocate(8 * MIB)
            return refused(lambda: allocator.allocate(MIB))
        plain = dtr_alloc.allocator("64MiB", rematerialize=False)
        served = swap()
        texts = [fill(plain), fill(served)]
        print(json.dumps([*texts, torch._C._cuda_memoryStats(0)["num_ooms"]]))
        """,
        fake_driver,
    )
    assert plain[0] == served[0] == "OutOfMemoryError"
    assert "budget of 67108864 bytes on CUDA device 0: 1048576 bytes asked, 0 free" in plain[1]
    assert "raise the budget to at least 68157440" in plain[1]
    assert "budget 64.00 MiB: 1.00 MiB asked, 0.00 KiB free, nothing left to evict" in served[1]
    assert "raise the budget to at least 65.00 MiB" in served[1]
    assert stats == 1


@with_cuda
def test_a_fraction_of_the_device_bounds_the_pool_below_its_budget(fake_driver: str) -> None:
    # The fake device has 4 GiB.
    before, small, large, committed = tell(
        """
        allocator = swap("64MiB")
        a = allocator.allocate(40 * MIB)
        allocator.free(a)
        torch._C._cuda_setMemoryFraction(32 / 4096, 0)
        committed = allocator._core.pool_stats(0).committed
        small = refused(lambda: allocator.allocate(33 * MIB))
        allocator.free(allocator.allocate(32 * MIB))
        fraction = torch._C._cuda_getMemoryFraction(0)
        torch._C._cuda_setMemoryFraction(1.0, 0)
        allocator.allocate(33 * MIB)
        allocator._core.check(0)
        print(json.dumps([fraction, small[0], torch._C._cuda_getMemoryFraction(0), committed]))
        """,
        fake_driver,
    )
    assert before == pytest.approx(32 / 4096)
    assert (small, large) == ("OutOfMemoryError", 1.0)
    assert committed == 32 << 20


@with_cuda
@pytest.mark.parametrize("scorer", ["auto", "host", "device"])
def test_victims_are_chosen_where_it_was_said(fake_driver: str, scorer: str) -> None:
    """At the first request; the fake driver's kernel is far slower than the host."""
    scores_from = tell(
        f"""
        allocator = swap(scorer={scorer!r})
        allocator.free(allocator.allocate(512))
        print(json.dumps(allocator._core.session().stats().device_scores_from))
        """,
        fake_driver,
    )
    if scorer == "auto":
        assert scores_from == -1 or scores_from > 0
    else:
        assert scores_from == {"host": -1, "device": 0}[scorer]


@with_cuda
def test_empty_cache_gives_pages_back_and_zero_bytes_are_no_block(fake_driver: str) -> None:
    before, after, nothing = tell(
        """
        allocator = swap()
        allocator.free(allocator.allocate(8 * MIB))
        before = allocator._core.pool_stats(0).committed
        torch._C._cuda_emptyCache()
        after = allocator._core.pool_stats(0).committed
        print(json.dumps([before, after, allocator._core.allocate(0, 0, 0)]))
        """,
        fake_driver,
    )
    assert (before, after, nothing) == (8 << 20, 0, 0)


@with_cuda
def test_a_trace_of_the_device_is_recorded_once_it_has_memory(fake_driver: str) -> None:
    """No operator runs without a GPU, but memory comes and goes."""
    early, instructions, again = tell(
        """
        allocator = swap()
        early = refused(lambda: dtr_alloc.record_trace().__enter__())
        allocator.free(allocator.allocate(4 * MIB))
        with dtr_alloc.record_trace() as recording:
            for _ in range(3):
                allocator.free(allocator.allocate(4 * MIB))
            again = refused(lambda: dtr_alloc.record_trace().__enter__())
        told = [[type(item).__name__, item.name] for item in recording.trace.instructions[1:]]
        print(json.dumps([early, told, again]))
        """,
        fake_driver,
    )
    assert early[0] == again[0] == "RuntimeError"
    assert "no memory of it was asked for yet" in early[1]
    assert "a trace is being recorded" in again[1]
    assert instructions == [
        [kind, f"x{number}"] for number in (1, 2, 3) for kind in ("Constant", "Release")
    ]


@with_cuda
@pytest.mark.parametrize("rematerialize", [True, False])
def test_memory_is_made_for_what_was_asked(fake_driver: str, rematerialize: bool) -> None:
    counts = tell(
        f"""
        import ctypes, os
        driver = ctypes.CDLL(os.environ["DTR_ALLOC_LIBCUDA"])
        allocator = swap(rematerialize={rematerialize}, rdma=True, exportable=True)
        allocator.allocate(4 * MIB)
        allocator.allocate(4 * MIB, device=1)
        print(json.dumps([driver.fakecuda_count(what) for what in (b"rdma", b"exportable")]))
        """,
        fake_driver,
    )
    assert counts == [4, 4]


@with_cuda
def test_a_device_that_makes_no_such_memory_says_so_at_the_first_request(fake_driver: str) -> None:
    error, later = tell(
        """
        import ctypes, os
        ctypes.CDLL(os.environ["DTR_ALLOC_LIBCUDA"]).fakecuda_lacks(110)
        allocator = swap(rdma=True)
        error = refused(lambda: allocator.allocate(4 * MIB))
        reserved = torch._C._cuda_memoryStats(0)["reserved_bytes"]
        print(json.dumps([error, reserved["all"]["current"]]))
        """,
        fake_driver,
    )
    assert error[0] == "RuntimeError"
    assert "CUDA device 0 makes no pages that a network card can reach" in error[1]
    assert later == 0


@with_cuda
def test_within_an_operator_empty_cache_gives_nothing_back(fake_driver: str) -> None:
    """There it is cuDNN's benchmark that calls it, after each new shape."""
    within, after = tell(
        """
        allocator = swap()
        allocator.free(allocator.allocate(8 * MIB))
        committed = lambda: allocator._core.pool_stats(0).committed
        found = []
        @torch.library.custom_op("dtr_test_cuda::tries", mutates_args=())
        def tries(x: torch.Tensor) -> torch.Tensor:
            torch._C._cuda_emptyCache()
            found.append(committed())
            return x + 1
        tries(torch.ones(4))
        torch._C._cuda_emptyCache()
        print(json.dumps([*found, committed()]))
        """,
        fake_driver,
    )
    assert (within, after) == (8 << 20, 0)


@with_cuda
def test_the_budget_can_change_and_free_pages_go_back_during_a_capture_too(
    fake_driver: str,
) -> None:
    given, budget, error, refusal = tell(
        """
        allocator = swap(rematerialize=True)
        kept, freed = allocator.allocate(8 * MIB), allocator.allocate(6 * MIB)
        allocator.free(freed)
        session = allocator.session
        allocator._core.begin_capture(0, 7, [])
        given = session.release()
        allocator._core.end_capture(0, 7)
        session.resize("8MiB")
        budget = session.stats().budget_bytes
        error, _ = refused(lambda: allocator.allocate(MIB))
        _, refusal = refused(lambda: session.resize("4MiB"))
        session.resize("64MiB")
        allocator.allocate(MIB)
        print(json.dumps([given, budget, error, refusal]))
        """,
        fake_driver,
    )
    assert (given, budget, error) == (6 << 20, 8 << 20, "OutOfMemoryError")
    assert "resize it to at least 8.00 MiB" in refusal


@with_cuda
def test_torch_accelerator_tells_the_same_as_torch_cuda(fake_driver: str) -> None:
    asked, told = tell(
        """
        allocator = swap()
        allocator._core.init()  # As torch does once it has found a device.
        allocator.allocate(3 * MIB)
        print(json.dumps([torch._C._cuda_memoryStats(0), torch._C._accelerator_getDeviceStats(0)]))
        """,
        fake_driver,
    )
    assert told["allocated_bytes"] == asked["allocated_bytes"]
    assert told["allocated_bytes"]["all"]["current"] == 3 << 20


@with_cuda
def test_cudnns_benchmark_is_told_the_largest_hole(fake_driver: str) -> None:
    before, after = tell(
        """
        allocator = swap()
        before = allocator._core.largest_cached(0)
        allocator.allocate(24 * MIB)
        print(json.dumps([before, allocator._core.largest_cached(0)]))
        """,
        fake_driver,
    )
    assert (before, after) == (64 << 20, 40 << 20)


@with_cuda
def test_memory_of_a_graph_is_used_by_nobody_else_until_the_graph_is_gone(
    fake_driver: str,
) -> None:
    seen = tell(
        """
        allocator = swap()
        core = allocator._core
        ordinary = allocator.allocate(MIB)
        core.begin_capture(0, 7, [0])
        a = allocator.allocate(4 * MIB)
        allocator.free(a)
        reused = allocator.allocate(4 * MIB) == a  # By the same capture, on the same stream.
        kept = allocator.allocate(2 * MIB)
        allocator.free(a)
        allocator.free(ordinary)  # Freed in a capture: out of use until it ends.
        quarantined = core.pool_stats(0).quarantined
        core.end_capture(0, 7)
        others = [allocator.allocate(4 * MIB) for _ in range(4)]
        live = core.live_in_pool(0, 7, [kept]), core.live_in_pool(0, 7, [kept, a])
        uses = core.pool_uses(0, 7)
        before = core.pool_stats(0).live
        core.release_pool(0, 7)
        given_back = before - core.pool_stats(0).live
        core.check(0)
        print(json.dumps([reused, quarantined, a in others, live, uses, core.pool_uses(0, 7),
                          given_back]))
        """,
        fake_driver,
    )
    assert seen == [True, 1 << 20, False, [True, False], 1, 0, 4 << 20]


@with_cuda
def test_a_block_that_branches_of_a_capture_share_is_not_used_again_in_it(fake_driver: str) -> None:
    seen = tell(
        """
        allocator = swap()
        core = allocator._core
        core.begin_capture(0, 7, [0])
        a = allocator.allocate(4 * MIB)
        if refusal := refused(lambda: core.record_stream(0, a, 4712)):
            print(json.dumps(refusal))
            raise SystemExit
        allocator.free(a)
        again = allocator.allocate(4 * MIB)
        core.end_capture(0, 7)
        core.release_pool(0, 7)
        core.check(0)
        left = core.pool_stats(0).live
        allocator.free(again)
        print(json.dumps([again != a, left]))
        """,
        fake_driver,
    )
    if "insufficient" in str(seen):
        pytest.skip("this torch asks CUDA's runtime about a stream that is not its own")
    assert seen == [True, 4 << 20]


@with_cuda
def test_streams_outside_a_capture_keep_to_ordinary_memory(fake_driver: str) -> None:
    shared, error = tell(
        """
        allocator = swap()
        core = allocator._core
        core.begin_capture(0, 7, [])
        a = allocator.allocate(MIB)
        live = core.live_in_pool(0, 7, [a])
        core.end_capture(0, 7)
        print(json.dumps([live, refused(lambda: core.end_capture(0, 7))]))
        """,
        fake_driver,
    )
    assert shared is False
    assert "no capture into this memory pool is under way" in error[1]


@with_cuda
def test_what_is_not_served_is_refused_with_a_remedy(fake_driver: str) -> None:
    texts = tell(
        """
        allocator = swap()
        core = allocator._core
        print(json.dumps([refused(call)[1] for call in (
            core.checkpoint, core.share, core.open_shared, core.enable_peer,
            core.record_history,
        )]))
        """,
        fake_driver,
    )
    remedies = ('mode="default"', "tensor.cpu()", "tensor.cpu()", "tensor.cpu().to(", "_snapshot()")
    for text, remedy in zip(texts, remedies, strict=True):
        assert remedy in text


@with_cuda
def test_a_wrong_free_is_an_error(fake_driver: str) -> None:
    twice, foreign = tell(
        """
        allocator = swap()
        a = allocator.allocate(512)
        allocator.free(a)
        print(json.dumps([refused(lambda: allocator.free(a)), refused(lambda: allocator.free(64))]))
        """,
        fake_driver,
    )
    assert "it was freed before" in twice[1]
    assert "memory that is not its own" in foreign[1]


@with_cuda
def test_cpu_work_under_the_cuda_allocator_is_as_ever(fake_driver: str) -> None:
    same, recorded = tell(
        """
        torch.manual_seed(0)
        layer = torch.nn.Linear(32, 32)
        x = torch.randn(64, 32)
        def grad():
            layer.weight.grad = None
            torch.manual_seed(1)
            torch.nn.functional.dropout(layer(x).relu(), 0.5).sum().backward()
            return layer.weight.grad.clone()
        expected = grad()
        allocator = swap()
        allocator.allocate(512)
        found = grad()
        torch.optim.SGD(layer.parameters(), 0.1).step()
        x.numpy()
        print(json.dumps([torch.equal(expected, found), allocator.session.stats().records]))
        """,
        fake_driver,
    )
    assert (same, recorded) == (True, 0)
