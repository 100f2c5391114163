"""What scores are made of: the columns of the candidates.

A column is an array of N, one row a candidate, of the type that the engine keeps it in
(`runtime/csrc/policy/columns.h`).
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor


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

    def to(self, device: torch.device | str) -> "Columns":
        """The same on `device`."""
        return Columns(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})
