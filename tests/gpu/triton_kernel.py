"""A kernel as a user would write one: it gets addresses, and torch does not see what it does."""

import triton
import triton.language as tl


@triton.jit
def doubled(source, target, count, block: tl.constexpr):
    places = tl.program_id(0) * block + tl.arange(0, block)
    inside = places < count
    tl.store(target + places, 2 * tl.load(source + places, inside), inside)
