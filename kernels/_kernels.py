"""The kernels: score, the least of each block, the victims, and the cheapest window (Triton).

Imported only when a launch is asked for, since Triton is optional. Written for what all of Triton
3.6 to 3.9 and the interpreter take: program ids are widened to 64 bits first, every load is masked,
loops are `while`, reductions are the built-in ones. Formulas: `reference.py`.

A row's score is a stream: 33 bytes are read and 8 written for 20 flops, so the score is as fast as
memory if loads are 16 bytes wide. They are where pointers are multiples of 16 bytes and the number
of rows is one of 16, as the engine's columns are.
"""

import triton
import triton.language as tl


@triton.jit
def _power(base, exponent, powers: tl.constexpr):
    """`base` to the exponent, which is 0 or 1 unless `powers`."""
    if powers:
        real = base.to(tl.float64)
        # 1e-300 stands for nothing, whose logarithm is none.
        general = tl.exp2(exponent * tl.log2(tl.maximum(real, 1e-300)))
        general = tl.where(real > 0, general, 0.0).to(base.dtype)
    else:
        general = tl.full(base.shape, 1.0, base.dtype)
    one = tl.full(base.shape, 1.0, base.dtype)
    return tl.where(exponent == 1, base, tl.where(exponent == 0, one, general))


@triton.jit
def _score(
    expense,
    bytes_,
    free,
    times,
    staleness,
    cost_exp,
    size_exp,
    staleness_exp,
    fragmentation,
    log2_penalty,
    powers: tl.constexpr,
    extras: tl.constexpr,
    real: tl.constexpr,
):
    """The formula, on the terms of rows that are there."""
    numerator = _power(expense, cost_exp, powers)
    span = bytes_
    if extras:
        span = bytes_ + fragmentation * free
        numerator = numerator * tl.exp2(times * log2_penalty).to(real)
    denominator = _power(span, size_exp, powers) * _power(staleness, staleness_exp, powers)
    sound = denominator > 0
    divisor = tl.where(sound, denominator, 1.0)
    if real == tl.float32:  # noqa: SIM108 (decided when it is compiled)
        quotient = tl.div_rn(numerator, divisor)
    else:
        quotient = numerator / divisor
    return tl.where(sound & (quotient == quotient), quotient, float("inf"))


# Numbers that differ from launch to launch must not be compiled in.
@triton.jit(do_not_specialize=["clock", "epsilon"])
def score_rows(
    size,
    free_left,
    free_right,
    last_access,
    cost,
    neighbourhood,
    recomputes,
    evictable,
    order,
    settings,  # (P, 8) float64: three exponents, fragmentation, log2 of the penalty, nothing.
    scores,  # (P, stride)
    block_score,  # (P, blocks) with `minima`: the least score of each block,
    block_order,  # and the greatest order among those that have it, or -1.
    n,
    stride,
    setting_count,
    clock,
    epsilon,
    block: tl.constexpr,
    settings_each: tl.constexpr,
    powers: tl.constexpr,
    extras: tl.constexpr,
    minima: tl.constexpr,
    real: tl.constexpr,
):
    """Scores of a block of rows under the settings of one group; not a number where a row may not
    go."""
    at = tl.program_id(0).to(tl.int64)
    rows = at * block + tl.arange(0, block)
    inside = rows < n
    bytes_ = tl.load(size + rows, mask=inside, other=0).to(real)
    used = tl.load(last_access + rows, mask=inside, other=0)
    own = tl.load(cost + rows, mask=inside, other=0)
    near = tl.load(neighbourhood + rows, mask=inside, other=0)
    may_go = tl.load(evictable + rows, mask=inside, other=0) != 0
    expense = (own + near + epsilon).to(real)
    staleness = (clock - used + epsilon).to(real)
    free = bytes_
    times = bytes_.to(tl.float64)
    if extras:
        left = tl.load(free_left + rows, mask=inside, other=0)
        right = tl.load(free_right + rows, mask=inside, other=0)
        free = (left + right).to(real)
        times = tl.load(recomputes + rows, mask=inside, other=0).to(tl.float64)
    stamp = rows
    if minima:
        stamp = tl.load(order + rows, mask=inside, other=-1)
    setting = tl.program_id(1).to(tl.int64) * settings_each
    end = tl.minimum(setting + settings_each, setting_count)
    while setting < end:
        given = settings + setting * 8
        known = setting < setting_count
        cost_exp = tl.load(given, mask=known, other=0.0)
        size_exp = tl.load(given + 1, mask=known, other=0.0)
        staleness_exp = tl.load(given + 2, mask=known, other=0.0)
        fragmentation = tl.load(given + 3, mask=known, other=0.0).to(real)
        log2_penalty = tl.load(given + 4, mask=known, other=0.0)
        score = _score(
            expense,
            bytes_,
            free,
            times,
            staleness,
            cost_exp,
            size_exp,
            staleness_exp,
            fragmentation,
            log2_penalty,
            powers,
            extras,
            real,
        )
        tl.store(
            scores + setting * stride + rows,
            tl.where(may_go, score, float("nan")),
            mask=inside,
        )
        if minima:
            candidate = inside & may_go
            least = tl.min(tl.where(candidate, score, float("inf")), axis=0)
            last = tl.max(tl.where(candidate & (score == least), stamp, -1), axis=0)
            blocks = tl.num_programs(0).to(tl.int64)
            tl.store(block_score + setting * blocks + at, least)
            tl.store(block_order + setting * blocks + at, last)
        setting += 1


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
    cost_exp,
    size_exp,
    staleness_exp,
    fragmentation,
    log2_penalty,
    block: tl.constexpr,
    general: tl.constexpr,  # Whether there are powers, free neighbours or a penalty.
):
    """What the engine asks for: of each tile of its columns, which lie in the host's memory, the
    least score. One setting, no tensor written but the answer."""
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
    free = bytes_
    times = bytes_
    if general:
        left = tl.load(free_left + rows, mask=inside, other=0)
        right = tl.load(free_right + rows, mask=inside, other=0)
        free = (left + right).to(tl.float64)
        times = tl.load(recomputes + rows, mask=inside, other=0).to(tl.float64)
    score = _score(
        expense,
        bytes_,
        free,
        times,
        staleness,
        cost_exp,
        size_exp,
        staleness_exp,
        fragmentation,
        log2_penalty,
        general,
        general,
        tl.float64,
    )
    least = tl.min(tl.where(inside & may_go, score, float("inf")), axis=0)
    tl.store(lowest + at, least)


@triton.jit(do_not_specialize=["request", "most"])
def take_victims(
    scores,
    size,
    order,
    block_score,
    block_order,
    victims,  # (P, most)
    counts,  # (P,): victims; -1 where the least score is not above 0.
    n,
    stride,
    blocks,
    request,
    most,
    block: tl.constexpr,
    blocks_up: tl.constexpr,  # `blocks`, up to a power of 2.
):
    """From the least of each block, who goes until `request` bytes are freed: the least of all,
    then the least that its block still has, and so on. Nothing is written but the victims: who
    comes after the last victim is still there."""
    setting = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, blocks_up)
    there = lanes < blocks
    heads = setting * blocks.to(tl.int64) + lanes
    head_score = tl.load(block_score + heads, mask=there, other=float("inf"))
    head_order = tl.load(block_order + heads, mask=there, other=-1)
    least = tl.min(tl.where(head_order >= 0, head_score, float("inf")), axis=0)
    last = tl.max(tl.where(head_score == least, head_order, -1), axis=0)
    regular = (last < 0) | (least > 0)
    freed = tl.full((), 0, tl.int64)
    count = tl.full((), 0, tl.int32)
    while (freed < request) & (count < most) & (last >= 0) & regular:
        mine = (head_score == least) & (head_order == last)
        chosen = tl.max(tl.where(mine, lanes, -1), axis=0).to(tl.int64)
        rows = chosen * block + tl.arange(0, block)
        inside = rows < n
        score = tl.load(scores + setting * stride + rows, mask=inside, other=float("nan"))
        stamp = tl.load(order + rows, mask=inside, other=-1)
        victim = tl.max(tl.where(inside & (stamp == last) & (score == least), rows, -1), axis=0)
        tl.store(victims + setting * most + count, victim)
        freed += tl.load(size + victim, mask=victim >= 0, other=0)
        count += 1
        # The rest of its block: what is greater, or equal and became evictable before.
        rest = inside & ((score > least) | ((score == least) & (stamp < last)))
        next_score = tl.min(tl.where(rest, score, float("inf")), axis=0)
        next_order = tl.max(tl.where(rest & (score == next_score), stamp, -1), axis=0)
        head_score = tl.where(mine, next_score, head_score)
        head_order = tl.where(mine, next_order, head_order)
        least = tl.min(tl.where(head_order >= 0, head_score, float("inf")), axis=0)
        last = tl.max(tl.where(head_score == least, head_order, -1), axis=0)
    tl.store(counts + setting, tl.where(regular, count, -1))


@triton.jit(do_not_specialize=["clock"])
def prefix_sums(
    size,
    free,
    evictable,
    cost,
    last_access,
    sum_bytes,  # Each (B + 1,): over the blocks before.
    sum_evicted,
    sum_barriers,
    sum_cost,
    sum_staleness,
    n,
    clock,
    block: tl.constexpr,
):
    """What prefix sums a window needs, by one program, chunk by chunk."""
    lanes = tl.arange(0, block)
    first = lanes == 0
    zero = tl.zeros((block,), tl.int64)
    nothing = tl.zeros((block,), tl.float64)
    tl.store(sum_bytes + lanes, zero, mask=first)
    tl.store(sum_evicted + lanes, zero, mask=first)
    tl.store(sum_barriers + lanes, zero, mask=first)
    tl.store(sum_cost + lanes, nothing, mask=first)
    tl.store(sum_staleness + lanes, nothing, mask=first)
    bytes_before = tl.full((), 0, tl.int64)
    evicted_before = tl.full((), 0, tl.int64)
    barriers_before = tl.full((), 0, tl.int64)
    cost_before = tl.full((), 0.0, tl.float64)
    staleness_before = tl.full((), 0.0, tl.float64)
    begin = tl.full((), 0, tl.int64)
    while begin < n:
        rows = begin + lanes
        inside = rows < n
        bytes_ = tl.load(size + rows, mask=inside, other=0)
        is_free = tl.load(free + rows, mask=inside, other=0) != 0
        may_go = tl.load(evictable + rows, mask=inside, other=0) != 0
        taken = inside & may_go & (is_free == 0)
        price = tl.load(cost + rows, mask=inside, other=0.0)
        used = tl.load(last_access + rows, mask=inside, other=0)
        evicted = tl.where(taken, bytes_, 0)
        barrier = (inside & (is_free == 0) & (may_go == 0)).to(tl.int64)
        price = tl.where(taken, price, 0.0)
        stale = evicted.to(tl.float64) * (clock - used).to(tl.float64)
        after = rows + 1
        tl.store(sum_bytes + after, bytes_before + tl.cumsum(bytes_, axis=0), mask=inside)
        tl.store(sum_evicted + after, evicted_before + tl.cumsum(evicted, axis=0), mask=inside)
        tl.store(sum_barriers + after, barriers_before + tl.cumsum(barrier, axis=0), mask=inside)
        tl.store(sum_cost + after, cost_before + tl.cumsum(price, axis=0), mask=inside)
        tl.store(sum_staleness + after, staleness_before + tl.cumsum(stale, axis=0), mask=inside)
        bytes_before += tl.sum(bytes_, axis=0)
        evicted_before += tl.sum(evicted, axis=0)
        barriers_before += tl.sum(barrier, axis=0)
        cost_before += tl.sum(price, axis=0)
        staleness_before += tl.sum(stale, axis=0)
        begin += block


@triton.jit(do_not_specialize=["request", "lacking", "epsilon"])
def window_of_ends(
    sum_bytes,
    sum_evicted,
    sum_barriers,
    sum_cost,
    sum_staleness,
    begins,  # (B,): of the shortest run that ends at each block,
    scores,  # and its score; infinite where there is none.
    n,
    request,
    lacking,
    cost_exp,
    staleness_exp,
    epsilon,
    block: tl.constexpr,
):
    """For each block the last begin of a run that holds the request and ends there, by
    bisection."""
    rows = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = rows < n
    ends = rows + 1
    bytes_ = tl.load(sum_bytes + ends, mask=inside, other=0)
    evicted = tl.load(sum_evicted + ends, mask=inside, other=0)
    # Begin `low` is early enough, `high` is not; -1 always is.
    low = tl.full((block,), -1, tl.int64)
    high = tl.where(inside, ends, 0)
    steps = tl.max(high, axis=0)
    while steps > 0:
        middle = (low + high) // 2
        open_ = inside & (high - low > 1)
        middle = tl.where(open_, middle, 0)
        before = tl.load(sum_bytes + middle, mask=open_, other=0)
        evicted_before = tl.load(sum_evicted + middle, mask=open_, other=0)
        holds = (bytes_ - before >= request) & (evicted - evicted_before >= lacking)
        low = tl.where(open_ & holds, middle, low)
        high = tl.where(open_ & (holds == 0), middle, high)
        steps = steps // 2
    found = inside & (low >= 0)
    begin = tl.where(found, low, 0)
    barriers = tl.load(sum_barriers + ends, mask=inside, other=1) - tl.load(
        sum_barriers + begin, mask=found, other=0
    )
    among = evicted - tl.load(sum_evicted + begin, mask=found, other=0)
    total = tl.load(sum_cost + ends, mask=inside, other=0.0) - tl.load(
        sum_cost + begin, mask=found, other=0.0
    )
    stale = tl.load(sum_staleness + ends, mask=inside, other=0.0) - tl.load(
        sum_staleness + begin, mask=found, other=0.0
    )
    sound = found & (barriers == 0) & (among > 0)
    parts = tl.where(sound, among, 1).to(tl.float64)
    numerator = _power(tl.maximum(total, 0.0) + epsilon, cost_exp, True)
    denominator = _power(tl.maximum(stale, 0.0) / parts + epsilon, staleness_exp, True)
    score = numerator / tl.where(denominator > 0, denominator, 1.0)
    score = tl.where(sound & (denominator > 0), score, float("inf"))
    tl.store(begins + rows, begin, mask=inside)
    tl.store(scores + rows, score, mask=inside)
