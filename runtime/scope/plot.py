"""A picture of a scope's memory over time: bytes by class, the budget, and the program's phases.

The phase is that of the operator that asked for memory last. Long runs have more events than a
picture has dots, so of the events in one dot's time the highest is drawn.
"""

from __future__ import annotations

import importlib.util
import os
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from dtr_alloc.runtime.scope.memory_history import CLASSES, History

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DOTS = 2000
_COLORS = ["#9aa0a6", "#8e6bbf", "#e08a3c", "#4e79a7"]  # Of the classes.
_PHASES = {"forward": "#cfe3f5", "backward": "#f7dfc3", "optimizer": "#dccff0"}


def draw(path: str | os.PathLike[str], history: History, budget: int | None) -> None:
    """Writes the picture; see `Session.plot`."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError("pictures are drawn with matplotlib: pip install matplotlib")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.5), layout="constrained", dpi=120)
    axes = figure.subplots()
    if history.events:
        at = np.maximum.accumulate([event.at for event in history.events])
        _draw_events(axes, history, (at - at[0]) / 1e9)
    if budget is not None:
        axes.axhline(budget / 2**20, color="#c0392b", linestyle="--", linewidth=1, label="budget")
    axes.set_ylim(0, 1.06 * axes.get_ylim()[1])  # Below the band of phases.
    axes.set_xlabel("seconds")
    axes.set_title(history.gap, fontsize=8)
    axes.set_ylabel("MiB in use")
    if history.events:
        figure.legend(loc="outside lower center", ncols=8, fontsize=8, frameon=False)
    figure.savefig(path)


def _draw_events(axes: Axes, history: History, seconds: np.ndarray) -> None:
    levels, last = history.levels() / 2**20, seconds[-1]
    dots = (seconds * (_DOTS / (last or 1))).astype(int)
    order = np.lexsort((levels.sum(axis=1), dots))  # By dot, the highest last.
    shown = np.sort(order[np.append(np.diff(dots[order]) != 0, True)])
    x, shares = seconds[shown], levels[shown].T
    axes.stackplot(x, shares, labels=CLASSES, colors=_COLORS, step="post", linewidth=0)
    axes.set_xlim(0, last or 1)
    events = history.events
    asked = [i for i, event in enumerate(events) if event.what == "allocated" and not event.again]
    begins = [next(group) for _, group in groupby(asked, lambda i: events[i].phase)]
    labels = dict.fromkeys(_PHASES, "")
    for begin, end in zip(begins, [*seconds[begins[1:]], last], strict=False):
        phase = events[begin].phase
        label = None if labels[phase] else phase
        labels[phase] = phase
        axes.axvspan(seconds[begin], end, 0.95, 1, color=_PHASES[phase], linewidth=0, label=label)
    for step in (i for i, event in enumerate(events) if event.what == "step"):
        axes.axvline(seconds[step], color="#555555", linestyle=":", linewidth=0.8)
