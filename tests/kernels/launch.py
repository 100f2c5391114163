"""The kernel's launcher for tests: torch tensors in, a torch tensor out.

It takes columns on a CUDA device, or on the CPU where Triton's interpreter was asked for
(TRITON_INTERPRET=1, set before Triton is imported). The engine has its own launcher
(`runtime/csrc/policy/device_scorer.cpp`).
"""

import math
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from dtr_alloc.kernels import ahead
from dtr_alloc.runtime.heuristic import USER_PARAMETERS, Heuristic
from tests.kernels.columns import Columns


def settings_of(heuristic: Heuristic) -> list[float]:
    """The numbers of the formula, as the kernel wants them: of factors the log2."""
    settings = []
    for one in USER_PARAMETERS:
        if one.role in ("exponent", "weight", "factor"):
            value = getattr(heuristic, one.name)
            settings.append(math.log2(value) if one.role == "factor" else float(value))
    return settings


def is_plain(heuristic: Heuristic) -> bool:
    """Whether it needs no power and has no weight or factor (`plain` in policy/score.h)."""
    plain = {"exponent": (0, 1), "weight": (0,), "factor": (1,)}
    return all(
        getattr(heuristic, one.name) in plain[one.role]
        for one in USER_PARAMETERS
        if one.role in plain
    )


def least_of_tiles(
    columns: Columns, heuristic: Heuristic, clock: int, epsilon: int = 1, *, general: bool = True
) -> Tensor:
    """The least score (`reference.score`) of each tile of `ahead.TILE` rows, float64: infinite if
    none of them may go. `general`: by the kernel for any heuristic, not by the one for plain ones.
    """
    from dtr_alloc.kernels import _kernels

    tiles = -(-len(columns) // ahead.TILE)
    lowest = torch.empty(tiles, dtype=torch.float64, device=columns.size.device)
    kernel: Any = _kernels.least_of_tiles
    kernel[(tiles,)](
        *(getattr(columns, field.name) for field in fields(columns) if field.name != "order"),
        lowest,
        len(columns),
        clock,
        epsilon,
        *settings_of(heuristic),
        block=ahead.TILE,
        general=general,
        num_warps=ahead.WARPS,
        enable_fp_fusion=False,  # A product that is not rounded is not the C++ scorer's.
    )
    return lowest
