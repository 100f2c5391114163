"""The score's parameters for your model: a search over them, on traces, in mode ``pool``.

The presets are good everywhere and best nowhere. A search asks the simulator, which decides as the
live runtime does, some hundreds of times; a run takes milliseconds, so tuning a model takes minutes
and no GPU. Optuna proposes; this file says what may be varied, what a setting is worth, and how
processes share a study and pick it up after a kill.

A setting is worth the mean, over traces, budgets and seeds of sampling, of the logarithm of its
overhead, so that no trace counts more than another; a run that fails counts as `FAILED`.

Source of the search: Akiba et al., Optuna, KDD 2019 (its tree of Parzen estimators).
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any, cast

from dtr_alloc.runtime.heuristic import DEFAULT, PRESETS, USER_PARAMETERS, Heuristic
from dtr_alloc.runtime.simulate.result import SimulationResult
from dtr_alloc.runtime.simulate.rules import SEARCH_THRASH, Rules
from dtr_alloc.runtime.simulate.simulator import Budget, Simulator, Traced, parse_budget

if TYPE_CHECKING:
    import optuna

FAILED = 8.0
"""The overhead that a run counts as which ran out of memory or was stopped."""
SEEDS = (0, 1, 2)
"""Sampling draws: a setting must not win by luck."""
FIRST = (DEFAULT, "dtr", "dtr_local", "megengine", "size", "lru")
"""Presets that are tried before all else, with the search's steps; a study is never worse."""
_STEP = 0.05


_PARAMETERS = tuple(one for one in USER_PARAMETERS if one.role != "seed")
_NAMES = {
    "neighbourhood": ["eqclass", "none", "lineage", "ancestors", "full"],
    "selection": ["sample", "single", "window"],
}
"""Which values of an enumeration are tried; the others are for studies."""
_RANGES = {"exponent": (0, 2), "weight": (0, 2), "factor": (1, 2)}


def _space(trial: optuna.Trial) -> Heuristic:
    """What may be varied. Numbers are rounded, so that the line to paste is what was tried."""
    chosen: dict[str, Any] = {}
    for one in _PARAMETERS:
        if one.role in _RANGES:
            chosen[one.name] = trial.suggest_float(one.name, *_RANGES[one.role], step=_STEP)
        else:
            values = _NAMES[one.name] if one.role == "name" else [False, True]
            chosen[one.name] = trial.suggest_categorical(one.name, values)
    return heuristic_of(chosen)


def _parameters(heuristic: Heuristic) -> dict[str, Any]:
    """The point of the space that is nearest to the heuristic."""
    chosen = {one.name: getattr(heuristic, one.name) for one in _PARAMETERS}
    numbers = {n: round(v / _STEP) * _STEP for n, v in chosen.items() if isinstance(v, float)}
    return chosen | numbers


def heuristic_of(parameters: dict[str, Any]) -> Heuristic:
    """The heuristic of a trial's `params`."""
    numbers = {name: round(v, 2) for name, v in parameters.items() if isinstance(v, float)}
    return Heuristic(**parameters | numbers)


def line_to_paste(heuristic: Heuristic) -> str:
    """How to ask for it: only what differs from the default is named.

    Example:
        >>> line_to_paste(Heuristic(size_exp=0.5))
        'heuristic=dtr_alloc.Heuristic(size_exp=0.5)'
    """
    return f"heuristic=dtr_alloc.{heuristic!r}"


@dataclass(frozen=True)
class Case:
    """A trace under a budget."""

    simulator: Simulator
    budget: Budget

    @property
    def name(self) -> str:
        return f"{os.path.basename(self.simulator.name) or 'trace'} at {self.budget}"

    def identity(self) -> list[int]:
        """What is the same on another host, where the log has another path."""
        base = self.simulator.baseline
        return [base.compute, base.peak_bytes, self.simulator.budget_bytes(self.budget)]

    def runs(self, heuristic: Heuristic) -> list[SimulationResult]:
        """One for each seed, where the heuristic draws."""
        seeds = SEEDS if heuristic.selection in ("sample", "random") else SEEDS[:1]
        rules = Rules(mode="pool", thrash=SEARCH_THRASH)
        drawn = (replace(rules, heuristic=replace(heuristic, seed=seed)) for seed in seeds)
        return [self.simulator.run(self.budget, one) for one in drawn]


def overhead_of(runs: Iterable[SimulationResult]) -> float:
    """Their geometric mean; failed ones count as `FAILED`."""
    return geometric_mean([run.overhead if run.status == "ok" else FAILED for run in runs])


def cases(traces: Iterable[Traced], budgets: Iterable[Budget]) -> list[Case]:
    """Every trace under every budget. Raises TypeError, ValueError, TraceError and OSError of a
    trace or a budget, as `simulate` does."""
    budgets = list(budgets)
    for budget in budgets:
        parse_budget(budget)
    made = [Case(one, budget) for one in map(Simulator, traces) for budget in budgets]
    for case in made:
        case.simulator.check(case.budget)
    return made


def tune(
    traces: Iterable[Traced],
    budget: Budget | Sequence[Budget],
    trials: int = 200,
    storage: str | os.PathLike[str] | None = None,
    *,
    study_name: str = "dtr_alloc",
    seed: int | None = None,
    progress: Callable[[optuna.Study, int], None] | None = None,
) -> optuna.Study:
    """Searches the parameters of the score for the least overhead on some traces.

    Several processes, also on several hosts, work on one study if they are given the same storage.
    A process that is killed loses nothing: call again with the same storage. What was finished is
    kept, and what it was about to try is tried again, if it ran on this host.

    Args:
        traces: traces, or paths of logs.
        budget: one or several, as for `simulate`.
        trials: how many settings the study shall have tried when this returns, with those that
            other processes tried, and that were there before.
        storage: an URL that Optuna knows ("sqlite:///tune.db", "mysql://..."), or the path of a
            journal, which is a file that grows; None keeps the study in memory.
        study_name: of the study within the storage.
        seed: of the search; give it only to a study of one process.
        progress: called with the study and the finished trials after each.

    Returns:
        An Optuna study. `heuristic_of(study.best_params)` is the best setting, `study.best_value`
        the mean logarithm of its overhead.

    Raises:
        ValueError: `trials` is below 1, there are no traces or no budgets, the storage is a file
            that is no journal or a database that cannot be used, or the study in it was made for
            other traces or budgets; and of a trace or a budget, as `simulate`.
        ImportError: Optuna is not installed.
        TypeError, TraceError, OSError: of a trace or a budget, as `simulate` raises them.

    Example:
        >>> import dtr_alloc, torch
        >>> with dtr_alloc.record_trace() as recording:
        ...     x = torch.ones(1000, requires_grad=True)
        ...     for _ in range(20):
        ...         x = x.sin()
        ...     x.sum().backward()
        >>> study = tune([recording.trace], "50%", trials=6, seed=0)
        >>> heuristic_of(study.best_params) in [heuristic_of(t.params) for t in study.trials]
        True
    """
    if trials < 1:
        raise ValueError(f"trials is {trials}; a study takes at least 1")
    given = _given(traces, budget)
    with _quiet():
        import optuna

        study = optuna.create_study(
            storage=_storage(storage),
            study_name=study_name,
            load_if_exists=storage is not None,
            sampler=optuna.samplers.TPESampler(seed=seed),
            direction="minimize",
        )
        _claim(study, given)
        _retry_orphans(study)
        for name in FIRST:
            study.enqueue_trial(_parameters(PRESETS[name]), skip_if_exists=True)

        def objective(trial: optuna.Trial) -> float:
            trial.set_user_attr("process", _me())
            heuristic = _space(trial)
            overheads = [overhead_of(case.runs(heuristic)) for case in given]
            trial.set_user_attr("overheads", overheads)
            return math.log(geometric_mean(overheads))

        def after(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
            done = _finished(study)
            if progress is not None:
                progress(study, done)
            if done >= trials:
                study.stop()

        if _finished(study) < trials:
            study.optimize(objective, callbacks=[after])
    return study


def _given(traces: Iterable[Traced], budget: Budget | Sequence[Budget]) -> list[Case]:
    if isinstance(traces, (str, os.PathLike)):
        raise TypeError(f"traces is {traces!r}, and a study takes several: give a list")
    several = isinstance(budget, Sequence) and not isinstance(budget, str)
    given = cases(traces, cast("Sequence[Budget]", budget) if several else [cast(Budget, budget)])
    if not given:
        raise ValueError("there is nothing to tune on: give at least one trace and one budget")
    return given


@contextmanager
def _quiet() -> Iterator[None]:
    """Without a line of log for each trial."""
    try:
        import optuna
    except ImportError as error:
        raise ImportError("tuning is done by Optuna: pip install optuna") from error
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def _finished(study: optuna.Study) -> int:
    from optuna.trial import TrialState

    return len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))


def _storage(storage: str | os.PathLike[str] | None) -> Any:
    if storage is None:
        return None
    from optuna.storages import RDBStorage, journal

    if "://" in str(storage):
        from optuna.exceptions import OptunaError
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import SQLAlchemyError
        from sqlalchemy.pool import NullPool

        try:
            shown = make_url(str(storage)).render_as_string(hide_password=True)
        except (ValueError, SQLAlchemyError):  # Without the text, in which may be a password.
            raise ValueError('storage is no URL: write it as "sqlite:///tune.db"') from None
        try:
            # A connection that is kept would be left open with the study.
            return RDBStorage(str(storage), engine_kwargs={"poolclass": NullPool})
        except (SQLAlchemyError, OptunaError) as error:
            why = getattr(error, "orig", error)  # The driver's, in one line.
            raise ValueError(f"storage {shown} cannot be used: {why}") from error

    path = Path(storage)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder for {path}")
    import filelock

    # The kernel gives this lock up when its process dies. Optuna's own locks are files, which
    # outlive a kill by half a minute.
    lock = filelock.FileLock(path.with_name(path.name + ".lock"), poll_interval=0.002)
    _insist_journal(path)
    with lock:
        _drop_unfinished_line(path)
    return journal.JournalStorage(journal.JournalFileBackend(str(path), cast(Any, lock)))


def _insist_journal(path: Path) -> None:
    """Raises ValueError where it is another file, which is to be left as it is. A process that was
    killed may have written less than a journal's first bytes."""
    first = b'{"op_code":'
    if path.exists():
        with open(path, "rb") as file:
            if not first.startswith(file.read(len(first))):
                raise ValueError(
                    f"{path} is no journal of Optuna: name another file; a database is written "
                    f"sqlite:///{path}"
                )


def _drop_unfinished_line(journal: Path) -> None:
    """Of a process that was killed as it wrote."""
    if not journal.exists():
        return
    with open(journal, "rb+") as file:
        text = file.read()
        whole = text.rfind(b"\n") + 1
        if whole < len(text):
            file.truncate(whole)


def _claim(study: optuna.Study, given: Sequence[Case]) -> None:
    """Says what the study is for, or finds that it is for something else."""
    wanted = sorted(case.identity() for case in given)
    known = study.user_attrs.get("cases")
    if known is None:
        study.set_user_attr("cases", wanted)
        study.set_user_attr("names", [case.name for case in given])
    elif known != wanted:
        raise ValueError(
            f"the study {study.study_name!r} there was made for "
            f"{', '.join(study.user_attrs.get('names', ['other cases']))}; give these traces and "
            "budgets, or another storage"
        )


def _me() -> list[str | int]:
    return [socket.gethostname(), os.getpid(), _started(os.getpid())]


def _started(process: int) -> int:
    """When it was, in ticks: a number that another process of the same id does not have. 0 where
    there is no such process."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[19])


def _retry_orphans(study: optuna.Study) -> None:
    """Trials that processes of this host did not finish, and never will: to be tried again."""
    from optuna.trial import TrialState

    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        host, process, started = trial.user_attrs.get("process", ("", 0, -1))
        if host != socket.gethostname() or _started(process) == started:
            continue
        try:
            study.tell(trial.number, state=TrialState.FAIL)
        except ValueError:  # Another process was first.
            continue
        study.enqueue_trial(trial.params or trial.system_attrs.get("fixed_params", {}))
