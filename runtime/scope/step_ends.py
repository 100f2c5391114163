"""Where a step of the program ends.

A step is what the program does with a batch: tapes, traces and ``session.summary()`` count by it.
Torch tells of the steps of optimizers, and mostly each ends a step of the program. But a program
may have several for one batch: one for matrices and one for the rest, called one after the other;
or one for each parameter, which steps within the backward pass as soon as it has the gradient. So
an optimizer's step ends none where no forward pass was since the last step ended, unless this
optimizer steps again. Those within a backward pass end one together, when the pass is over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import torch

_NO_PASS = -1  # What torch says outside of a backward pass.


class _Thread(threading.local):
    """What a thread did since its last step ended."""

    def __init__(self) -> None:
        self.seen = 0  # Operators at the end of its last optimizer's step.
        self.worked = True
        self.stepped: set[int] = set()  # Optimizers, by their ids.


class StepEnds:
    """Of one scope. `operators` counts those that can be recomputed, which are a forward pass's.
    `ended` hears of each end."""

    def __init__(self, operators: Callable[[], int], ended: Callable[[], None]) -> None:
        self._operators = operators
        self._ended = ended
        self._here = _Thread()
        self._lock = threading.Lock()
        self._passes: set[int] = set()  # Backward passes in which an optimizer stepped.

    def optimizer_begins(self) -> None:
        """Before an optimizer's step."""
        self._here.worked |= self._operators() != self._here.seen

    def closure_runs(self) -> None:
        """Within an optimizer's step the program does its work."""
        self._here.worked = True

    def optimizer_ends(self, optimizer: object) -> bool:
        """After an optimizer's step. Returns whether it follows the one that ended the step."""
        here, this = self._here, torch._C._current_graph_task_id()
        if this != _NO_PASS:
            with self._lock:  # Each device of a pass has a thread of its own.
                known = this in self._passes
                self._passes.add(this)
            if not known:
                over = partial(self._pass_is_over, this)
                torch.autograd.Variable._execution_engine.queue_callback(over)
        elif ends := here.worked or id(optimizer) in here.stepped:
            self._end()
        here.stepped.add(id(optimizer))
        here.seen = self._operators()
        return this == _NO_PASS and not ends

    def _pass_is_over(self, this: int) -> None:
        self._passes.discard(this)
        self._end()

    def _end(self) -> None:
        self._here.worked = False
        self._here.stepped.clear()
        self._here.seen = self._operators()
        self._ended()
