"""What a tuned setting is worth: a table against the default heuristic, and pictures of the study.

A setting that was searched for on some traces says nothing about others; so traces that were not
tuned on are shown beside, good or bad.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from dtr_alloc.runtime.heuristic import DEFAULT, PRESETS, USER_PARAMETERS, Heuristic
from dtr_alloc.runtime.simulate.result import SimulationResult
from dtr_alloc.runtime.tuning.tune import FAILED, Case, heuristic_of, overhead_of

if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True)
class Comparison:
    """A case by the default heuristic and by the tuned setting: runs over the seeds of sampling."""

    case: str
    preset: tuple[SimulationResult, ...]
    tuned: tuple[SimulationResult, ...]

    @property
    def ratio(self) -> float:
        """Overhead under the setting by that under the preset; failed runs count as `FAILED`."""
        return overhead_of(self.tuned) / overhead_of(self.preset)


def compare(given: Iterable[Case], heuristic: Heuristic) -> list[Comparison]:
    """Runs each case under both."""
    return [
        Comparison(case.name, tuple(case.runs(PRESETS[DEFAULT])), tuple(case.runs(heuristic)))
        for case in given
    ]


def as_dict(
    heuristic: Heuristic, tuned: Sequence[Comparison], held_out: Sequence[Comparison]
) -> dict[str, Any]:
    """The setting, with all that it was compared by."""

    def row(one: Comparison) -> dict[str, Any]:
        runs = {"preset": one.preset, "tuned": one.tuned}
        figures = {name: [run.figures() for run in of] for name, of in runs.items()}
        return {"case": one.case, "ratio": one.ratio, **figures}

    setting = asdict(heuristic)
    return {"heuristic": setting, "tuned_on": [*map(row, tuned)], "held_out": [*map(row, held_out)]}


def _outcome(runs: Sequence[SimulationResult]) -> str:
    """The mean overhead of those that succeeded, and how many did not."""
    good = [run.overhead for run in runs if run.status == "ok"]
    failed = len(runs) - len(good)
    shown = f"{geometric_mean(good):.3f}" if good else "failed"
    return f"{shown} ({failed} of {len(runs)} failed)" if good and failed else shown


def table(tuned: Sequence[Comparison], held_out: Sequence[Comparison]) -> str:
    """Lines of text: each case's overhead under preset and setting, and their mean."""
    cells = [
        ("", DEFAULT, "tuned", f"tuned / {DEFAULT}"),
        *_cells("tuned on", tuned),
        *_cells("held out", held_out),
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for name, *numbers in cells:
        shown = (f"{cell:>{width}}" for cell, width in zip(numbers, widths[1:], strict=True))
        lines.append(f"{name:<{widths[0]}}  {'  '.join(shown)}".rstrip())
    runs = [run for one in (*tuned, *held_out) for run in (*one.preset, *one.tuned)]
    if any(run.status != "ok" for run in runs):
        lines.append(f"A run that failed counts as an overhead of {FAILED:g} in ratios and means.")
    return "\n".join(lines)


def _cells(title: str, group: Sequence[Comparison]) -> Iterator[tuple[str, str, str, str]]:
    if group:
        yield title, "", "", ""
    for one in group:
        yield f"  {one.case}", _outcome(one.preset), _outcome(one.tuned), f"{one.ratio:.3f}"
    if len(group) > 1:
        preset = geometric_mean([overhead_of(one.preset) for one in group])
        tuned = geometric_mean([overhead_of(one.tuned) for one in group])
        ratio = geometric_mean([one.ratio for one in group])
        yield "  mean", f"{preset:.3f}", f"{tuned:.3f}", f"{ratio:.3f}"


def draw(study: optuna.Study, path: str | os.PathLike[str]) -> None:
    """Which parameters matter, and overhead against each penalty.

    Writes a picture in the format of the path's suffix: bars of importance (PED-ANOVA), and each
    trial's overhead over its weights and factors, for example the penalty for what was recomputed.
    The best trial is marked. Raises ValueError where the study has fewer than two finished trials.
    """
    import optuna

    trials = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    if len(trials) < 2:
        raise ValueError(f"a picture needs two finished trials; the study has {len(trials)}")
    penalties = [one.name for one in USER_PARAMETERS if one.role in ("weight", "factor")]
    columns = 1 + len(penalties)
    figure = Figure(figsize=(10 * columns / 3, 3.2), layout="constrained", dpi=100)
    bars, *panels = figure.subplots(1, columns)
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    importance = optuna.importance.get_param_importances(study, evaluator=evaluator)
    names = sorted(importance, key=importance.__getitem__)
    bars.barh(names, [importance[name] for name in names], color="C0")
    bars.set_title("importance", fontsize=9)
    best, overheads = study.best_trial, list(map(_overhead, trials))
    for panel, name in zip(panels, penalties, strict=True):
        tried = [trial.params[name] for trial in trials]
        panel.plot(tried, overheads, "o", markersize=2.5, alpha=0.6)
        panel.plot(best.params[name], _overhead(best), "C3*", markersize=9)
        panel.set_xlabel(name, fontsize=8)
        panel.set_yscale("log")
        panel.set_title("overhead of each trial", fontsize=9)
    for panel in (bars, *panels):
        panel.tick_params(labelsize=7, which="both")
    figure.suptitle(str(heuristic_of(best.params)), fontsize=7)
    figure.savefig(path)


def _overhead(trial: optuna.trial.FrozenTrial) -> float:
    return math.exp(trial.value if trial.value is not None else math.nan)
