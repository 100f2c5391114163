"""The score in plain torch: what the kernel and the C++ scorer must agree with.

Every step is the C++ scorer's (`runtime/csrc/policy/score.h`), so scores are equal to the bit but
for powers, whose last bit is the library's.

Source: Kirisame et al., ICLR 2021, section 4.1.
"""

import torch
from torch import Tensor

from dtr_alloc.runtime.heuristic import Heuristic
from tests.kernels.columns import Columns


def score(columns: Columns, heuristic: Heuristic, clock: int, epsilon: int = 1) -> Tensor:
    """Of N candidates: a float64 tensor of the shape (N,), not a number where one may not go, and
    infinite where there is nothing to divide by. `epsilon` is added to costs and to times since the
    last use, in ns as the clock: 1 live and 0 in the paper's simulator."""
    h = heuristic

    def power(base: Tensor, exponent: float) -> Tensor:
        if exponent in (0, 1):
            return base if exponent else torch.ones_like(base)
        return base.clamp(min=0).pow(exponent)

    cost = (columns.cost + columns.neighbourhood + epsilon).double()
    free = (columns.free_left + columns.free_right).double()
    staleness = (clock - columns.last_access + epsilon).double()
    penalty = torch.pow(h.recompute_penalty, columns.recomputes.double())
    bytes_ = columns.size.double() + h.fragmentation * free
    numerator = power(cost, h.cost_exp) * penalty
    denominator = power(bytes_, h.size_exp) * power(staleness, h.staleness_exp)
    quotient = numerator / denominator
    scores = torch.where((denominator <= 0) | quotient.isnan(), torch.inf, quotient)
    return torch.where(columns.evictable.bool(), scores, torch.nan)
