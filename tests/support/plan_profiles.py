"""A program whose plans are known by hand: each step needs one of its results once more."""

from dtr_alloc.runtime.planning.profile import Profile
from dtr_alloc.runtime.trace import Trace
from dtr_alloc.runtime.trace.format import Annotate, Call, Instruction, Release, Result

KIB = 1 << 10
SECOND = 10**9
STEP = Annotate("STEP")
PEAK = 3 * KIB + 512


def first_needed_again(number: int) -> list[Instruction]:
    """A step whose first result is needed again after two more of its size. With room for two of
    them it is recomputed. Each operator takes a second."""
    a, b, c, d = (f"{letter}{number}" for letter in "abcd")

    def call(result: str, *args: str, size: int = KIB) -> Call:
        return Call("f", args, (Result(result, size, -1),), SECOND)

    made = [call(a), call(b), call(c, b), call(d, a, size=512)]
    return [*made, *map(Release, (a, b, c, d)), STEP]


def profile_of(steps: int, eager_s: float = 4.0, scope_s: float = 5.0) -> Profile:
    trace = Trace(tuple(item for step in range(steps) for item in first_needed_again(step)))
    timed = steps - 1
    return Profile(
        (trace,),
        warm_marks=1,
        traced_steps=timed,
        least_ns=trace.schedule().op_cost,
        eager_ns=(int(eager_s * SECOND),) * timed,
        scope_ns=(int(scope_s * SECOND),) * timed,
        kernel_ratio=1.0,
        peak_bytes=PEAK,
    )
