"""A recomputation sees the switches of torch that its operator saw: those of the process, and those
of the thread. The program sees none of that."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import dtr_alloc
from dtr_alloc import _core
from tests.live.test_threads import in_threads
from tests.support.exactness import assert_exact, run, same, scope

Switch = Callable[[], contextlib.AbstractContextManager[object]]


@contextlib.contextmanager
def setting(get: Callable[[], Any], put: Callable[[Any], object], value: Any) -> Iterator[None]:
    before = get()
    put(value)
    try:
        yield
    finally:
        put(before)


def onednn(on: bool) -> contextlib.AbstractContextManager[object]:
    return setting(torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled, on)


@pytest.fixture(autouse=True)
def number_of_threads() -> Iterator[None]:
    """The number of new threads is what was set last, by whichever thread."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def without_onednn() -> contextlib.AbstractContextManager[object]:
    """As `torch.backends.mkldnn.flags(enabled=False)`, which warns where torch has no Intel GPU."""
    return onednn(False)


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
def test_what_was_computed_by_other_switches_is_recomputed_by_them(name: str) -> None:
    switch, compute = COMPUTED[name]

    def program() -> Iterator[Tensor]:
        with in_threads_of(1):
            with switch():
                made = compute()
                grown = torch.cat([made.flatten(), made.flatten()])
            yield grown
            plain = compute()
            dtr_alloc.evict(made)
            yield made
            yield plain

    assert_exact(program)


@pytest.mark.parametrize("memory", ["pool", "torch"])
def test_training_beside_layers_without_onednn_has_eagers_bits(memory: Any) -> None:
    def train() -> list[Tensor]:
        torch.manual_seed(0)
        layers = nn.ModuleList([nn.Conv3d(8, 8, 3, padding=1) for _ in range(6)])
        x = torch.randn(2, 8, 8, 16, 16)
        for i, layer in enumerate(layers):
            with onednn(i % 2 == 0):
                x = torch.tanh(layer(x))
        loss = x.square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return [loss, *(p.grad for p in layers.parameters() if p.grad is not None)]

    wanted = run(train)
    with dtr_alloc.measure() as session:
        run(train)
    budget = int(0.9 * session.stats().peak_bytes)
    with dtr_alloc.rematerialize(budget, memory=memory) as session:
        found = run(train)
    assert session.stats().rematerializations > 0
    assert all(map(same, wanted, found))


def flags() -> list[object]:
    """What the program sees of the switches that the next test sets."""
    return [
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        torch._C._get_mkldnn_enabled(),
        torch._C._get_mkldnn_deterministic(),
        torch._C._get_nnpack_enabled(),
        torch._C._get_qengine(),
        torch._C._get_cudnn_enabled(),
        torch._C._get_cudnn_benchmark(),
        torch._C._get_cudnn_deterministic(),
        torch._C._get_cublas_allow_fp16_accumulation(),
        torch._C._get_flash_sdp_enabled(),
        torch._C._get_math_sdp_enabled(),
        torch._C._get_mem_efficient_sdp_enabled(),
        torch._C._get_math_sdp_allow_fp16_bf16_reduction(),
        torch._C._get_sdp_priority_order(),
        torch._C._get_cudnn_sdp_enabled(),
        torch._C._get_overrideable_sdp_enabled(),
        torch._C._get_sm_carveout_experimental(),
        torch._C._get_cublas_allow_fp16_reduced_precision_reduction(),
        torch._C._get_cublas_allow_bf16_reduced_precision_reduction(),
        torch._C._get_float32_matmul_precision(),
        *(
            torch._C._get_fp32_precision_getter(backend, operator)
            for backend in ("mkldnn", "cuda")
            for operator in ("all", "conv", "rnn", "matmul")
        ),
        torch._C._get_fp32_precision_getter("generic", "all"),
        torch.get_num_threads(),
    ]


def flip_all() -> None:
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch._C._set_mkldnn_enabled(False)
    torch._C._set_mkldnn_deterministic(True)
    torch._C._set_nnpack_enabled(False)
    torch._C._set_cudnn_enabled(False)
    torch._C._set_cudnn_benchmark(True)
    torch._C._set_cudnn_deterministic(True)
    torch._C._set_cublas_allow_fp16_accumulation(True)
    torch._C._set_sdp_use_flash(False)
    torch._C._set_sdp_use_math(False)
    torch._C._set_sdp_use_mem_efficient(False)
    torch._C._set_math_sdp_allow_fp16_bf16_reduction(True)
    torch._C._set_sdp_priority_order([2, 1, 0, 3, 4])
    torch._C._set_sdp_use_cudnn(False)
    torch._C._set_sdp_use_overrideable(False)
    torch._C._set_sm_carveout_experimental(20)
    torch._C._set_cublas_allow_fp16_reduced_precision_reduction(False)
    torch._C._set_cublas_allow_bf16_reduced_precision_reduction(False, False)
    torch._C._set_float32_matmul_precision("medium")
    torch._C._set_fp32_precision_setter("mkldnn", "rnn", "ieee")
    torch.set_num_threads(2)


SHOWN: list[list[object]] = []


@torch.library.custom_op("dtr_switches::shows", mutates_args=())
def shows(x: Tensor) -> Tensor:
    """Notes the switches that it sees."""
    SHOWN.append(flags())
    return x.clone()


def test_a_recomputation_sees_every_switch_as_its_operator_did_and_the_program_as_it_was_set() -> (
    None
):
    torch.set_num_threads(1)
    SHOWN.clear()
    x = torch.ones(1000)
    code = torch.get_default_dtype()
    before = flags()
    try:
        with dtr_alloc.rematerialize("64MiB"):
            plain = shows(x)
            flip_all()
            flipped = shows(x)
            after = flags()
            for made in (plain, flipped, plain):
                assert dtr_alloc.evict(made)
                made.sum()
                assert flags() == after
    finally:
        torch.set_default_dtype(code)
        unflip()
    assert before != after
    assert [shown == before for shown in SHOWN] == [True, False, True, False, True]
    assert [shown == after for shown in SHOWN] == [False, True, False, True, False]


def unflip() -> None:
    """Torch's defaults. Those of CUDA's precisions cannot be set again from Python."""
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    torch._C._set_mkldnn_enabled(True)
    torch._C._set_mkldnn_deterministic(False)
    torch._C._set_nnpack_enabled(True)
    torch._C._set_cudnn_enabled(True)
    torch._C._set_cudnn_benchmark(False)
    torch._C._set_cudnn_deterministic(False)
    torch._C._set_cublas_allow_fp16_accumulation(False)
    torch._C._set_sdp_use_flash(True)
    torch._C._set_sdp_use_math(True)
    torch._C._set_sdp_use_mem_efficient(True)
    torch._C._set_math_sdp_allow_fp16_bf16_reduction(False)
    torch._C._set_sdp_priority_order([1, 2, 0, 3, 4])
    torch._C._set_sdp_use_cudnn(True)
    torch._C._set_sdp_use_overrideable(True)
    torch._C._set_sm_carveout_experimental(None)
    torch._C._set_cublas_allow_fp16_reduced_precision_reduction(True)
    torch._C._set_cublas_allow_bf16_reduced_precision_reduction(True)
    torch._C._set_float32_matmul_precision("highest")
    torch._C._set_fp32_precision_setter("mkldnn", "rnn", "none")
    torch.set_num_threads(1)


def test_a_precision_that_changes_alone_is_seen() -> None:
    """It lies beside torch's context, in a table."""

    def precision() -> str:
        return torch._C._get_fp32_precision_getter("mkldnn", "conv")

    seen: list[str] = []
    PRECISIONS.clear()
    x = torch.ones(1000)
    with dtr_alloc.rematerialize("64MiB"):
        plain = shows_precision(x)
        with setting(
            precision, lambda to: torch._C._set_fp32_precision_setter("mkldnn", "conv", to), "ieee"
        ):
            other = shows_precision(x)
        for made in (plain, other):
            assert dtr_alloc.evict(made)
            made.sum()
            seen.append(precision())
    assert PRECISIONS == ["none", "ieee", "none", "ieee"]
    assert seen == ["none", "none"]


PRECISIONS: list[str] = []


@torch.library.custom_op("dtr_switches::shows_precision", mutates_args=())
def shows_precision(x: Tensor) -> Tensor:
    PRECISIONS.append(torch._C._get_fp32_precision_getter("mkldnn", "conv"))
    return x.clone()


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


def test_a_model_made_in_another_default_type_within_the_scope_is_recomputed() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=16)

    def program() -> Iterator[Tensor]:
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        tokens = torch.arange(32).view(2, 16) % 64
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        yield loss
        yield from (p.grad for p in model.parameters())

    assert_exact(program, modes=["recorded", "evict_always"])


# ---- Threads


def test_the_number_of_a_threads_first_operator_counts_where_that_writes_in_place() -> None:
    """It is known only once the operator has run: a thread has none before."""
    torch.set_num_threads(1)
    x = randn(1_000_025)
    expected = F.mish(x + 0, inplace=True)
    with dtr_alloc.rematerialize("64MiB"):
        written = x + 0

        def work() -> None:
            F.mish(written, inplace=True)

        in_threads(work)
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
