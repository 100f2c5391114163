"""The kernel that the engine launches: the least score of each tile of its columns (Triton).

Triton compiles it ahead of time (`ahead.py`), and the engine loads the result without Triton
(`runtime/csrc/policy/device_scorer.h`). Tests launch it by `launch.py`. The formula is that of
`reference.py`.

The code keeps to what all of Triton 3.6 to 3.9 and the interpreter take: program ids are widened to
64 bits first, every load is masked, and reductions are the built-in ones. A row is 33 bytes for 20
flops, so the kernel is as fast as the memory is if loads are 16 bytes wide. They are where pointers
are multiples of 16 bytes and the number of rows is one of 16, as the engine's columns are.

The arguments are the columns of `runtime/csrc/policy/columns.h` but `order`, the answer, three
whole numbers, and the exponents, weights and factors of `runtime/csrc/policy/score.h`, in the order
of the lists there. A factor arrives as its log2.
"""

import triton
import triton.language as tl


@triton.jit
def _power(base, exponent, general: tl.constexpr):
    """`base` to the exponent, which is 0 or 1 unless `general`."""
    if general:
        # 1e-300 stands for nothing, whose logarithm is none.
        power = tl.exp2(exponent * tl.log2(tl.maximum(base, 1e-300)))
        power = tl.where(base > 0, power, 0.0)
    else:
        power = tl.full(base.shape, 1.0, base.dtype)
    one = tl.full(base.shape, 1.0, base.dtype)
    return tl.where(exponent == 1, base, tl.where(exponent == 0, one, power))


@triton.jit
def least_of_tiles(
    size,
    free_left,
    free_right,
    last_access,
    cost,
    neighbourhood,
    recomputes,
    evictable,
    lowest,  # (tiles,): the least score among the rows of each that may go, else infinite.
    n,
    clock,
    epsilon,
    cost_exp: tl.float64,  # Else a launch from Python would pass 32 bits.
    size_exp: tl.float64,
    staleness_exp: tl.float64,
    fragmentation: tl.float64,
    log2_recompute_penalty: tl.float64,
    block: tl.constexpr,
    general: tl.constexpr,  # Whether there are powers, free neighbours or a penalty.
):
    """The least score of each tile of the engine's columns, which lie in the host's memory. Nothing
    but the answer is written."""
    at = tl.program_id(0).to(tl.int64)
    rows = at * block + tl.arange(0, block)
    inside = rows < n
    bytes_ = tl.load(size + rows, mask=inside, other=0).to(tl.float64)
    used = tl.load(last_access + rows, mask=inside, other=0)
    own = tl.load(cost + rows, mask=inside, other=0)
    near = tl.load(neighbourhood + rows, mask=inside, other=0)
    may_go = tl.load(evictable + rows, mask=inside, other=0) != 0
    expense = (own + near + epsilon).to(tl.float64)
    staleness = (clock - used + epsilon).to(tl.float64)
    if general:
        left = tl.load(free_left + rows, mask=inside, other=0)
        right = tl.load(free_right + rows, mask=inside, other=0)
        free = (left + right).to(tl.float64)
        times = tl.load(recomputes + rows, mask=inside, other=0).to(tl.float64)
    numerator = _power(expense, cost_exp, general)  # The score, as reference.py has it.
    span = bytes_
    if general:
        span = bytes_ + fragmentation * free
        numerator = numerator * tl.exp2(times * log2_recompute_penalty)
    denominator = _power(span, size_exp, general) * _power(staleness, staleness_exp, general)
    sound = denominator > 0
    quotient = numerator / tl.where(sound, denominator, 1.0)
    score = tl.where(sound & (quotient == quotient), quotient, float("inf"))
    least = tl.min(tl.where(inside & may_go, score, float("inf")), axis=0)
    tl.store(lowest + at, least)
