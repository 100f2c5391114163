"""What scores are made of: the columns of the candidates, and the settings of the score.

Columns are arrays of N, one row a candidate, of the types that the engine keeps them in
(`policy/columns.h`), so that a kernel reads the engine's own memory. Settings are arrays of
P: one launch scores every candidate under every setting, which is what a search over parameters
asks for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from dtr_alloc.runtime.heuristic import Heuristic


@dataclass(frozen=True)
class Columns:
    """The candidates. Each column has the shape (N,) and lies on one device.

    Attributes:
        size, free_left, free_right: int64 bytes of the block, and free directly beside it.
        last_access, cost, neighbourhood: int64 ns: when it was last used, what its operator took,
            and what its evicted neighbourhood would.
        recomputes: int32, how often it has been recomputed.
        evictable: uint8, 1, or 0 for what must stay.
        order: int64, when it became evictable; no two are equal. Of equal scores the greatest goes.

    Raises:
        ValueError: a column of another type, shape or device.
    """

    size: Tensor
    free_left: Tensor
    free_right: Tensor
    last_access: Tensor
    cost: Tensor
    neighbourhood: Tensor
    recomputes: Tensor
    evictable: Tensor
    order: Tensor

    def __post_init__(self) -> None:
        types = {"recomputes": torch.int32, "evictable": torch.uint8}
        for field in fields(self):
            column: Tensor = getattr(self, field.name)
            dtype = types.get(field.name, torch.int64)
            if column.dtype != dtype or column.shape != (len(self),):
                raise ValueError(
                    f"column {field.name} is {column.dtype} of shape {tuple(column.shape)}; it "
                    f"must be {dtype} of shape ({len(self)},), as many as there are sizes"
                )
            if column.device != self.size.device:
                raise ValueError(
                    f"column {field.name} is on {column.device}, sizes are on {self.size.device}"
                )

    def __len__(self) -> int:
        return self.size.numel()

    def to(self, device: torch.device | str) -> Columns:
        """The same on `device`."""
        return Columns(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})


@dataclass(frozen=True)
class Settings:
    """P settings of the score. Each attribute is float64 of the shape (P,), on the host: what a
    kernel has to know of them, it is told at its launch."""

    cost_exp: Tensor
    size_exp: Tensor
    staleness_exp: Tensor
    fragmentation: Tensor
    recompute_penalty: Tensor
    epsilon: int = 1

    def __post_init__(self) -> None:
        for name, column in self.columns().items():
            if column.dtype != torch.float64 or column.shape != self.cost_exp.shape:
                raise ValueError(f"setting {name} must be float64, as many as there are settings")

    def __len__(self) -> int:
        return self.cost_exp.numel()

    @staticmethod
    def of(heuristics: Sequence[Heuristic], epsilon: int = 1) -> Settings:
        """Those of heuristics. `epsilon`, in ns, is 1 live and 0 in the paper's simulator.

        Example:
            >>> len(Settings.of([Heuristic(), Heuristic(size_exp=0.5)]))
            2
        """

        def column(name: str) -> Tensor:
            return torch.tensor([getattr(h, name) for h in heuristics], dtype=torch.float64)

        return Settings(
            column("cost_exp"),
            column("size_exp"),
            column("staleness_exp"),
            column("fragmentation"),
            column("recompute_penalty"),
            epsilon,
        )

    def columns(self) -> dict[str, Tensor]:
        """The attributes of the shape (P,)."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "epsilon"}

    def exponents_are_0_or_1(self) -> bool:
        """Whether no setting needs a power."""
        powers = torch.cat([self.cost_exp, self.size_exp, self.staleness_exp])
        return bool(((powers == 0) | (powers == 1)).all())

    def plain(self) -> bool:
        """Whether, besides, no setting looks at free neighbours or at what was recomputed."""
        return (
            self.exponents_are_0_or_1()
            and not bool(self.fragmentation.any())
            and bool((self.recompute_penalty == 1).all())
        )

    def log2_penalty(self) -> list[float]:
        """Of each setting."""
        return [math.log2(penalty) for penalty in self.recompute_penalty.tolist()]
