"""Ways to run a scope that no program should.

Tests make the runtime work harder than any program does, so that a wrong recomputation shows.
Others run its CUDA half on the CPU's tensors. The switches are not parameters of `rematerialize`,
because nobody else has a use for them: a test opens its scope inside `instrumented`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dtr_alloc.runtime.heuristic import Scorer, native_scorer
from dtr_alloc.runtime.scope import current


@contextmanager
def instrumented(
    *,
    evict_always: bool = False,
    verify: bool = False,
    on_cuda: bool = False,
    scorer: Scorer = "host",
    image: str = "",
    native: int = 0,
    swap_always: bool = False,
) -> Iterator[None]:
    """Makes scopes that `rematerialize` opens in the body use instruments.

    Args:
        evict_always: every tensor is evicted after every operator, so each touch recomputes.
        verify: every recorded operator is run again at once, and must give the same bytes.
        on_cuda: memory, copies and time stamps go through the CUDA driver, as on a device.
        scorer: where victims are chosen, as for `dtr_alloc.allocator`.
        image: PTX of the kernel that chooses them on the device.
        native: the address of a CUDA allocator that stands in for torch's. Tensors lie in its
            memory, of which the runtime is a guest. It holds for inner uses of this function, too.
        swap_always: every tensor goes to the swap after every operator, which the scope must have.
    """
    before = current.instruments
    current.instruments = {
        "evict_always": evict_always,
        "verify": verify,
        "on_cuda": on_cuda,
        "scorer": native_scorer(scorer),
        "image": image,
        "native": native or before.get("native", 0),
        "swap_always": swap_always,
    }
    try:
        yield
    finally:
        current.instruments = before
