"""Two commits side by side: which figures count, their ratios, and the verdict, without a build."""

import json

import pytest
from beside import Comparison, Figures, compare, figures, mean, missed, ratios

from tests.support.fences import ROOT


def found_in(result: str) -> Figures:
    return figures(json.loads((ROOT / f"perf/results/{result}.json").read_text()))


def constant(name: str, value: float) -> Comparison:
    return Comparison(name, [value])


def test_measurements_in_a_unit_of_time_are_figures_and_others_are_not() -> None:
    measurements = [
        {"name": "search", "value": 2.0, "unit": "us"},
        {"name": "a record", "value": 900.0, "unit": "bytes"},
    ]
    assert figures({"load": "1.0", "measurements": measurements}) == {"search": 2.0}


def test_fields_of_processor_time_are_figures_with_the_path_to_them() -> None:
    runs = [{"budget": None, "slowdown": 1.1, "slowdown_wall": 1.3, "evictions": 3}]
    models = [{"model": "gpt", "step_ms": 4.0, "eager_us": 5, "runs": runs}]
    found = figures({"steps": 4, "models": models})
    assert found == {"models gpt eager_us": 5, "models gpt runs None slowdown": 1.1}


def test_entries_whose_first_fields_are_equal_are_told_apart() -> None:
    found = figures({"runs": [{"model": "gpt", "a_us": 1.0}, {"model": "gpt", "a_us": 2.0}]})
    assert found == {"runs 0 a_us": 1.0, "runs 1 a_us": 2.0}


def test_what_is_added_to_an_operator_counts_with_eagers_time() -> None:
    names = {"view: eager": 1.0, "view: added": 0.1, "view: added in the first steps": -0.2}
    measurements = [{"name": n, "value": v, "unit": "us"} for n, v in names.items()]
    assert figures(measurements) == {
        "view: eager": 1.0,
        "view: added": 1.1,
        "view: added in the first steps": 0.8,
    }


@pytest.mark.parametrize(
    ("result", "name", "controls"),
    [
        ("op_overhead", "add, 256 elements: added", 24),
        ("demo", "models gpt runs 0.5 slowdown_plain", 0),
        ("eviction", "eviction among 1,000: search", 0),
    ],
)
def test_committed_results_have_figures_and_controls(result: str, name: str, controls: int) -> None:
    found = [constant(figure, 1.0) for figure in found_in(result)]
    assert constant(name, 1.0) in found
    assert next(one for one in found if one.name == name).counts
    assert sum(not one.counts for one in found) == controls


def test_a_rounds_ratio_is_of_sums_so_that_an_even_drift_cancels() -> None:
    drifting = ({"x": 1.0}, {"x": 1.1}, {"x": 1.2}, {"x": 1.3})
    assert ratios([drifting])[0].ratio == pytest.approx(1.0)


def test_a_figures_ratio_is_the_median_of_its_rounds() -> None:
    rounds = [({"x": 1.0}, {"x": b}, {"x": b}, {"x": 1.0}) for b in (1.0, 1.1, 5.0)]
    (found,) = ratios(rounds)
    assert found.ratio == 1.1
    assert "(1.000 to 5.000)" in str(found)


def test_a_figure_that_is_new_or_not_above_zero_has_no_ratio() -> None:
    a, b = {"x": 1.0, "zero": 0.0}, {"x": 2.0, "new": 1.0, "zero": 0.0}
    assert [one.name for one in ratios([(a, b, b, a)])] == ["x"]


def test_a_figure_that_the_second_commit_lacks_misses_the_bound() -> None:
    a, b = figures({"slowdown": 1.2, "a_us": 1.0}), figures({"slowdown": 0.0, "a_us": 1.0})
    run = ratios([(a, b, b, a)])
    assert [one.name for one in run if one.above] == ["slowdown"]
    assert missed([run, run]) == [
        "the geometric mean is inf, above 1.02",
        "slowdown is above 1.05 in both runs",
    ]


def test_runs_go_a_b_b_a() -> None:
    order: list[str] = []

    def run(side: str) -> Figures:
        order.append(side)
        return {"x": {"A": 3.0, "B": 2.0}[side]}

    ((found,),) = compare(run, rounds=2)
    assert "".join(order) == "ABBAABBA"
    assert found.ratios == [2 / 3, 2 / 3]


def test_a_run_with_a_figure_above_the_bound_is_repeated_once() -> None:
    order: list[str] = []

    def run(side: str) -> Figures:
        order.append(side)
        return {"slow": {"A": 1.0, "B": 1.1}[side], "even": 1.0}

    first, second = compare(run, rounds=1)
    assert "".join(order) == "ABBAABBA"
    assert [one.name for one in first if one.above] == ["slow"]
    assert second == first


def test_the_mean_is_geometric_and_leaves_the_control_out() -> None:
    comparisons = [constant("a", 0.5), constant("b", 2.0), constant("add: eager", 9.0)]
    assert mean(comparisons) == pytest.approx(1.0)


def test_a_run_with_a_mean_above_the_bound_is_repeated() -> None:
    runs = compare(lambda side: {"x": {"A": 1.0, "B": 1.03}[side]}, rounds=1)
    assert [one.above for run in runs for one in run] == [False, False]


BOUNDS: dict[str, tuple[list[dict[str, float]], list[str]]] = {
    "nothing is above it": ([{"a": 1.05, "b": 0.98}], []),
    "a figure is above it in one run of two": ([{"a": 1.06, "b": 0.9}, {"a": 1.0}], []),
    "a figure is above it in both": (
        [{"a": 1.06, "b": 0.9}, {"a": 1.06, "b": 0.9}],
        ["a is above 1.05 in both runs"],
    ),
    "a control is above it": ([{"add: eager": 1.2, "b": 1.0}] * 2, []),
    "a mean is above it": ([{"a": 1.03}], ["the geometric mean is 1.030, above 1.02"]),
    "the mean of two runs is above it": (
        [{"a": 1.06}, {"a": 1.0}],
        ["the geometric mean is 1.030, above 1.02"],
    ),
    "no figure is ours": ([{"add: eager": 1.0}], ["no figure is of dtr_alloc"]),
}


@pytest.mark.parametrize(("runs", "told"), BOUNDS.values(), ids=BOUNDS)
def test_the_bound_is_kept_or_missed_where(runs: list[dict[str, float]], told: list[str]) -> None:
    assert missed([[constant(*figure) for figure in run.items()] for run in runs]) == told


def test_the_mean_of_two_runs_is_of_all_their_rounds() -> None:
    noisy, quiet = [Comparison("a", [1.0, 1.0, 9.0])], [Comparison("a", [1.0, 1.0, 1.0])]
    assert missed([noisy, quiet]) == []
