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
    """Scores of N candidates.

    Args:
        columns: the candidates.
        heuristic: the parameters of the score.
        clock: the present, in ns of the columns' last accesses.
        epsilon: ns that are added to costs and to times since the last use: 1 live and 0 in the
            paper's simulator.

    Returns:
        A float64 tensor of the shape (N,): not a number where a candidate may not go, infinite
        where there is nothing to divide by.

    Example:
        >>> import torch
        >>> from dtr_alloc import Heuristic
        >>> one, zero = torch.tensor([2]), torch.tensor([0])
        >>> columns = Columns(
        ...     one, zero, zero, zero, one, zero, zero.int(), one.to(torch.uint8) - 1, zero
        ... )
        >>> score(columns, Heuristic(), clock=9)
        tensor([0.1500], dtype=torch.float64)
        >>> score(columns, Heuristic(size_exp=0), clock=9)
        tensor([0.3000], dtype=torch.float64)
    """
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
