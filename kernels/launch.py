"""The kernels' launchers: torch tensors in, torch tensors out, the formulas of `reference.py`.

A launcher takes columns on a CUDA device, or on the CPU where Triton's interpreter was asked for
(TRITON_INTERPRET=1, set before Triton is imported). `dtr_alloc.kernels` chooses between these and
the plain torch ones.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from dtr_alloc.kernels import reference
from dtr_alloc.kernels.columns import Columns, Settings
from dtr_alloc.kernels.reference import Window

BLOCK = 256
"""Rows of a program of 128 threads: two each, so that loads are 16 bytes wide and registers few."""
SETTINGS_EACH = 8
"""Settings that a program scores its rows under: rows are read once for so many."""
BLOCK_WITH_MINIMA = 1024
MOST_BLOCKS = 2048
"""The last step of a selection holds the least of each block in registers."""
ALIGNED = 16
"""Rows of scores begin at a multiple of so many."""
FIRST_VICTIMS = 256
"""Room for victims at first; most requests take a few."""


def _settings(settings: Settings, device: torch.device) -> Tensor:
    table = torch.zeros(len(settings), 8, dtype=torch.float64)
    table[:, 0] = settings.cost_exp
    table[:, 1] = settings.size_exp
    table[:, 2] = settings.staleness_exp
    table[:, 3] = settings.fragmentation
    table[:, 4] = torch.tensor(settings.log2_penalty(), dtype=torch.float64)
    if device.type == "cuda":  # From pinned memory the host need not wait for the copy.
        table = table.pin_memory()
    return table.to(device, non_blocking=True)


def _launch_score(
    columns: Columns, settings: Settings, clock: int, dtype: torch.dtype, minima: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores of the shape (P, N) in rows that begin at multiples of ALIGNED, and with `minima` the
    least of each block and its order, both (P, blocks)."""
    import triton.language as tl

    from dtr_alloc.kernels import _kernels

    n, count, device = len(columns), len(settings), columns.size.device
    stride = -(-n // ALIGNED) * ALIGNED
    scores = torch.empty(count, stride, dtype=dtype, device=device)
    block = BLOCK_WITH_MINIMA if minima else BLOCK
    blocks = max(-(-n // block), 1)
    least = torch.empty(count, blocks if minima else 0, dtype=dtype, device=device)
    last = torch.empty(count, blocks if minima else 0, dtype=torch.int64, device=device)
    plain = settings.plain()
    kernel: Any = _kernels.score_rows
    kernel[(blocks, -(-count // SETTINGS_EACH))](
        columns.size,
        columns.free_left,
        columns.free_right,
        columns.last_access,
        columns.cost,
        columns.neighbourhood,
        columns.recomputes,
        columns.evictable,
        columns.order,
        _settings(settings, device),
        scores,
        least,
        last,
        n,
        stride,
        count,
        clock,
        settings.epsilon,
        block=block,
        settings_each=SETTINGS_EACH,
        powers=not settings.exponents_are_0_or_1(),
        extras=not plain,
        minima=minima,
        real=tl.float64 if dtype == torch.float64 else tl.float32,
        num_warps=8 if minima else 4,
        enable_fp_fusion=False,  # A product that is not rounded is not the C++ scorer's.
    )
    return scores[:, :n], least, last


def score(
    columns: Columns, settings: Settings, clock: int, dtype: torch.dtype = torch.float64
) -> Tensor:
    """As `reference.score`, in one launch."""
    return _launch_score(columns, settings, clock, dtype, minima=False)[0]


def victims(columns: Columns, settings: Settings, clock: int, request: int) -> list[Tensor]:
    """As `reference.victims`, in two launches, but for settings whose least score is not above 0:
    those are selected by the reference. So are more rows than the second launch holds blocks of."""
    n, count, device = len(columns), len(settings), columns.size.device
    if n == 0 or n > MOST_BLOCKS * BLOCK_WITH_MINIMA:
        return reference.victims(columns, settings, clock, request)
    from dtr_alloc.kernels import _kernels

    scores, least, last = _launch_score(columns, settings, clock, torch.float64, minima=True)
    blocks = least.shape[1]
    kernel: Any = _kernels.take_victims
    most = min(FIRST_VICTIMS, n)
    while True:
        chosen = torch.empty(count, most, dtype=torch.int64, device=device)
        counts = torch.empty(count, dtype=torch.int32, device=device)
        kernel[(count,)](
            scores,
            columns.size,
            columns.order,
            least,
            last,
            chosen,
            counts,
            n,
            scores.stride(0),
            blocks,
            request,
            most,
            block=BLOCK_WITH_MINIMA,
            blocks_up=max(1 << math.ceil(math.log2(blocks)), 16),
            num_warps=4,
        )
        found = counts.tolist()
        if most == n or max(found) < most:
            break
        most = n  # Rare: hundreds of victims for one request.
    return [
        chosen[at, :taken]
        if taken >= 0
        else reference.select(scores[at], columns.size, columns.order, request)
        for at, taken in enumerate(found)
    ]


def window(
    size: Tensor,
    free: Tensor,
    evictable: Tensor,
    cost: Tensor,
    last_access: Tensor,
    clock: int,
    request: int,
    lacking: int,
    cost_exp: float = 1.0,
    staleness_exp: float = 1.0,
    epsilon: int = 1,
) -> Window:
    """As `reference.window`, in two launches and an argmin."""
    from dtr_alloc.kernels import _kernels

    n, device = size.numel(), size.device
    if n == 0:
        return Window(0, 0, float("inf"))
    sums = [torch.empty(n + 1, dtype=torch.int64, device=device) for _ in range(3)]
    sums += [torch.empty(n + 1, dtype=torch.float64, device=device) for _ in range(2)]
    begins = torch.empty(n, dtype=torch.int64, device=device)
    scores = torch.empty(n, dtype=torch.float64, device=device)
    scan: Any = _kernels.prefix_sums
    scan[(1,)](
        size,
        free.to(torch.uint8),
        evictable.to(torch.uint8),
        cost.double(),
        last_access,
        *sums,
        n,
        clock,
        block=1024,
        num_warps=8,
    )
    search: Any = _kernels.window_of_ends
    search[(-(-n // BLOCK),)](
        *sums,
        begins,
        scores,
        n,
        request,
        lacking,
        float(cost_exp),
        float(staleness_exp),
        epsilon,
        block=BLOCK,
        num_warps=4,
    )
    best = int(torch.argmin(scores))
    if scores[best] == torch.inf:
        return Window(0, 0, float("inf"))
    return Window(int(begins[best]), best + 1, float(scores[best]))
