"""A recomputation sees the switches of torch that its operator saw: those of the process, and those
of the thread. The program sees none of that."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import dtr_alloc
from dtr_alloc import _core
from tests.support.exactness import exact, scope
from tests.support.threads import in_threads

Switch = Callable[[], contextlib.AbstractContextManager[object]]


@contextlib.contextmanager
def setting(get: Callable[[], Any], put: Callable[[Any], object], value: Any) -> Iterator[None]:
    before = get()
    put(value)
    try:
        yield
    finally:
        put(before)


@pytest.fixture(autouse=True)
def number_of_threads() -> Iterator[None]:
    """The number of new threads is what was set last, by whichever thread."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def without_onednn() -> contextlib.AbstractContextManager[object]:
    """As `torch.backends.mkldnn.flags(enabled=False)`, which warns where torch has no Intel GPU."""
    return setting(torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled, False)


def in_float64() -> contextlib.AbstractContextManager[object]:
    return setting(torch.get_default_dtype, torch.set_default_dtype, torch.float64)


def in_threads_of(count: int) -> contextlib.AbstractContextManager[object]:
    return setting(torch.get_num_threads, torch.set_num_threads, count)


def flushing() -> contextlib.AbstractContextManager[object]:
    return setting(lambda: False, torch.set_flush_denormal, True)


def randn(*shape: int, kind: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape).to(kind)


COMPUTED: dict[str, tuple[Switch, Callable[[], Tensor]]] = {
    "conv1d": (without_onednn, lambda: F.conv1d(randn(4, 8, 99), randn(8, 8, 3))),
    "conv2d": (without_onednn, lambda: F.conv2d(randn(4, 8, 32, 32), randn(8, 8, 3, 3))),
    "conv3d": (without_onednn, lambda: F.conv3d(randn(2, 8, 8, 8, 8), randn(8, 8, 3, 3, 3))),
    "transposed": (
        without_onednn,
        lambda: F.conv_transpose2d(randn(2, 8, 16, 16), randn(8, 8, 3, 3)),
    ),
    "depthwise": (
        without_onednn,
        lambda: F.conv2d(randn(2, 8, 32, 32), randn(8, 1, 3, 3), groups=8),
    ),
    "gelu": (without_onednn, lambda: F.gelu(randn(9000))),
    "bmm in bfloat16": (
        without_onednn,
        lambda: torch.bmm(
            randn(4, 64, 512, kind=torch.bfloat16), randn(4, 512, 64, kind=torch.bfloat16)
        ),
    ),
    "whole numbers divided": (in_float64, lambda: torch.arange(20000) / 7),
    "linspace": (in_float64, lambda: torch.linspace(0, 1, 9000)),
    "root of whole numbers": (in_float64, lambda: torch.arange(20000).sqrt()),
    "sum by two threads": (lambda: in_threads_of(2), lambda: randn(1_000_025).sum(0, True) * 1.0),
    "mish by two threads": (lambda: in_threads_of(2), lambda: F.mish(randn(1_000_025))),
    "denormal numbers": (flushing, lambda: torch.full((1000,), 1e-20) * 1e-20),
}


@pytest.mark.parametrize("name", COMPUTED)
@exact
def test_what_was_computed_by_other_switches_is_recomputed_by_them(name: str) -> Iterator[Tensor]:
    switch, compute = COMPUTED[name]
    with in_threads_of(1):
        with switch():
            made = compute()
            grown = torch.cat([made.flatten(), made.flatten()])
        yield grown
        plain = compute()
        dtr_alloc.evict(made)
        yield made
        yield plain


def precision(operator: str) -> tuple[Callable[[], str], Callable[[str], object]]:
    return (
        lambda: torch._C._get_fp32_precision_getter("mkldnn", operator),
        lambda to: torch._C._set_fp32_precision_setter("mkldnn", operator, to),
    )


OF_TORCH = {  # Whose functions are called alike, and what each is set to.
    "mkldnn_enabled": False,
    "mkldnn_deterministic": True,
    "nnpack_enabled": False,
    "cudnn_enabled": False,
    "cudnn_benchmark": True,
    "cudnn_deterministic": True,
    "cublas_allow_fp16_accumulation": True,
    "math_sdp_allow_fp16_bf16_reduction": True,
    "sdp_priority_order": [2, 1, 0, 3, 4],
    "sm_carveout_experimental": 20,
    "float32_matmul_precision": "medium",
}
SINCE_2_15 = {"native_aot_enabled": False, "native_aot_unconditional_masked": True}
OF_TORCH |= {name: to for name, to in SINCE_2_15.items() if hasattr(torch._C, f"_set_{name}")}
FILLS = torch.utils.deterministic, "fill_uninitialized_memory"
SWITCHES: list[tuple[Callable[[], Any], Callable[[Any], object], Any]] = [
    (torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    (
        torch.are_deterministic_algorithms_enabled,
        lambda on: torch.use_deterministic_algorithms(on, warn_only=on),
        True,
    ),
    (partial(getattr, *FILLS), partial(setattr, *FILLS), False),
    *(
        (getattr(torch._C, f"_get_{name}"), getattr(torch._C, f"_set_{name}"), other)
        for name, other in OF_TORCH.items()
    ),
    *(
        (
            getattr(torch._C, f"_get_{kernel}_sdp_enabled"),
            getattr(torch._C, f"_set_sdp_use_{kernel}"),
            kernel == "fa4",
        )
        for kernel in ("flash", "math", "mem_efficient", "cudnn", "overrideable", "fa4")
        if hasattr(torch._C, f"_set_sdp_use_{kernel}")
    ),
    (
        torch._C._get_cublas_allow_fp16_reduced_precision_reduction,
        lambda to: torch._C._set_cublas_allow_fp16_reduced_precision_reduction(*to),
        (False, True),
    ),
    (
        torch._C._get_cublas_allow_bf16_reduced_precision_reduction,
        lambda to: torch._C._set_cublas_allow_bf16_reduced_precision_reduction(*to),
        (False, False),
    ),
    (*precision("rnn"), "ieee"),
    (torch.get_num_threads, torch.set_num_threads, 2),
]


def flags() -> list[object]:
    """What the program sees of the switches, and of what they switch besides."""
    return [
        *(get() for get, _, _ in SWITCHES),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch._C._get_qengine(),
        *(
            torch._C._get_fp32_precision_getter(backend, operator)
            for backend in ("mkldnn", "cuda")
            for operator in ("all", "conv", "rnn", "matmul")
        ),
        torch._C._get_fp32_precision_getter("generic", "all"),
    ]


SHOWN: list[list[object]] = []


@torch.library.custom_op("dtr_switches::shows", mutates_args=())
def shows(x: Tensor) -> Tensor:
    SHOWN.append(flags())
    return x.clone()


def test_a_recomputation_sees_every_switch_as_its_operator_did_and_the_program_as_it_was_set() -> (
    None
):
    torch.set_num_threads(1)
    SHOWN.clear()
    x = torch.ones(1000)
    before = flags()
    with contextlib.ExitStack() as others, dtr_alloc.rematerialize("64MiB"):
        plain = shows(x)
        for switch in SWITCHES:
            others.enter_context(setting(*switch))
        flipped = shows(x)
        after = flags()
        for made in (plain, flipped, plain):
            assert dtr_alloc.evict(made)
            made.sum()
            assert flags() == after
    assert before != after
    assert [shown == before for shown in SHOWN] == [True, False, True, False, True]
    assert [shown == after for shown in SHOWN] == [False, True, False, True, False]


def test_a_precision_that_changes_alone_is_seen() -> None:
    """It lies beside torch's context, in a table."""
    SHOWN.clear()
    x, before = torch.ones(1000), flags()
    with dtr_alloc.rematerialize("64MiB"):
        plain = shows(x)
        with setting(*precision("conv"), "ieee"):
            other = shows(x)
        for made in (plain, other):
            assert dtr_alloc.evict(made)
            made.sum()
            assert flags() == before
    assert [shown == before for shown in SHOWN] == [True, False, True, False]


def test_a_switch_that_cannot_be_put_is_named_when_it_is_needed_and_nothing_has_changed() -> None:
    name = "torch.backends.mkldnn.enabled"
    assert name in _core.switches()
    x, weight = torch.randn(2, 8, 32, 32), torch.randn(8, 8, 3, 3)
    try:
        with scope("64MiB"):
            with without_onednn(), in_float64():
                made = F.conv2d(x, weight)
            kept = made.clone()
            dtr_alloc.evict(made)
            _core.refuse_switch(name)
            with pytest.raises(RuntimeError, match=rf"{name} cannot be set"):
                made.sum()
            assert torch.get_default_dtype() == torch.float32
            assert torch._C._get_mkldnn_enabled()
            _core.refuse_switch("")
            assert torch.equal(made, kept)
    finally:
        _core.refuse_switch("")


def test_the_number_of_a_threads_first_operator_counts_where_that_writes_in_place() -> None:
    """It is known only once the operator has run: a thread has none before."""
    torch.set_num_threads(1)
    x = randn(1_000_025)
    expected = F.mish(x + 0, inplace=True)
    with dtr_alloc.rematerialize("64MiB"):
        written = x + 0
        in_threads(lambda: F.mish(written, inplace=True))
        assert dtr_alloc.evict(written)
        assert torch.equal(written, expected)


def test_each_thread_is_recomputed_by_its_own_number_and_control_word() -> None:
    """Whoever reads: a thread whose own differ computes as the one did that it reads from."""
    x, tiny = torch.randn(1_000_025), torch.full((1000,), 1e-20)
    made: dict[str, Tensor] = {}
    wanted: dict[str, Tensor] = {}
    turn, one_at_a_time = threading.Barrier(2), threading.Lock()

    def work(name: str, other: str, count: int, flush: bool) -> Callable[[], None]:
        def job() -> None:
            with one_at_a_time:  # A thread keeps its number from its first parallel operator on.
                torch.set_num_threads(count)
                assert torch.get_num_threads() == count
            torch.set_flush_denormal(flush)
            turn.wait()
            made[name] = torch.cat([F.mish(x), tiny * 1e-20])
            wanted[name] = made[name].clone()
            dtr_alloc.pin(wanted[name])
            turn.wait()
            for _ in range(3):
                dtr_alloc.evict(made[other])
                assert torch.equal(made[other], wanted[other])
                assert torch.get_num_threads() == count
                assert bool((tiny * 1e-20).sum() == 0) == flush

        return job

    with dtr_alloc.rematerialize("256MiB"):
        in_threads(work("a", "b", 1, True), work("b", "a", 2, False))
    assert not torch.equal(wanted["a"], wanted["b"])


def test_a_replay_leaves_nothing_in_the_cache_of_autocast() -> None:
    weight = torch.randn(128, 128, requires_grad=True)

    @torch.library.custom_op("dtr_alloc_test::casts", mutates_args=())
    def casts(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, weight).float()

    casts.register_fake(torch.empty_like)
    with scope(None, recordable=["dtr_alloc_test::casts"]) as session, torch.no_grad():
        x = torch.randn(128, 128).exp()
        with torch.autocast("cpu"):
            y = casts(x)
        assert dtr_alloc.evict(y)
        y.sum()
        before = session.stats().live_bytes
        torch.clear_autocast_cache()
        assert session.stats().live_bytes == before
        assert session.stats().rematerializations == 1
