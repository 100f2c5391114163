"""What a rematerialization takes beyond the operator that it runs again.

A simulation knows the operator, the search for victims and the pages that move, each at the price
it has when nothing else happens. In a training it comes between other operators: what the search
looks at has left the caches, and pages that were given back are cleared anew. What that takes
depends on the machine, so it is measured, once a process: a small recurrent network is trained
without a budget and within half of its memory, in turn, and what a simulation of the same does not
account for is divided among its rematerializations. Some seconds.

That happens in the process of the user, whose settings shall have no part in it: there is no
optimizer that hooks would see, and grad mode, device and types are named. Hooks of saved tensors
and modes that the user has around `plan` still see it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from dtr_alloc.runtime.planning.forecast import Forecast
from dtr_alloc.runtime.planning.profile import Profile, budgeted_steps, recorded_steps
from dtr_alloc.runtime.scope import current

_CELLS, _ROWS, _WIDTH = 120, 64, 128
_SHARE = 0.5  # Of the peak.
_STEPS, _ROUNDS = 4, 8
CLOCK = time.process_time_ns  # There is one thread.


@functools.cache
def rematerialization_ns() -> float:
    """It, in ns; 0 or more. The first call measures. Raises RuntimeError where a scope is open."""
    recorded, free, tight = [], [], []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False):
            for _ in range(_ROUNDS):
                recorded.append(recorded_steps(_recurrent, _STEPS, clock=CLOCK))
                free.append(budgeted_steps(_recurrent, _STEPS, None, CLOCK))
                budget = int(recorded[0].peak_bytes * _SHARE)
                tight.append(budgeted_steps(_recurrent, _STEPS, budget, CLOCK))
    finally:
        torch.set_num_threads(threads)
    profile = Profile.of(free, recorded)
    profile = replace(profile, scope_ns=profile.eager_ns)
    forecast = Forecast(profile)
    # Of the search, too, the least time counts.
    foretold = min((forecast.predict(budget) for _ in range(_ROUNDS)), key=lambda p: p.step_ns)
    live_ns: float = sum(map(min, zip(*tight, strict=True))) / (_STEPS - 1)
    return max(live_ns - foretold.step_ns, 0.0) / max(foretold.rematerializations, 1.0)


def _recurrent() -> Callable[[], None]:
    generator = torch.Generator("cpu").manual_seed(0)

    def drawn(rows: int) -> torch.Tensor:
        size = (rows, _WIDTH)
        return torch.randn(size, generator=generator, dtype=torch.float32, device="cpu")

    weights = inward, onward = [(drawn(_WIDTH) / _WIDTH).requires_grad_() for _ in range(2)]
    rows = drawn(_ROWS)

    def step() -> None:
        for weight in weights:
            weight.grad = None
        hidden = torch.zeros(_ROWS, _WIDTH, dtype=torch.float32, device="cpu")
        for _ in range(_CELLS):
            hidden = (rows @ inward + torch.sigmoid(hidden @ onward)).tanh()
        hidden.sum().backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for weight in weights:
                assert weight.grad is not None
                weight.add_(weight.grad, alpha=-0.01)
        opened = current.scope()
        assert opened is not None
        opened.step()

    return step
