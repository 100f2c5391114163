"""`dtr_alloc.allocator`: what it takes, what it refuses, and what it says where it cannot serve."""

import re
from typing import Any

import pytest
import torch

import dtr_alloc
from tests.fake_cuda.driver import FakeCuda
from tests.support.swapped_allocator import tell, with_cuda, without_gpu


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
        ({}, 'budget None with memory="pool": the pool needs a size'),
        ({"swap": "1GiB", "memory": "torch"}, 'swap with memory="torch"'),
        ({"budget": "1GiB", "device": "cpu"}, 'device "cpu" is not a CUDA device'),
        ({"budget": "1GiB", "device": -1}, "device -1 is not the number of a CUDA device"),
        ({"budget": "1GiB", "scorer": "gpu"}, "scorer 'gpu' is not one of .auto., .host."),
        ({"budget": "1GiB", "swap": 0}, "swap 0 is not above zero"),
        ({"budget": "1GiB", "swap": "15TiB"}, "would page-lock more than this machine can spare"),
        ({"budget": "1GiB", "swap": "1GiB", "rematerialize": False}, "swap goes with rematerial"),
    ],
)
def test_a_wrong_argument_changes_nothing(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        dtr_alloc.allocator(**arguments)
    with dtr_alloc.rematerialize("1MiB"):
        pass


@with_cuda
@without_gpu
def test_without_a_gpu_torch_accepts_it_and_a_tensor_is_refused_cleanly() -> None:
    name, before, by_torch, by_us = tell(
        """
        os.environ["DTR_ALLOC_LIBCUDA"] = ""
        allocator = swap()
        name = _core.current_cuda_allocator()
        before = torch._C._cuda_memoryStats(0)["allocated_bytes"]["all"]["current"]
        by_torch = refused(lambda: torch.empty(8, device="cuda"))
        print(json.dumps([name, before, by_torch, refused(lambda: allocator.allocate(512))]))
        """
    )
    assert (name, before) == ("dtr_alloc", 0)
    assert by_torch[0] == by_us[0] == "RuntimeError"
    assert "NVIDIA driver" in by_torch[1]
    assert "no CUDA driver: libcuda.so.1 could not be opened" in by_us[1]


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
def test_memory_that_a_thread_takes_past_the_runtime_is_counted(cuda: FakeCuda) -> None:
    """Somebody has cleared the key's bit of the thread, as a fake mode in C++ does at its end."""
    before, after = tell(
        """
        allocator = swap()
        allocator.allocate(512)
        before = allocator.session.summary()
        key = torch._C.DispatchKey(_core.dispatch_key)
        torch._C._dispatch_tls_set_dispatch_key_included(key, False)
        allocator.allocate(1024)
        allocator.allocate(1024)
        print(json.dumps([before, allocator.session.summary()]))
        """
    )
    assert "unseen" not in before
    assert re.search("^unseen +2 KiB", after, re.MULTILINE)


@with_cuda
@pytest.mark.parametrize("scorer", ["auto", "host", "device"])
def test_victims_are_chosen_where_it_was_said(cuda: FakeCuda, scorer: str) -> None:
    """At the first request; the fake driver's kernel is far slower than the host."""
    scores_from = tell(
        f"""
        allocator = swap(scorer={scorer!r})
        allocator.free(allocator.allocate(512))
        print(json.dumps(allocator._core.session().stats().device_scores_from))
        """
    )
    if scorer == "auto":
        assert scores_from == -1 or scores_from > 0
    else:
        assert scores_from == {"host": -1, "device": 0}[scorer]


@with_cuda
def test_a_trace_of_the_device_is_recorded_once_it_has_memory(cuda: FakeCuda) -> None:
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
        """
    )
    assert early[0] == again[0] == "RuntimeError"
    assert "no memory of it was asked for yet" in early[1]
    assert "a trace is being recorded" in again[1]
    assert instructions == [
        [kind, f"x{number}"] for number in (1, 2, 3) for kind in ("Constant", "Release")
    ]


@with_cuda
@pytest.mark.parametrize("rematerialize", [True, False])
def test_memory_is_made_for_what_was_asked(cuda: FakeCuda, rematerialize: bool) -> None:
    counts = tell(
        f"""
        allocator = swap(rematerialize={rematerialize}, rdma=True, exportable=True)
        allocator.allocate(4 * MIB)
        allocator.allocate(4 * MIB, device=1)
        print(json.dumps([driver().fakecuda_count(what) for what in (b"rdma", b"exportable")]))
        """
    )
    assert counts == [4, 4]


@with_cuda
def test_a_device_that_makes_no_such_memory_says_so_at_the_first_request(cuda: FakeCuda) -> None:
    error, later = tell(
        """
        driver().fakecuda_lacks(110)
        allocator = swap(rdma=True)
        error = refused(lambda: allocator.allocate(4 * MIB))
        reserved = torch._C._cuda_memoryStats(0)["reserved_bytes"]
        print(json.dumps([error, reserved["all"]["current"]]))
        """
    )
    assert error[0] == "RuntimeError"
    assert "CUDA device 0 makes no pages that a network card can reach" in error[1]
    assert later == 0


@with_cuda
def test_a_swap_is_page_locked_at_the_first_request_or_refused(cuda: FakeCuda) -> None:
    before, locked, error = tell(
        """
        allocator = swap(swap=16 * MIB, scorer="host")  # The device's has its rows there, too.
        before = driver().fakecuda_count(b"registered")
        driver().fakecuda_fail(b"cuMemHostRegister_v2", ctypes.c_long(0), 2)
        error = refused(lambda: allocator.allocate(4 * MIB))
        allocator.allocate(4 * MIB)
        print(json.dumps([before, driver().fakecuda_count(b"registered"), error]))
        """
    )
    assert (before, locked) == (0, 1)
    assert error[0] == "RuntimeError"
    assert "swap of 16777216 bytes cannot be page-locked" in error[1]
    assert error[1].endswith("; ask for less")


@with_cuda
def test_what_is_not_served_is_refused_with_a_remedy(cuda: FakeCuda) -> None:
    """Nor a second session, another scope beside it, and a wrong free."""
    texts = tell(
        """
        allocator = swap()
        core, freed = allocator._core, allocator.allocate(512)
        allocator.free(freed)
        print(json.dumps([refused(call)[1] for call in (
            core.checkpoint, core.share, core.open_shared, core.enable_peer,
            core.record_history,
            lambda: dtr_alloc.allocator("1GiB"),
            lambda: dtr_alloc.rematerialize("1MiB").__enter__(),
            lambda: allocator.free(freed),
            lambda: allocator.free(64),
        )]))
        """
    )
    remedies = ('mode="default"', "tensor.cpu()", "tensor.cpu()", "tensor.cpu().to(", "_snapshot()")
    others = "call dtr_alloc.allocator() once", "serves this process already"
    frees = "it was freed before", "memory that is not its own"
    for text, told in zip(texts, (*remedies, *others, *frees), strict=True):
        assert told in text


@with_cuda
def test_cpu_work_under_the_cuda_allocator_is_as_ever(cuda: FakeCuda) -> None:
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
        """
    )
    assert (same, recorded) == (True, 0)
