"""`torch.compile(block, backend="dtr_alloc")`: code that can be recomputed.

Inductor compiles as ever. What is added is a mark on each compiled forward graph: how many results
it has, what it writes, whether it draws random numbers. In a scope a marked graph is called as one
operator (bind_compiled_region.cpp), whose results, saved activations among them, can be evicted
and computed again by running the graph again. What a backward graph reads is brought back and held
until it lets it go (compiled_code.py); its mark tells what of it the graph may write over. Outside
of scopes graphs are called as torch calls them.

Where torch's `activation_memory_budget` has a backward graph draw random numbers again, gradients
would be wrong. The joint graph is cut anew then: with its seeds saved or else without that budget.

AOTAutograd's cache gives graphs back without asking a backend, so without marks. It is off for this
backend; Inductor's own cache, which saves most of the time, stays. Costs a walk over each graph as
it is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch.utils.checkpoint import CheckpointPolicy

from dtr_alloc import _core
from dtr_alloc.runtime.adapters import compiled_code

compiled_code.backend_has_compiled = False  # Torch imports this module when it is asked for it.
# Of higher-order operators: those that write nothing and have no effect but their results.
_PURE = frozenset(
    (
        *("cond", "while_loop", "scan", "associative_scan", "map_impl", "flex_attention"),
        *("invoke_subgraph", "run_and_save_rng_state", "run_with_rng_state"),
        *("triton_kernel_wrapper_functional", "wrap_with_autocast", "wrap_with_set_grad_enabled"),
    )
)
_UNORDERED = frozenset(
    (
        *("index_put", "_unsafe_index_put", "_unsafe_masked_index_put_accumulate", "put"),
        *("index_add", "index_reduce", "scatter", "scatter_add", "scatter_reduce"),
    )
)
_BUDGET = "activation_memory_budget"
_TORCHS = ("aten", "prims", "inductor", "quantized", "mkldnn", "mkl", "onednn", "rngprims")


def backend(
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compiles a graph of Dynamo's by Inductor, for `torch.compile(..., backend="dtr_alloc")`.

    Args:
        graph: what to compile.
        inputs: examples of its arguments.
        mode, options: Inductor's, as `torch.compile` takes them, and torch's
            ``"activation_memory_budget"``, the share of activations to save, from 0 to 1.

    Raises:
        ValueError: `mode`, `options` or Inductor's configuration ask for CUDA graphs, whose memory
            cannot be evicted; an option is unknown; that share is not from 0 to 1.

    Example:
        >>> import torch, dtr_alloc
        >>> from dtr_alloc.runtime.adapters.compile_backend import backend
        >>> block = torch.compile(torch.nn.Linear(8, 8), backend=backend)
    """
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.custom_graph_pass import CustomPartitionerFn

    named = {name.replace("-", "_"): value for name, value in (options or {}).items()}  # As torch.
    config = {**(torch._inductor.list_mode_options(mode) if mode else {}), **named}
    own = config.get("custom_partitioner_fn", torch._inductor.config.custom_partitioner_fn)
    given = torch._functorch.config.activation_memory_budget
    free = _BUDGET not in config and given == 1 and own is None
    if free and compiled_code.tried_share is not None:
        given, free = compiled_code.tried_share, False
    budget = config.pop(_BUDGET, given)
    if not isinstance(budget, (int, float)) or not 0 <= budget <= 1:
        raise ValueError(f"{_BUDGET} is {budget!r}: it must be a number from 0 to 1")
    if unknown := config.keys() - torch._inductor.list_options():
        raise ValueError(
            f'backend "dtr_alloc" has no options {sorted(unknown)}: it has "{_BUDGET}" and those '
            "of torch._inductor.list_options()"
        )
    if config.get("triton.cudagraphs", torch._inductor.config.triton.cudagraphs):
        asked = "torch._inductor.config.triton.cudagraphs"
        if "triton.cudagraphs" in config:
            asked = "the option triton.cudagraphs" if mode is None else f'mode "{mode}"'
        raise ValueError(
            f'backend "dtr_alloc" makes no CUDA graphs, for which {asked} asks, because their '
            'memory cannot be evicted: use mode "default" or "max-autotune-no-cudagraphs", and '
            "leave that option and Inductor's configuration of that name False"
        )
    compiled_code.backend_has_compiled = True
    config["custom_partitioner_fn"] = _Cut(own or min_cut_rematerialization_partition, free)
    CustomPartitionerFn.register(_Cut)  # A subclass would import Inductor with this module.
    caches = {"enable_autograd_cache": False, "enable_remote_autograd_cache": False}
    with torch._functorch.config.patch({_BUDGET: budget, **caches}):
        made = compile_fx(graph, inputs, inner_compile=_compile, config_patches=config)
    return cast(Callable[..., Any], made)


class _Cut:
    """Cuts a joint graph in two, as `way` does, so that the backward graph draws nothing again.
    `free`: the program does not say what share to save."""

    def __init__(self, way: Callable[..., Any], free: bool) -> None:
        self._way = way
        self._free = free

    def uuid(self) -> Any:  # Inductor's cache asks for it.
        return getattr(self._way, "uuid", lambda: __name__)()

    def __call__(self, graph: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        compiled_code.saves_all |= self._free
        asked = torch._functorch.config.activation_memory_budget
        for budget in (asked, max(asked, 1e-9), 1.0):  # At 0 torch saves not even what it must.
            with torch._functorch.config.patch({_BUDGET: budget}):
                parts = self._way(graph, *args, **kwargs)
            if not (again := _drawn_again(*parts)):
                break
            for node in _nodes(graph):
                if node.name in again and isinstance(node.meta.get("val"), torch.Tensor):
                    node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
                node.meta.get("custom", {}).pop("_region_activation_memory_budget", None)
        return parts


def _drawn_again(forward: torch.fx.GraphModule, backward: torch.fx.GraphModule) -> set[str]:
    """Names of what the backward graph draws, or has in common with forward and may draw."""
    ran = {node.name for node in _nodes(forward)}
    return {
        node.name
        for node in _nodes(backward)
        if isinstance(node.target, torch._ops.OpOverload)
        and _may_draw(node.target)
        and _argument(node, "dropout_p") != 0  # Attention's tag says that it draws in any case.
        and (node.name in ran or torch.Tag.nondeterministic_seeded in node.target.tags)
    }


def _argument(node: torch.fx.Node, name: str) -> Any:
    """None where the operator has no argument of that name."""
    for place, one in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if one.name == name:
            default = node.args[place] if place < len(node.args) else one.default_value
            return node.kwargs.get(name, default)
    return None


def _compile(graph: torch.fx.GraphModule, inputs: Sequence[Any], **kwargs: Any) -> Any:
    from torch._functorch._aot_autograd.logging_utils import get_aot_graph_name
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.output_code import CompiledFxGraph
    from torch._inductor.utils import get_donated_idxs

    if kwargs.get("is_backward"):
        overwritten = get_donated_idxs() or []
        compiled = compile_fx_inner(graph, inputs, **kwargs)
        compiled_code.mark_overwritten(compiled, overwritten)
        return compiled
    name = f"compiled::{get_aot_graph_name()}"  # For traces and profiles.
    calls = [node.target for node in _nodes(graph)]  # Before Inductor rewrites it.
    why_not = next(filter(None, map(_obstacle, calls)), None)
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    results, random = len(output.args[0]), any(map(_may_draw, calls))
    compiled = compile_fx_inner(graph, inputs, **kwargs)
    if isinstance(compiled, CompiledFxGraph):
        if torch._inductor.config.freezing and (compiled.constants or compiled.frozen_param_names):
            why_not = "is frozen: the program may write the parameters in it"
        region = _core.CompiledRegion(name, results, sorted(compiled.mutated_input_idxs), random)
        compiled_code.mark(compiled, why_not or region, name)
    return compiled


def _nodes(graph: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    """Of the graph and those inside it."""
    for module in graph.modules():
        if isinstance(module, torch.fx.GraphModule):
            yield from module.graph.nodes


def _obstacle(call: Any) -> str | None:
    """Why a graph with this call must not run again, or None."""
    if isinstance(call, torch._ops.HigherOrderOperator):
        name = str(call.__name__)
        return None if name in _PURE else f"the higher-order operator {name} may have effects"
    if not isinstance(call, torch._ops.OpOverload):
        return None
    if call.namespace in _TORCHS:
        return _disorder(call)
    return _obstacle_of_library(call)


def _disorder(call: torch._ops.OpOverload) -> str | None:
    """Inductor has several threads add to one element, in the order in which they come, where torch
    itself adds in one order (2.13)."""
    name = call._schema.name.removeprefix("aten::")
    if name.rstrip("_") not in _UNORDERED or (
        torch.get_num_threads() == 1 and not torch.cuda.is_available()
    ):
        return None
    return f"{name} adds up in another order in each run"


def _obstacle_of_library(call: torch._ops.OpOverload) -> str | None:
    name = call._schema.name
    if _core.is_collective(name, call._schema.overload_name):
        return f"{name} talks to other processes"
    if call in torch.fx.node._side_effectful_functions:
        return f"{name} has effects"
    if torch.Tag.pt2_compliant_tag not in call.tags:
        return f"{name} has no pt2_compliant_tag"
    return f"{name} writes an argument" if call._schema.is_mutable else None


def _may_draw(call: Any) -> bool:
    """Whether it draws, or perhaps does and does not say so."""
    if isinstance(call, torch._ops.OpOverload) and call.namespace in _TORCHS:
        return torch.Tag.nondeterministic_seeded in call.tags
    return isinstance(call, (torch._ops.OpOverload, torch._ops.HigherOrderOperator))
