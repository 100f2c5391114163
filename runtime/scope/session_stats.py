"""The figures of a scope: what `Session.stats` returns. The C++ session counts each of them
(live/session/stats.h) under the same name, so a figure is a line there and one here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SessionStats:
    """What a session did so far. Times are nanoseconds, sizes bytes.

    Attributes:
        operators: torch operators run by the program, without recomputations.
        recorded: those whose results can be recomputed.
        evictions: tensors evicted; what the program itself dropped does not count.
        rematerializations: operators run again.
        records: live entries of the runtime's own bookkeeping; 0 after a commit.
        kernel_ns: time in the program's operators and in compiled code.
        remat_ns: time in operators run again.
        search_ns: time spent choosing victims and giving their blocks back.
        move_ns: time that the host spent on moving pages while memory was sought.
        bookkeeping_ns: everything else the runtime did around operators.
        live_bytes: bytes in use of the scope's tensors, each rounded up to 512.
        peak_bytes: the most of these since the scope was opened or the peak reset.
        evictable_bytes: those of them that could be evicted now.
        evicted_bytes: of tensors evicted to make room; not by hand, nor by ``resize``.
        largest_operator_bytes: arguments and results of the largest operator so far.
        swapped_out_bytes: written to the swap.
        swapped_in_bytes: read from it.
        swapped_ahead_bytes: of these, what was on its way before the program touched it.
        swap_ns: time that the transfers took.
        swap_waited_ns: of it, what whoever reads what comes in waited for; of a CPU scope, all.
        budget_bytes: the budget at present, or None without one.
    """

    operators: int
    recorded: int
    evictions: int
    rematerializations: int
    records: int
    kernel_ns: int
    remat_ns: int
    search_ns: int
    move_ns: int
    bookkeeping_ns: int
    live_bytes: int
    peak_bytes: int
    evictable_bytes: int
    evicted_bytes: int
    largest_operator_bytes: int
    swapped_out_bytes: int
    swapped_in_bytes: int
    swapped_ahead_bytes: int
    swap_ns: int
    swap_waited_ns: int
    budget_bytes: int | None
