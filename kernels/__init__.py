"""Scoring and selection as data-parallel jobs, in Triton on a device and in plain torch elsewhere.

    from dtr_alloc import kernels

    scores = kernels.score(columns, settings, clock)  # P settings x N candidates, one launch
    rows = kernels.victims(columns, settings, clock, request)

Columns on a CUDA device go to the kernels (`launch`, which needs Triton), others to the formulas
(`reference`), unless TRITON_INTERPRET=1 asks for the kernels there too.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from dtr_alloc.kernels import reference
from dtr_alloc.kernels.columns import Columns, Settings
from dtr_alloc.kernels.reference import Window

__all__ = ["Columns", "Settings", "Window", "score", "victims", "window"]


def _for(column: Tensor) -> ModuleType:
    """The module that works on the device of `column`."""
    if column.is_cuda or os.environ.get("TRITON_INTERPRET") == "1":
        from dtr_alloc.kernels import launch

        return launch
    return reference


def score(
    columns: Columns, settings: Settings, clock: int, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Scores of every candidate under every setting: see `reference.score`."""
    scores: Tensor = _for(columns.size).score(columns, settings, clock, dtype)
    return scores


def victims(columns: Columns, settings: Settings, clock: int, request: int) -> list[Tensor]:
    """Who goes under each setting, so that `request` bytes are freed: see `reference.select`."""
    rows: list[Tensor] = _for(columns.size).victims(columns, settings, clock, request)
    return rows


def window(size: Tensor, *arguments: Any, **options: Any) -> Window:
    """The cheapest run of neighbours that holds a request: see `reference.window`."""
    found: Window = _for(size).window(size, *arguments, **options)
    return found
