"""The table of `Session.summary`: where time and memory went, for people.

A scope of `measure` records no recipes and evicts nothing, so it tells other things: how much of
the peak a budget may save, how much must stay, and which budget to try first. The activations are
the peak, less what is in memory when an optimizer's step ends: gradients, its state, what the
program keeps. Six tenths of them leave a budget's usual slowdown small. Whether the steps run in
that budget, a simulation of what was recorded tells, which takes up to some seconds (advice.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from dtr_alloc import _core
from dtr_alloc.pool.size import format_size, parse_size, short_size
from dtr_alloc.runtime.adapters import compiled_code
from dtr_alloc.runtime.scope.advice import Adviser
from dtr_alloc.runtime.scope.session_stats import SessionStats
from dtr_alloc.runtime.scope.steps import Steps

Row = tuple[str, str, str]
_SHARE = 0.6


def rows(
    s: SessionStats, core: _core.Session, steps: Steps, measured: Adviser | None
) -> Iterator[Row]:
    """Each row's name, figure and note. `measured`: of a scope of `measure`."""
    if measured is None:
        yield "operators", f"{s.operators:,}", f"{s.recorded:,} can be recomputed"
        yield "evictions", f"{s.evictions:,}", f"{s.rematerializations:,} operators run again"
    else:
        yield "operators", f"{s.operators:,}", "not recorded by measure()"
    yield "peak", format_size(s.peak_bytes), _of_budget(s)
    if measured is not None:
        yield from _advice(s, steps, measured)
    evictable = "" if measured else f"{format_size(s.evictable_bytes)} evictable"
    yield "in use", format_size(s.live_bytes), evictable
    if measured is None:
        yield "largest operator", format_size(s.largest_operator_bytes), "arguments and results"
    yield from _times(s)
    yield from _swapped(s)
    yield from steps.rows(s.evicted_bytes)
    yield from _compiled_code(core, s.budget_bytes)
    for name, refused in core.caught().items():
        note = f"{name} went on without it, perhaps with other last bits"
        yield "refused", format_size(refused), note
    if unseen := core.unseen():
        note = "made while DispatchKey.Fake was off: not recorded, never evicted"
        yield "unseen", format_size(unseen), note
    for text in core.exposures():
        yield "memory taken", "", text


def spent_ns(s: SessionStats) -> dict[str, int]:
    """Where time went."""
    return {
        "computing": s.kernel_ns,
        "recomputing": s.remat_ns,
        "finding memory": s.search_ns + s.move_ns,
        "bookkeeping": s.bookkeeping_ns,
    }


def _advice(s: SessionStats, steps: Steps, measured: Adviser) -> Iterator[Row]:
    """Of a scope of `measure`."""
    stays = min(steps.stays_bytes if steps.count else s.live_bytes, s.peak_bytes)
    activations = s.peak_bytes - stays
    yield "  activations", format_size(activations), "of the peak: a budget may save of these"
    note = "of the peak: gradients, optimizer state, what the program keeps"
    if not steps.count:
        note = "of the peak: what is left now; no step of an optimizer was seen"
    yield "  must stay", format_size(stays), note
    least = stays + int(_SHARE * activations)
    found = measured.enough(least)
    size = short_size(found or least)
    if not activations or parse_size(size) >= s.peak_bytes:
        why = "no budget below the peak is enough, by a simulation"
        if found is None:
            why = "nearly all of the peak must stay" if activations else "all of the peak must stay"
        yield "try", "", f"a smaller batch: {why}"
        return
    why = "six tenths of the activations, and what must stay"
    if found is not None:
        why = "enough for what was measured, by a simulation"
    yield "try", size, f'{measured.call}("{size}"): {why}'


def _times(s: SessionStats) -> Iterator[Row]:
    spent = spent_ns(s)
    total = sum(spent.values()) or 1
    for name, ns in spent.items():
        note = f"{100 * ns / total:.1f} %"
        if name == "finding memory" and s.move_ns:
            note += f", {s.move_ns / 1e6:,.1f} ms of it moving pages"
        yield name, f"{ns / 1e6:,.1f} ms", note


def _swapped(s: SessionStats) -> Iterator[Row]:
    """What went to the swap, if anything."""
    if not s.swapped_out_bytes:
        return
    moved = f"{format_size(s.swapped_in_bytes)} came back"
    if s.swapped_ahead_bytes:
        moved += f", {format_size(s.swapped_ahead_bytes)} ahead of its use"
    moved += f", in {s.swap_ns / 1e6:,.1f} ms"
    if s.swap_waited_ns < s.swap_ns:
        moved += f", of which operators waited for {s.swap_waited_ns / 1e6:,.1f} ms"
    yield "swapped out", format_size(s.swapped_out_bytes), moved


def _compiled_code(core: _core.Session, budget: int | None) -> Iterator[Row]:
    """What is told of it, if anything."""
    for text in core.stayed():
        yield "not recorded", "", text
    if compiled_code.backend_has_compiled is False:
        note = 'backend "dtr_alloc" was asked for, and has compiled nothing in this process'
        yield "compiled code", "none", f"{note}: use torch.compile(module), not module.compile()"
    held = core.stats().largest_hold_bytes
    if budget is not None and held > budget / 3:
        note = f"{100 * held / budget:.0f} % of the budget held by one call: compile smaller blocks"
        yield "compiled code", format_size(held), note


def _of_budget(s: SessionStats) -> str:
    if s.budget_bytes is None:
        return "budget none"
    past = s.peak_bytes > s.budget_bytes  # It has shrunk since.
    return f"{'the budget is now' if past else 'budget'} {format_size(s.budget_bytes)}"
