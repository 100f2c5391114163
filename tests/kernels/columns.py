"""What scores are made of: the columns of the candidates, a row each, of the types that the engine
keeps them in (`runtime/csrc/policy/columns.h`)."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True)
class Columns:
    """Each of the shape (N,), on one device. Sizes are bytes, times ns. int64, but for `recomputes`
    (int32) and `evictable` (uint8: 1, or 0 for what must stay). `order` is when a
    candidate became evictable; no two are equal."""

    size: Tensor
    free_left: Tensor
    free_right: Tensor
    last_access: Tensor
    cost: Tensor
    neighbourhood: Tensor
    recomputes: Tensor
    evictable: Tensor
    order: Tensor

    def __len__(self) -> int:
        return self.size.numel()

    def to(self, device: torch.device | str) -> "Columns":
        return Columns(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})
