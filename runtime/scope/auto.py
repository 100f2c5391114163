"""Settings chosen by simulating the program's own steps: ``heuristic="auto"``.

No one heuristic is best for every program: what recomputes a third less in one recomputes twice as
much in another. But the first steps of a scope are recorded anyway, and the simulator takes the
live runtime's decisions (mode ``pool``). So a thread replays the steps by each candidate
(candidates.py), at the scope's budget, and the best is taken when the next step of an optimizer
ends. Another budget starts the search again. Programs change as well, so every hundred steps some
are recorded and searched anew. A choice can cost time, and never a result.

What counts is the time that a candidate adds to the last of these steps: operators run again, pages
moved, and the choice of victims, which is timed, because it is the same code. By then the tape
foretells them, and each operator has its usual time (csrc/live/usual_times.h), so that a program
that repeats itself does what the simulation did, operator by operator. One that does not may do
otherwise. So a candidate must be better by some to be taken, and is on trial for its first steps
(trial.py): where it adds more than what was in force, that comes back, and the search begins anew
without the one that failed.

Cost: the thread sleeps until a hundredth of the elapsed time pays for the next simulation. Python's
lock is held only to make the trace, some fifty microseconds an operator.
"""

from __future__ import annotations

import atexit
import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dtr_alloc import _core
from dtr_alloc.runtime.heuristic import DEFAULT, Heuristic, Policy, name_of, resolve
from dtr_alloc.runtime.scope.candidates import FIRST, changed
from dtr_alloc.runtime.scope.trial import Added, Choice, Trial
from dtr_alloc.runtime.simulate.result import SimulationResult
from dtr_alloc.runtime.simulate.rules import HOPELESS, Clock, Rules, live
from dtr_alloc.runtime.simulate.simulator import Simulator
from dtr_alloc.runtime.trace.from_records import first_steps, trace_of

AUTO = "auto"

_STEPS, _FORETOLD = 6, 3  # Recorded for a search; those by which a candidate is judged, the last.
_TRIAL = 4  # Steps by which a choice is judged.
_FAILURES = 3  # Choices that failed at a budget: then nothing else is tried.
_AGAIN = 100  # Steps from the end of one search until others are recorded for the next.
_SHARE = 0.01  # Of the elapsed time.
_BETTER = 0.97  # Of the time added by what is in force, at most.
_NEGLIGIBLE = 0.005  # Of the operators' time: there is nothing to choose.
_CHANGES, _SECONDS = 100, 5.0  # At most so many are tried of the best so far, in such a time.
_RECORD_SECONDS = 3e-6  # To make a trace, for each integer of its records. Until it is known.


@dataclass(frozen=True)
class Seen:
    """Some steps of a program (trace/from_records.py); `last` is the number of the last of them."""

    records: npt.NDArray[np.int64]
    operators: list[str]
    last: int

    def replay(self) -> Replay:
        """Of these steps."""
        return Replay(self._simulator(_STEPS - _FORETOLD), self._simulator(_STEPS))

    def _simulator(self, steps: int) -> Simulator:
        return Simulator(trace_of(first_steps(self.records.tolist(), steps), self.operators))


@dataclass(frozen=True)
class Replay:
    """What is simulated: all steps that were recorded, and those alone that come first, until the
    usual times are known."""

    earlier: Simulator
    all: Simulator


class Chooser:
    """Chooses for one scope."""

    def __init__(self, policy: Policy, clock: Clock) -> None:
        self._rules = live(policy=policy, clock=clock)
        self._began = time.monotonic()
        self.spent_seconds = 0.0
        self._wake = threading.Condition()
        self._closed = False
        self._budget = 0  # That to choose for.
        self._asked = self._begun = 0  # Searches; `_over`: the one begun last.
        self._over = False
        self._steps = self._idle_steps = 0  # Of optimizers; those since a search was over.
        self._patience = _AGAIN
        self._seen: Seen | None = None  # To search by.
        self._looking = False  # Whether steps are being recorded, after the first.
        self._waiting: Choice | None = None  # Until the end of a step.
        self._thread: threading.Thread | None = None
        self.choice: Choice | None = None  # In force.
        self._live = Added(_TRIAL, timed=clock == "wall")
        self._most = math.inf  # What a choice may add: no more than any before it might.
        self._trial: Trial | None = None  # Of the choice.
        self._worse: set[tuple[int, Heuristic]] = set()  # That failed, and at which budget.
        self._draw = random.Random(0)
        self._why_not = "no step of an optimizer was seen"
        self._failed = ""  # What a trial found, if the last one failed.

    def stepped(self, core: _core.Session) -> None:
        """At the end of each step of an optimizer, in the thread of the program."""
        with self._wake:
            if self._closed:
                return
            before, budget = self._in_force(), core.pool_stats().budget
            self._steps += 1
            if budget != self._budget:
                self._begin_anew(budget)
            self._live.step_ended(core.stats())
            if self._live.whole:
                self._judge()
                self._take()
            follow = self._in_force()
            if self._thread is None:
                self._begin(core)
            else:
                self._look_again(core)
            if follow != before:
                core.follow(follow._native())

    def _in_force(self) -> Heuristic:
        return self.choice.heuristic if self.choice else FIRST[0]

    def _begin_anew(self, budget: int) -> None:
        """Another budget: a trial has nothing to compare with, so it ends as if it had failed. A
        choice that failed at this budget before does not stay either."""
        if self._trial is not None:
            self.choice = self._trial.choice
        if (budget, self._in_force()) in self._worse:
            self.choice = None
        self._budget, self._waiting, self._trial, self._failed = budget, None, None, ""
        self._most = math.inf
        self._live.clear()
        self._ask()

    def _ask(self) -> None:
        """For a new search; one that is under way ends."""
        if self._seen is not None:
            self._why_not = "the next simulations are not over"
            self._asked += 1
            self._wake.notify()

    def _take(self) -> None:
        """What waits, if anything does and there are steps to compare it with."""
        if self._waiting is None or not self._live.whole:
            return
        most = self._live.most()  # What is in force may add more by now, as longer batches do.
        self._most = min(self._most, most) if self._live.median() <= self._most else most
        self._trial = Trial(self.choice, self._live.median(), self._most)
        self.choice, self._waiting, self._failed = self._waiting, None, ""
        self._live.clear()

    def _judge(self) -> None:
        """The choice on trial, if there is one."""
        if self._trial is None:
            return
        trial, self._trial = self._trial, None
        added, tried = self._live.median(), self._in_force()
        if added <= max(trial.most, _NEGLIGIBLE):
            return
        self._worse.add((self._budget, tried))
        self.choice = trial.choice
        self._live.clear()
        if self._waiting is None:  # What promised a little more was cut short: it may be good.
            self._ask()
        self._failed = (
            f"; {name_of(tried)} was tried and added {_percent(added)}, where "
            f"{name_of(self._in_force())} had added {_percent(trial.added)}"
        )

    def _begin(self, core: _core.Session) -> None:
        steps, watch = core.watched()
        if watch == _core.Watch.off:
            core.watch()
        elif watch not in (_core.Watch.on, _core.Watch.over):
            self._why_not = _WHY_NOT[watch]
        elif steps < _STEPS:
            self._why_not = f"fewer than {_STEPS} steps of an optimizer were seen"
        else:
            self._why_not = "the first simulations are not over"
            records, operators, _, _ = core.seen()
            self._seen = Seen(records, operators, _STEPS)
            self._thread = threading.Thread(target=self._search, name="dtr_alloc auto", daemon=True)
            # A thread that comes back from C++ when Python has gone would end the process.
            atexit.register(self.close)
            try:
                self._thread.start()
            except RuntimeError as error:  # The program's step is done, and its next ones can be.
                self._why_not, self._closed = f"there is no thread to simulate: {error}", True

    def _look_again(self, core: _core.Session) -> None:
        if self._looking and core.watching_again() != _core.Watch.on:
            self._looking, self._idle_steps = False, 0
            records, operators, steps, _ = core.seen_again()
            if steps >= _STEPS:
                self._seen, self._over = Seen(records, operators, self._steps), False
                self._worse.clear()  # The program may have changed.
                self._most = math.inf
                self._ask()
        elif not self._looking and self._seen and self._idle():
            self._idle_steps += 1
            if self._idle_steps >= self._patience:
                self._looking = core.watch_again(_STEPS)

    def close(self) -> None:
        """At the end of the scope: the thread ends."""
        _core.locked(self._wake, self._tell_to_end)
        if self._thread is not None:
            if self._thread.is_alive():
                self._thread.join()
            atexit.unregister(self.close)

    def _tell_to_end(self) -> None:
        self._closed = True
        self._wake.notify()

    def abandon_in_child(self) -> None:
        """After a fork: its thread is the parent's, and may hold the lock."""
        self._wake = threading.Condition()
        self._thread = None
        atexit.unregister(self.close)

    def idle(self) -> bool:
        """Whether a search is over, and no other is asked for."""
        with self._wake:
            return self._idle()

    def _idle(self) -> bool:
        return self._over and self._begun == self._asked

    def told(self) -> str:
        """For people, in any thread."""
        chosen = self.choice
        if chosen is None:
            return f"auto: {DEFAULT} so far, since {self._why_not}{self._failed}"
        return (
            f"auto: {name_of(chosen.heuristic)}: by a simulation of {chosen.tried} candidates, on "
            f"the steps up to {chosen.seen}, it adds {_percent(chosen.added)}, "
            f"{name_of(chosen.before)} {_percent(chosen.added_before)}{self._failed}"
        )

    def _search(self) -> None:
        try:
            self._search_again_and_again()
        except Exception as error:  # Of a simulation: the program goes on as it is.
            with self._wake:
                self._why_not, self._over = f"a simulation failed: {error}", True
                self._seen = None

    def _search_again_and_again(self) -> None:
        while (seen := self._seen) and self._may_spend(len(seen.records) * _RECORD_SECONDS):
            began = time.thread_time()
            replay = seen.replay()
            self.spent_seconds += time.thread_time() - began
            while self._seen is seen:
                if not self._try_all(replay, seen):
                    return
                with self._wake:
                    self._over = self._begun == self._asked
                    self._idle_steps = 0
                    self._wake.wait_for(lambda: self._closed or self._begun != self._asked)

    def _try_all(self, replay: Replay, seen: Seen) -> bool:
        """At the budget of now, until all were tried or another search is asked for; False where
        the scope is over."""
        with self._wake:
            if self._seen is not seen:
                return True
            self._over = False
            search = self._begun = self._asked
            budget, before = self._budget, self._in_force()
            refuted = {heuristic for at, heuristic in self._worse if at == budget}
            if len(refuted) >= _FAILURES:
                self._patience *= 2  # Or a program that no simulation foretells tries for ever.
                self._why_not = "what simulations prefer adds more in fact"
                return True
        refuted.discard(before)
        found: dict[Heuristic, float] = {}
        longest, began = 0.0, self.spent_seconds
        firsts = [before, *(one for one in FIRST if one != before)]
        for turn in range(len(firsts) + _CHANGES):
            late = turn >= len(firsts)
            if late and self.spent_seconds - began > _SECONDS:
                break
            if not self._may_spend(longest, lambda: self._asked != search):
                return not self._closed
            best = min(found, key=found.__getitem__, default=before)
            candidate = changed(best, self._draw) if late else firsts[turn]
            if candidate in found or candidate in refuted:
                continue
            least, spent = found.get(best, math.inf), self.spent_seconds
            added = self._added(replay, candidate, budget, least)
            longest = max(longest, self.spent_seconds - spent)
            found[candidate] = added
            if candidate == before and added < _NEGLIGIBLE:
                break
            if candidate != before and added < least:
                self._offer(candidate, search, seen.last, found)
        with self._wake:
            self._why_not = "no other candidate would add less"
        return True

    def _offer(
        self, candidate: Heuristic, search: int, seen: int, found: dict[Heuristic, float]
    ) -> None:
        """It waits for the end of a step, where it is better by some."""
        with self._wake:
            now, tried, added = self._in_force(), len(found), found[candidate]
            latest = self._waiting.heuristic if self._waiting else now
            if self._asked == search and added < _BETTER * found.get(latest, math.inf):
                added_now = found.get(now, math.inf)
                self._waiting = Choice(candidate, now, seen, tried, added, added_now)

    def _added(self, replay: Replay, candidate: Heuristic, budget: int, enough: float) -> float:
        """The time that a candidate adds to a foretold step, over that of its operators; infinite
        where that is more than `enough`, or the budget does not do."""
        base = replay.all.baseline.compute
        own = base - replay.earlier.baseline.compute
        rules = replace(self._rules, heuristic=candidate)
        first = self._simulated(replay.earlier, budget, rules) if own > 0 else None
        if first is None:
            return math.inf
        most = first.total_compute - first.base_compute + (enough + _NEGLIGIBLE) * own
        thrash = min(HOPELESS, 1 + most / base)
        both = self._simulated(replay.all, budget, replace(rules, thrash=thrash))
        if both is None:
            return math.inf
        added: float = both.total_compute - first.total_compute - own
        if self._rules.clock == "wall":
            # Choosing by the clock on the wall: of two runs the difference would be noise.
            added += both.move_ns - first.move_ns + both.search_ns * own / base
        return max(added, 0) / own

    def _simulated(
        self, simulator: Simulator, budget: int, rules: Rules
    ) -> SimulationResult | None:
        began = time.thread_time()
        result = simulator.run(budget, rules)
        self.spent_seconds += time.thread_time() - began
        return result if result.status == "ok" else None

    def _may_spend(self, seconds: float, outdated: Callable[[], bool] = lambda: False) -> bool:
        """Waits until so much more is within the share; False where the scope is over, or what it
        is for is outdated."""
        due = self._began + (self.spent_seconds + seconds) / _SHARE
        with self._wake:
            return not self._wake.wait_for(
                lambda: self._closed or outdated(), max(due - time.monotonic(), 0)
            )


def chooser_for(
    heuristic: str | Heuristic, policy: Policy = "eager", clock: Clock = "wall"
) -> Chooser | None:
    """That of a scope with these options, if its heuristic is ``"auto"``."""
    return Chooser(policy, clock) if heuristic == AUTO else None


def first_heuristic(heuristic: str | Heuristic) -> Heuristic:
    """By which a scope begins.

    Raises:
        TypeError, ValueError: see `resolve`.
    """
    return resolve(DEFAULT if heuristic == AUTO else heuristic)


_WHY_NOT = {
    _core.Watch.threads: "what several threads do is not foretold",
    _core.Watch.long: "the first steps were too long to keep",
    _core.Watch.traced: "a trace was recorded before enough steps were seen",
}


def _percent(share: float) -> str:
    return "refused" if share == math.inf else f"{share:.0%} of the operators' time"
