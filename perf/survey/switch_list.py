"""The switches of torch that Python can set, and how to set each to something else.

Their names are torch's own: functions `_set_...` of torch._C, and the functions of torch that call
none of these. What a switch is now is read first, and put back afterwards. `unknown()` names those
that a release added and that no table here has.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_C: Any = torch._C


@dataclass(frozen=True)
class Switch:
    """`put` takes what `now` returns, or one of the other values."""

    name: str
    now: Callable[[], Any]
    put: Callable[[Any], object]
    others: tuple[Any, ...]

    @contextmanager
    def at(self, value: Any) -> Iterator[None]:
        before = self.now()
        try:
            self.put(value)
            yield
        finally:
            self.put(before)


# Getters whose names are not the setters' with "get".
_GETTERS = {
    "_set_sdp_use_cudnn": "_get_cudnn_sdp_enabled",
    "_set_sdp_use_fa3": "_get_fa3_sdp_enabled",
    "_set_sdp_use_fa4": "_get_fa4_sdp_enabled",
    "_set_sdp_use_flash": "_get_flash_sdp_enabled",
    "_set_sdp_use_math": "_get_math_sdp_enabled",
    "_set_sdp_use_mem_efficient": "_get_mem_efficient_sdp_enabled",
    "_set_sdp_use_overrideable": "_get_overrideable_sdp_enabled",
}
# Those that are on or off, and that a kernel may read.
_ON_OR_OFF = (
    "_set_cpu_allow_fp16_reduced_precision_reduction",
    "_set_cublas_allow_fp16_accumulation",
    "_set_cublas_allow_tf32",
    "_set_cudnn_allow_tf32",
    "_set_cudnn_benchmark",
    "_set_cudnn_deterministic",
    "_set_cudnn_enabled",
    "_set_deterministic_fill_uninitialized_memory",
    "_set_math_sdp_allow_fp16_bf16_reduction",
    "_set_miopen_immediate",
    "_set_mkldnn_deterministic",
    "_set_mkldnn_enabled",
    "_set_native_aot_enabled",
    "_set_native_aot_unconditional_masked",
    "_set_nnpack_enabled",
    "_set_sdp_use_cudnn",
    "_set_sdp_use_fa3",
    "_set_sdp_use_fa4",
    "_set_sdp_use_flash",
    "_set_sdp_use_math",
    "_set_sdp_use_mem_efficient",
    "_set_sdp_use_overrideable",
)
# Names of torch._C that set what no kernel's result depends on, or what a recipe keeps already.
IN_A_RECIPE = {
    "_set_grad_enabled", "_set_fwd_grad_enabled", "_set_multithreading_enabled",
    "_set_view_replay_enabled", "set_autocast_cache_enabled", "set_autocast_cpu_dtype",
    "set_autocast_cpu_enabled", "set_autocast_dtype", "set_autocast_enabled",
    "set_autocast_gpu_dtype", "set_autocast_ipu_dtype", "set_autocast_ipu_enabled",
    "set_autocast_xla_dtype", "set_autocast_xla_enabled",
}  # fmt: skip
NO_RESULT_DEPENDS = {
    "_set_autograd_fallback_mode": "warnings", "_set_backcompat_broadcast_warn": "warnings",
    "_set_backcompat_keepdim_warn": "warnings", "_set_cached_tensors_enabled": "captures",
    "_set_check_sparse_tensor_invariants": "checks", "_set_conj": "a tensor's own bit",
    "_set_default_mobile_cpu_allocator": "allocation",
    "_set_dispatch_mode": "a mode of Python's",
    "_set_dtensor_allow_implicit_replication": "a subclass of Python's",
    "_set_fake_constant": "a fake tensor's own",
    "_set_generator_metaclass": "a class", "_set_grad_layout_enforcement_enabled": "autograd",
    "_set_graph_exec_group": "captures", "_set_graph_executor_optimize": "TorchScript",
    "_set_meta_in_tls_dispatch_include": "dispatch keys, which a recipe keeps",
    "_set_neg": "a tensor's own bit", "_set_only_lift_cpu_tensors": "fake tensors",
    "_set_override_stale_capture_stream": "captures",
    "_set_print_stack_traces_on_fatal_signal": "a signal",
    "_set_should_use_format_with_string_table": "TorchScript",
    "_set_storage_access_error_msg": "a tensor's own",
    "_set_storage_data_ptr_access_error_msg": "a tensor's own",
    "_set_skip_next_torch_function": "Python", "_set_tensor_metadata": "a tensor's own",
    "_set_thread_name": "a name", "_set_throw_on_mutable_data_ptr": "a tensor's own",
    "_set_torch_function_state": "Python", "_set_tracing_state": "TorchScript",
    "_set_value_trace": "TorchScript", "_set_warnAlways": "warnings",
    "_set_warn_deprecated_on_mutable_data_ptr": "warnings",
    "_set_warn_on_accumulate_grad_stream_mismatch": "warnings",
    "_set_worker_pids": "the loader's processes", "_set_worker_signal_handlers": "the loader's",
    "set_anomaly_enabled": "checks", "set_num_interop_threads": "once in a process",
    "set_vital": "statistics",
}  # fmt: skip
# Whose values are devices' libraries: torch refuses them, or nothing happens, without that device.
OF_A_DEVICE = {
    "_set_blas_preferred_backend", "_set_cublas_allow_bf16_reduced_precision_reduction",
    "_set_cublas_allow_fp16_reduced_precision_reduction",
    "_set_cublaslt_prefer_grouped_gemm", "_set_cudnn_depthwise_kernel",
    "_set_linalg_preferred_backend", "_set_rocm_fa_preferred_backend",
    "_set_sm_carveout_experimental",
}  # fmt: skip


def _getter(name: str) -> Callable[[], Any]:
    return getattr(_C, _GETTERS.get(name, name.replace("_set_", "_get_", 1)))  # type: ignore[no-any-return]


def _precision(backend: str, op: str) -> Switch:
    return Switch(
        f"_set_fp32_precision_setter({backend}, {op})",
        lambda: _C._get_fp32_precision_getter(backend, op),
        lambda value: _C._set_fp32_precision_setter(backend, op, value),
        ("ieee", "tf32", "bf16") if backend == "mkldnn" else ("ieee", "tf32"),
    )


def _flush(value: bool) -> None:
    torch.set_flush_denormal(value)


FLUSH_DENORMAL = Switch("set_flush_denormal", lambda: False, _flush, (True,))
THREADS = Switch("set_num_threads", torch.get_num_threads, torch.set_num_threads, (1, 2, 4))
DEFAULT_DTYPE = Switch("_set_default_dtype", torch.get_default_dtype, torch.set_default_dtype,
                       (torch.float64, torch.bfloat16))  # fmt: skip
DETERMINISTIC = Switch(
    "_set_deterministic_algorithms",
    lambda: (_C._get_deterministic_algorithms(), _C._get_deterministic_algorithms_warn_only()),
    lambda pair: _C._set_deterministic_algorithms(pair[0], warn_only=pair[1]),
    ((True, False), (True, True)),
)


def switches() -> list[Switch]:
    """All that this torch has, but for the four above."""
    found = [
        Switch(name, _getter(name), getattr(_C, name), (not _getter(name)(),))
        for name in _ON_OR_OFF
        if hasattr(_C, name)
    ]
    engines = [x for x in torch.backends.quantized.supported_engines if x != "none"]
    found += [
        Switch("_set_float32_matmul_precision", torch.get_float32_matmul_precision,
               torch.set_float32_matmul_precision, ("high", "medium")),
        Switch("_set_onednn_allow_tf32", _C._get_onednn_allow_tf32,
               lambda value: _C._set_onednn_allow_tf32(bool(value)), (True,)),
        Switch("_set_qengine", lambda: torch.backends.quantized.engine,
               lambda name: setattr(torch.backends.quantized, "engine", name), tuple(engines)),
        Switch("_set_sdp_priority_order", _C._get_sdp_priority_order, _C._set_sdp_priority_order,
               ([0, 2, 1, 3, 4],)),
        *(_precision("mkldnn", op) for op in ("all", "conv", "matmul", "rnn")),
        *(_precision("cuda", op) for op in ("all", "conv", "matmul", "rnn")),
        _precision("generic", "all"),
    ]  # fmt: skip
    return found


def context_fields() -> list[str]:
    """What at::globalContext() keeps, by the header that comes with torch: what a kernel may read
    whether Python can set it or not."""
    header = Path(torch.__file__).parent / "include/ATen/Context.h"
    body = header.read_text().partition("class TORCH_API Context {")[2].partition("\n};")[0]
    private = body.rpartition(" private:")[2]
    fields = re.findall(r"^  (?:[\w:<>,\s*]+[\s>*])(\w+)(?: = |\{| =\n|;)", private, re.M)
    return sorted({name for name in fields if name not in ("Key", "init_")})


def unknown() -> set[str]:
    """Functions of this torch that set something, and that are in no table here."""
    known = {switch.name.partition("(")[0] for switch in switches()}
    known |= {*_ON_OR_OFF, *IN_A_RECIPE, *NO_RESULT_DEPENDS, *OF_A_DEVICE, "set_num_threads"}
    known |= {"set_flush_denormal", "_set_default_dtype", "_set_default_tensor_type",
              "_set_deterministic_algorithms"}  # fmt: skip
    return {name for name in dir(_C) if name.startswith(("_set_", "set_"))} - known
