"""Which calls of operators do torch's own tests make?

torch's databases have samples of 700 functions and 200 modules, written by those who wrote the
operators (torch.testing._internal). Each sample runs under a mode that sees the operators that the
dispatcher runs: forward and backward, and once more under inference_mode(), where operators that
are made of others are seen too. A call is kept with copies of its arguments as they were before it.
Of an operator up to twelve calls are kept that differ in types, dimensions or options.

It takes minutes, so the calls are kept in a file beside torch's version. A sample that torch
refuses is passed over.

    python perf/survey/samples.py --out build/survey
"""

import argparse
import importlib
import io
import sys
import warnings
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

CALLS_OF_ONE = 12
SAMPLES_OF_ONE = {torch.float32: 24, torch.int64: 4, torch.bfloat16: 3, torch.bool: 2,
                  torch.complex64: 2, torch.float64: 1}  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """One call that a test of torch's makes. Arguments are small; whoever calls it copies them."""

    operator: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    source: str


def copied(tree: Any) -> Any:
    """The same with copies of all tensors, which ask for no gradient."""
    return tree_map(lambda x: x.detach().clone() if isinstance(x, Tensor) else x, tree)


def overload(name: str) -> torch._ops.OpOverload:
    """The operator of a name as the dispatcher writes it, "aten::add.Tensor"."""
    namespace, _, rest = name.partition("::")
    packet, _, which = rest.partition(".")
    found: torch._ops.OpOverload = getattr(
        getattr(getattr(torch.ops, namespace), packet), which or "default"
    )
    return found


def name_of(operator: torch._ops.OpOverload) -> str:
    return operator._schema.name + (f".{operator._schema.overload_name}").removesuffix(".")


def _kind(x: object) -> object:
    """What makes two calls of an operator differ, in an argument."""
    if isinstance(x, Tensor):
        return (x.dtype, x.dim(), x.layout, x.numel() == 0)
    return x if isinstance(x, (bool, str, type(None))) else type(x)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: dict[str, dict[object, Sample]] = {}
        self.source = ""

    def __torch_dispatch__(
        self, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        calls = self.found.setdefault(name_of(func), {})
        if len(calls) < CALLS_OF_ONE:
            try:
                kind = str([_kind(x) for x in tree_leaves((args, kwargs))])
                if kind not in calls and (kept := _kept(name_of(func), args, kwargs, self.source)):
                    calls[kind] = kept
            except Exception:  # Of a kind of tensor that cannot be copied.
                pass
        return func(*args, **kwargs)


def _kept(name: str, args: Any, kwargs: Any, source: str) -> Sample | None:
    """None of what cannot be written to a file: its modes, generators and functions."""
    known = (Tensor, bool, int, float, complex, str, torch.dtype, torch.device, torch.layout,
             torch.memory_format, type(None))  # fmt: skip
    leaves = tree_leaves((args, kwargs))
    if not all(isinstance(x, (*known, torch.Generator)) for x in leaves):
        return None
    if sum(x.numel() for x in leaves if isinstance(x, Tensor)) > 1_000_000:
        return None
    plain = tree_map(lambda x: None if isinstance(x, torch.Generator) else x, (args, kwargs))
    args, kwargs = copied(plain)
    sample = Sample(name, tuple(args), dict(kwargs), source)
    torch.save(sample, io.BytesIO())
    return sample


def _ready(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except Exception:
        return None


def _differentiate(outputs: object, inputs: object) -> None:
    heads = [x for x in tree_leaves(outputs) if isinstance(x, Tensor) and x.requires_grad]
    leaves = [x for x in tree_leaves(inputs) if isinstance(x, Tensor) and x.requires_grad]
    if heads and leaves:
        weights = [torch.randn_like(head) for head in heads]
        torch.autograd.grad(heads, leaves, weights, allow_unused=True)


def _of_function(info: Any, dtype: torch.dtype) -> Iterator[Callable[[], None]]:
    gradients = info.supports_autograd and dtype in info.supported_backward_dtypes("cpu")

    def run(sample: Any, way: str) -> None:
        first, args, kwargs = sample.input, sample.args, sample.kwargs
        if way == "whole":
            outputs = info(first, *args, **kwargs)
            if gradients:
                _differentiate(outputs, (first, args, kwargs))
            return
        first, args, kwargs = copied((first, args, kwargs))
        with torch.inference_mode():
            # Made in there: another tensor has autograd's keys still.
            first, args, kwargs = copied((first, args, kwargs))
            if way == "composite":
                info(first, *args, **kwargs)
            elif way == "in place" and info.inplace_variant and not sample.broadcasts_input:
                info.inplace_variant(first, *args, **kwargs)
            elif way == "out" and info.supports_out:
                given = tree_map(torch.ones_like, info(first, *args, **kwargs))
                info(first, *args, **kwargs, out=given)

    samples = info.sample_inputs("cpu", dtype, requires_grad=gradients)
    for _ in range(SAMPLES_OF_ONE[dtype]):
        if (sample := _ready(lambda: next(samples, None))) is None:
            return
        for way in ("whole", "composite", "in place", "out"):
            yield lambda sample=sample, way=way: run(sample, way)  # type: ignore[misc]


def _of_module(info: Any, dtype: torch.dtype) -> Iterator[Callable[[], None]]:
    def run(sample: Any, training: bool, inference: bool) -> None:
        with torch.inference_mode(inference):
            made, given = sample.constructor_input, sample.forward_input
            module = info.module_cls(*made.args, **made.kwargs).to(dtype).train(training)
            args, kwargs = copied((given.args, given.kwargs)) if inference else (
                given.args, given.kwargs)  # fmt: skip
            outputs = module(*args, **kwargs)
            if not inference:
                _differentiate(outputs, (args, kwargs, list(module.parameters())))

    for training in (True, False):
        samples = info.module_inputs_func(
            info, device="cpu", dtype=dtype, requires_grad=True, training=training
        )
        for sample in samples[: SAMPLES_OF_ONE[dtype]]:
            if sample.forward_input is not None:
                for inference in (False, True):
                    yield lambda s=sample, t=training, i=inference: run(s, t, i)  # type: ignore[misc]


def _all(only: Container[str] | None) -> Iterator[tuple[str, Callable[[], None]]]:
    internal = "torch.testing._internal."
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        functions = importlib.import_module(internal + "common_methods_invocations").op_db
        modules = importlib.import_module(internal + "common_modules").module_db
    for info, way in [*((m, _of_module) for m in modules), *((f, _of_function) for f in functions)]:
        if only is not None and info.name not in only:
            continue
        types = info.supported_dtypes("cpu")
        for dtype in SAMPLES_OF_ONE:
            if dtype not in types or (dtype == torch.float64 and torch.float32 in types):
                continue
            for run in _ready(lambda w=way, i=info, d=dtype: w(i, d)) or ():  # type: ignore[misc]
                yield info.name, run


def record(only: Container[str] | None = None) -> list[Sample]:
    """All calls, by the names of operators; or those of some entries of the databases."""
    torch.manual_seed(0)
    recorder = _Recorder()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for source, run in _all(only):
            recorder.source = source
            try:
                with recorder:
                    run()
            except Exception:  # torch refuses the sample, in this way or at all.
                continue
    return [one for name in sorted(recorder.found) for one in recorder.found[name].values()]


def samples(folder: Path) -> list[Sample]:
    """The calls, from the file in `folder` or recorded into it."""
    path = folder / f"samples-{torch.__version__}.pt"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        found = record()
        torch.save([(s.operator, s.args, s.kwargs, s.source) for s in found], path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [Sample(*row) for row in torch.load(path, weights_only=False)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/survey"))
    found = samples(parser.parse_args().out)
    print(f"{len(found)} calls of {len({s.operator for s in found})} operators", file=sys.stderr)
