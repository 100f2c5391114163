"""Which composite operators fail, or give other bits, when their inputs are evicted?

A composite operator is made of others, and the dispatcher runs its kernel above the key at which a
scope sees operators. Where such a kernel reads a tensor through a pointer, nobody brings the tensor
back first. So each composite operator of the dispatcher's list is called in a scope with inputs
that an operator of the scope made and that were then evicted, all of them; and once more with
gradients, where inputs and results are evicted again before the backward pass. Eager with the same
arguments is what is right.

    python perf/survey/composites.py --out perf/results/survey
"""

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

sys.path.append(str(Path(__file__).parents[1] / "support"))

from calls import Call, Source, digest, operators, tensors
from children import Lost, results
from repeats import described
from result import surveyed, write
from samples import samples
from schemas import is_composite

import dtr_alloc

BUDGET = "1GiB"
# A tensor can be evicted from 512 bytes on, and one of indices above 64 KiB, for below it is kept.
ELEMENTS = (20_000,)
EAGER_TOO = "eager differs from itself too"  # Results that hold addresses of objects, say.


def _made(call: Call, gradients: bool) -> tuple[Any, ...]:
    """The arguments, made by operators of the scope that is open, if any."""

    def one(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        made = x.clone()
        return made.requires_grad_() if gradients and x.dtype.is_floating_point else made

    return tree_map(one, (call.args, call.kwargs))  # type: ignore[no-any-return]


def _evict(tree: object) -> int:
    return sum(dtr_alloc.evict(x) for x in tensors(tree))


def _differentiate(made: object, inputs: object, evicts: bool) -> list[Tensor | None]:
    heads = [x for x in tensors(made) if x.requires_grad]
    leaves = [x for x in tensors(inputs) if x.requires_grad]
    if not heads or not leaves:
        return []
    generator = torch.Generator().manual_seed(0)
    weights = [torch.rand(x.shape, dtype=x.dtype, generator=generator) for x in heads]
    if evicts:
        _evict((made, inputs))
    return list(torch.autograd.grad(heads, leaves, weights, allow_unused=True))


def outcome(call: Call, gradients: bool, evicts: bool) -> tuple[list[str], int, Any]:
    """Digests of results, arguments and gradients; how many tensors were evicted; the results."""
    torch.manual_seed(0)
    args, kwargs = _made(call, gradients)
    evicted = _evict((args, kwargs)) if evicts else 0
    with torch.set_grad_enabled(gradients):
        made = call.run(args, kwargs)
    first = digest((made, args, kwargs))
    return [first, digest(_differentiate(made, (args, kwargs), evicts))], evicted, made


def row(call: Call, gradients: bool) -> dict[str, Any] | None:
    """What goes wrong in one call; None where nothing does. Raises what eager raises."""
    right, _, kept = outcome(call, gradients, evicts=False)
    again, _, _ = outcome(call, gradients, evicts=False)  # No object of it is where `kept` is.
    evicted, wrong = 0, ""
    try:
        with dtr_alloc.rematerialize(BUDGET):
            found, evicted, _ = outcome(call, gradients, evicts=True)
        if found != right:
            wrong = "other bits" if right == again else EAGER_TOO
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        wrong = " ".join(str(error).split())[:150]
    del kept
    if wrong:
        return {"gradients": gradients, "wrong": wrong, "arguments": described(call)}
    return {"evicted": evicted} if evicted else None


def survey(source: Source, operator: str) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    worked = evicted = 0
    rows: list[dict[str, Any]] = []
    for call in source.calls(operator, 3):
        for gradients in (False, True):
            try:
                found = row(call, gradients)
            except Exception:  # Eager refuses it too, with gradients say.
                continue
            worked += 1
            evicted += found is not None
            if found and "wrong" in found:
                rows.append(found)
    return {"calls": worked, "evicted": evicted, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("perf/results/survey"))
    parser.add_argument("--samples", type=Path, default=Path("build/survey"))
    parser.add_argument("--only", default="", help="operators with this in their names")
    parser.add_argument("--fresh", action="store_true", help="those that no committed result names")
    asked = parser.parse_args()
    known = surveyed(asked.out, "composites") if asked.fresh else set()
    torch.set_num_threads(1)
    source = Source(samples(asked.samples), ELEMENTS)
    able, unable = operators()
    able = [x for x in able if is_composite(x) and asked.only in x and x not in known]
    unable = {x: why for x, why in unable.items() if is_composite(x) and x not in known}
    rows: list[dict[str, Any]] = []
    called: list[str] = []
    nothing: list[str] = []

    def document(unfinished: bool) -> dict[str, Any]:
        wrong = {row["operator"] for row in rows if row["wrong"] != EAGER_TOO}
        too = {row["operator"] for row in rows} - wrong
        return {
            "unfinished": unfinished,
            "fresh alone": asked.fresh,
            "called with evicted inputs": len(called),
            "go wrong": sorted(wrong),
            EAGER_TOO: sorted(too),
            "rows": rows,
            "right": " ".join(sorted(set(called) - wrong - too)),
            "called, with inputs that nothing evicts": " ".join(nothing),
            "not called": dict(unable),
        }

    for count, (name, about) in enumerate(results(lambda x: survey(source, x), able, seconds=40)):
        if isinstance(about, Lost):
            unable[name] = about.reason
        elif about["calls"] == 0:
            unable[name] = "no arguments were found"
        else:
            (called if about["evicted"] else nothing).append(name)
            rows += [{"operator": name, **one} for one in about["rows"]]
        if count % 20 == 0:
            write(asked.out, "composites", document(unfinished=True))
    write(asked.out, "composites", document(unfinished=False))


if __name__ == "__main__":
    main()
