"""What a sample of a database does, as a program that gives its results one by one.

A program makes its inputs itself, so that inside a scope they are values that can be evicted; it
repeats exactly from one seed; it stops where torch refuses, which both sides must do alike.
`pause` is called where a user could evict by hand: between forward, backward and double backward.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from tests.conformance.cases import Case, longer_dimensions

Pause = Callable[[object], None]
Program = Callable[[Pause], Iterator[object]]


def programs(case: Case, most: int | None) -> Iterator[tuple[str, Program]]:
    """The case's programs, named; of at most `most` samples."""
    torch.manual_seed(case.seed)
    yield from {"operators": _operator, "modules": _module, "optimizers": _optimizer}[
        case.database
    ](case, most)


def fresh(tree: Any) -> Any:
    """Copies of all tensors in there, made by operators of the caller's scope, of the same strides
    and offsets."""
    return tree_map(lambda leaf: _fresh(leaf) if isinstance(leaf, Tensor) else leaf, tree)


def _fresh(tensor: Tensor) -> Tensor:
    old = tensor.detach()
    plain = old.layout == torch.strided and not (old.is_nested or old.is_quantized)
    if not plain or old.is_conj() or old.is_neg() or old.numel() == 0:
        return old.clone().requires_grad_(tensor.requires_grad)
    last = sum((n - 1) * step for n, step in zip(old.shape, old.stride(), strict=True))
    whole = old.as_strided((old.storage_offset() + last + 1,), (1,), 0).clone()
    copy = whole.as_strided(old.shape, old.stride(), old.storage_offset())
    return copy.requires_grad_(tensor.requires_grad)


def _tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _differentiate(outputs: object, inputs: object, pause: Pause, twice: bool) -> Iterator[object]:
    """Gradients of the outputs by the inputs, and with `twice` gradients of those."""
    heads = [t for t in _tensors(outputs) if t.requires_grad and t.grad_fn is not None]
    leaves = [t for t in _tensors(inputs) if t.requires_grad and t.is_leaf]
    for _ in range(2 if twice else 1):
        if not heads or not leaves:
            return
        weights = [torch.randn_like(head).requires_grad_(twice) for head in heads]
        gradients = torch.autograd.grad(
            heads, leaves, weights, create_graph=twice, allow_unused=True
        )
        yield from gradients
        pause((gradients, weights, inputs, outputs))
        heads = [g for g in gradients if g is not None and g.requires_grad]
        leaves = [*leaves, *weights]


def _operator(case: Case, most: int | None) -> Iterator[tuple[str, Program]]:
    op, dtype = case.info, case.dtype
    gradients = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    try:
        with longer_dimensions() if case.may_be_longer else nullcontext():
            samples = list(op.sample_inputs("cpu", dtype, requires_grad=gradients))
    except Exception:  # Some numbers were written out, and do not fit the longer lengths.
        samples = list(op.sample_inputs("cpu", dtype, requires_grad=gradients))

    def call(sample: Any) -> Program:
        def program(pause: Pause) -> Iterator[object]:
            inputs = fresh((sample.input, sample.args, sample.kwargs))
            first, args, kwargs = inputs
            outputs = op(first, *args, **kwargs)
            pause((inputs, outputs))
            yield outputs
            outputs = sample.output_process_fn_grad(outputs)
            if gradients:
                yield from _differentiate(outputs, inputs, pause, op.supports_gradgrad)
            yield inputs

        return program

    def in_place(sample: Any) -> Program:
        def program(pause: Pause) -> Iterator[object]:
            inputs = fresh((sample.input, sample.args, sample.kwargs))
            first, args, kwargs = inputs
            written = first.clone()
            pause((inputs, written))
            outputs = op.inplace_variant(written, *args, **kwargs)
            pause((inputs, outputs))
            yield (outputs, written)
            if gradients:
                yield from _differentiate(outputs, inputs, pause, False)

        return program

    def out(sample: Any) -> Program:
        @torch.no_grad()
        def compute(pause: Pause) -> object:
            first, args, kwargs = fresh((sample.input, sample.args, sample.kwargs))
            given = tree_map(torch.ones_like, op(first, *args, **kwargs))
            pause((first, given))
            op(first, *args, **kwargs, out=given)
            return given

        def program(pause: Pause) -> Iterator[object]:
            yield compute(pause)

        return program

    for index, sample in case.pick(samples, most):
        yield f"{index}", call(sample)
        if op.inplace_variant is not None and not sample.broadcasts_input:
            yield f"{index} in place", in_place(sample)
        if op.supports_out:
            yield f"{index} out=", out(sample)


def _module(case: Case, most: int | None) -> Iterator[tuple[str, Program]]:
    info, dtype = case.info, case.dtype

    def train(sample: Any, training: bool) -> Program:
        def program(pause: Pause) -> Iterator[object]:
            made = sample.constructor_input
            module = info.module_cls(*fresh(made.args), **fresh(made.kwargs))
            module.to(dtype).train(training)
            inputs = fresh((sample.forward_input.args, sample.forward_input.kwargs))
            pause((list(module.parameters()), inputs))
            for _ in range(2):
                args, kwargs = inputs
                outputs = module(*args, **kwargs)
                pause((inputs, outputs))
                yield outputs
                parameters = list(module.parameters())
                yield from _differentiate(
                    outputs, (inputs, parameters), pause, info.supports_gradgrad
                )
            yield list(module.buffers())

        return program

    for training in (True, False):
        samples = info.module_inputs_func(
            info, device="cpu", dtype=dtype, requires_grad=True, training=training
        )
        for index, sample in case.pick(samples, most):
            if sample.forward_input is not None:
                yield f"{index} {'training' if training else 'evaluating'}", train(sample, training)


def _optimizer(case: Case, most: int | None) -> Iterator[tuple[str, Program]]:
    """Three steps with torch's settings, over parameters made inside the scope and large enough to
    be evicted."""
    info, dtype = case.info, case.dtype

    def train(settings: dict[str, Any]) -> Program:
        def program(pause: Pause) -> Iterator[object]:
            weight = torch.randn(24, 24).to(dtype).requires_grad_()
            bias = torch.randn(600).to(dtype).requires_grad_()
            leaves = parameters = [weight, bias]
            differentiable = settings.get("differentiable", False)
            if differentiable:  # The step is part of the graph, so it cannot write leaves.
                weight, bias = parameters = [leaf.clone() for leaf in leaves]
            data = torch.randn(32, 24).to(dtype)
            optimizer = info.optim_cls(_as_asked(info, parameters), **settings)

            def closure() -> Tensor:
                optimizer.zero_grad()
                hidden = (data @ weight).tanh()
                pause(hidden)
                loss = hidden.square().mean() + (bias * bias).sin().mean()
                gradients = torch.autograd.grad(loss, parameters)
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.grad = gradient
                if info.only_supports_sparse_grads:
                    for parameter in parameters:
                        assert parameter.grad is not None
                        parameter.grad = parameter.grad.to_sparse()
                return loss

            for _ in range(3):
                yield optimizer.step(closure)
                pause((parameters, optimizer.state))
                yield parameters
            if differentiable:
                yield torch.autograd.grad([p.sum() for p in parameters], leaves)
            yield [list(state.values()) for state in optimizer.state.values()]

        return program

    samples = [
        (f"{sample.desc or 'default'} {way}", {**sample.kwargs, **({way: True} if way else {})})
        for sample in info.optim_inputs_func(device="cpu", dtype=dtype)
        for way in ("", *info.supported_impls)
        if way != "fused" or "cpu" in info.supports_fused_on
    ]
    for index, (name, settings) in case.pick(samples, most):
        yield f"{index} {name.strip()}", train(settings)


def _as_asked(info: Any, parameters: list[Tensor]) -> list[Any]:
    """Muon takes matrices only."""
    return parameters[:1] if info.optim_cls.__name__ == "Muon" else list(parameters)
