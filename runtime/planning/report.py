"""A plan as people read it: one table for all batches, and the budget to take."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from rich.table import Table

from dtr_alloc.pool.size import format_size, short_size
from dtr_alloc.runtime.heuristic import DEFAULT, LIVE_PRESETS
from dtr_alloc.runtime.planning.forecast import Prediction
from dtr_alloc.runtime.planning.plan import Plan
from dtr_alloc.runtime.scope.swapping import swap_folder

_FAILED = {"oom": "does not fit", "thrash": "only recomputes"}


def table(plans: Sequence[Plan]) -> Table:
    """A row for each budget of each plan. Samples a second where a batch is a number."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    columns = _columns(plans)
    for name in columns:
        made.add_column(name, justify="right", no_wrap=True)
    for plan in plans:
        for found in plan.predictions:
            cells = _cells(plan, found)
            made.add_row(*(cells.get(name, "") for name in columns))
        made.add_section()
    return made


def _columns(plans: Sequence[Plan]) -> list[str]:
    return [
        *(["batch"] if any(plan.batch for plan in plans) else []),
        *(["saved"] if any(plan.activation_memory_budget for plan in plans) else []),
        *("budget", "peak", _times(plans[0]), "step ms", "evicted /step", "redone /step"),
        *(["moved /step"] if any(plan.link for plan in plans) else []),
        *(["samples /s"] if all((plan.batch or "").isdecimal() for plan in plans) else []),
    ]


def _times(plan: Plan) -> str:
    return "times eager" if plan.relative_to_eager else "times no budget"


def _cells(plan: Plan, found: Prediction) -> dict[str, str]:
    """By columns."""
    times = _times(plan)
    budget = "none" if found.budget_bytes is None else format_size(found.budget_bytes)
    cells = {"batch": plan.batch or "", "budget": budget}
    cells["saved"] = str(plan.activation_memory_budget or "all")
    if found.status != "ok":
        return cells | {times: _FAILED[found.status]}
    if plan.batch is not None and plan.batch.isdecimal():
        cells["samples /s"] = f"{int(plan.batch) * 1e9 / found.step_ns:,.0f}"
    return cells | {
        "peak": format_size(found.peak_bytes),
        times: f"{found.slowdown:.2f}",
        "step ms": f"{found.step_ns / 1e6:,.1f}",
        "evicted /step": f"{found.evictions:,.0f}",
        "redone /step": f"{found.rematerializations:,.0f}",
        "moved /step": format_size(round(found.moved_bytes)),
    }


def suggestion(plan: Plan, slowdown: float) -> str:
    """What to write into the script."""
    name = f"batch {plan.batch}: " if plan.batch else ""
    if plan.activation_memory_budget:
        option = f'options={{"activation_memory_budget": {plan.activation_memory_budget:g}}}'
        name += f"with {option} in torch.compile, "
    if plan.too_noisy and plan.activation_memory_budget:
        return f"{name}too noisy to tell."
    if plan.too_noisy:
        found = plan.predictions[0].slowdown
        why = "if it stays above, recording alone costs so much, because the operators are small"
        if found < 1:
            why = "what slowed plain torch down was another program, as a rule"
        return (
            f"{name}too noisy to tell: without a budget, where nothing is evicted, a step took "
            f"{found:.2f} times plain torch's, and that should be about 1, within the slowdown of "
            f"{slowdown:g} at least. Leave the machine to it, or give more --rounds; {why}."
            f"{_untold(plan, slowdown)}"
        )
    if plan.smallest is None:
        than = "plain torch" if plan.relative_to_eager else "no budget"
        return f"{name}no budget stays under {slowdown:g} times {than}."
    bytes_ = plan.smallest.budget_bytes
    assert bytes_ is not None
    size, heuristic = short_size(bytes_), _heuristic(plan)
    swap = f', swap="{short_size(plan.predictions[0].peak_bytes)}"' if plan.link else ""
    folder = _swap_folder(plan) if plan.link else ""
    on_cuda = f', on CUDA dtr_alloc.allocator("{size}"{swap}{heuristic})'
    return (
        f"{name}the smallest budget under a slowdown of {slowdown:g} is {format_size(bytes_)} "
        f"({plan.smallest.slowdown:.2f}): "
        f'dtr_alloc.rematerialize("{size}"{swap}{folder}{heuristic})'
        f"{on_cuda * torch.cuda.is_available()}"
    )


def _untold(plan: Plan, slowdown: float) -> str:
    """By what does not hang on plain torch's times."""
    free, *others = plan.predictions
    under = [
        one for one in others if one.status == "ok" and one.slowdown < slowdown * free.slowdown
    ]
    sizes = [one.budget_bytes for one in under if one.budget_bytes is not None]
    if not sizes:
        return ""
    return (
        f" Of the budgets above, {short_size(min(sizes))} stays under {slowdown:g} times no budget."
    )


def _heuristic(plan: Plan) -> str:
    if plan.heuristic == DEFAULT:
        return ""
    known = plan.heuristic in LIVE_PRESETS
    return f", heuristic={plan.heuristic!r}" if known else f", heuristic=dtr_alloc.{plan.heuristic}"


def _swap_folder(plan: Plan) -> str:
    """An argument of a scope that swaps. On CUDA the swap lies in the host's memory."""
    folder = plan.swap_dir
    if not folder:
        try:
            swap_folder(None)
        except ValueError:  # That of temporary files lies in memory, say.
            folder = "a folder of a local disk"
    return f", swap_dir={folder!r}" if folder else ""
