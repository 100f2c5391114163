"""The sentences that quote simulations: fragmentation, links, prices, theorems, tuning."""

import math
import re
from collections.abc import Iterator

from tests.support.fences import ROOT
from tests.support.result_files import cells, measured, rows, span, text

WAYS = {
    "dtr": "`dtr`, blocks lie where they lie",
    "megengine as published": "MegEngine as published",
    "megengine": "MegEngine's terms on the paper's score",
    "window": "windows",
    "window, two-ended": "windows, two-ended placement",
    "megengine as published + remap": "MegEngine as published, pages move",
    "dtr + remap": "`dtr`, pages move",
    "window + remap": "windows, pages move",
    "window, two-ended + remap": "windows, two-ended placement, pages move",
    "default": "a scope, by default",
    "bytes": "the paper's simulator: bytes alone",
}


def ways() -> dict[str, list[str]]:
    """The cells of each way's row."""
    return {way: row for way, *row in map(cells, text("fragmentation").splitlines())}


def feasible(way: str) -> tuple[str, str]:
    """In how many cells, and of how many."""
    fits, _, all_ = ways()[way][0].split()
    return fits, all_


def fragmentation() -> Iterator[str]:
    found = ways()
    yield f"of the pool's peak: {feasible('dtr')[1]} cells"
    for way, name in WAYS.items():
        _, again, to_dtr, holes, _, wasted, *_ = found[way]
        row = [name, feasible(way)[0], f"{float(again):.3f}", f"{float(to_dtr):.2f}"]
        if way == "bytes":
            yield f"| {' | '.join(row)} | | |"
            continue
        digits = 4 if "remap" in way or way == "default" else 3
        row += [f"{float(holes):.{digits}f}", f"{100 * float(wasted):.0f} %"]
        if way == "default":
            row = [f"**{cell}**" for cell in row]
        yield f"| {' | '.join(row)} |"
    dtr, megengine = "dtr + remap", "megengine + remap"
    yield (
        f"`megengine` is feasible in {feasible(megengine)[0]} cells and `dtr` in "
        f"{feasible(dtr)[0]}. The mean of `megengine` against plain `dtr` is "
        f"{float(found[megengine][2]):.2f}, that of `dtr` is {float(found[dtr][2]):.2f}."
    )
    published = float(found["megengine as published + remap"][2])
    yield f"MegEngine recomputes {published:.1f} times as much as plain `dtr` whose pages stay"
    still, two_ended, window, moving, scope = (
        int(feasible(way)[0])
        for way in (
            "window",
            "window, two-ended",
            "window + remap",
            "window, two-ended + remap",
            "default",
        )
    )
    yield (
        f"feasible in {two_ended - still} cells more ({two_ended} against {still}). Where pages "
        f"move, it is feasible in {moving} cells against {window}, fewer than the {scope} of a "
        "scope"
    )


def scope() -> Iterator[str]:
    """The default in a scope beside bytes alone, from the lines below the table."""
    told = text("fragmentation")
    assert "and not in the pool: none" in told
    assert "feasible with dtr and not with the default: unrolled_gan at 0.2: thrash\n" in told
    computed = re.findall(r"all that is computed: at most 1\.(\d\d)\d+ of it, in densenet", told)[0]
    smaller = re.findall(r"feasible in bytes at a budget (\d+) % smaller", told)[0]
    mean, at, worst = re.findall(
        r"at equal budget: -([\d.]+) % in the mean of .*worst unet at ([\d.]+): \+([\d.]+) %", told
    )[0]
    yield (
        f"feasible wherever bytes alone are feasible at a budget {smaller} % smaller. At equal "
        f"budget it computes {float(mean):.1f} % less than bytes alone, in the mean. The worst "
        f"cell is our U-Net at {at} with {worst} % more"
    )
    yield f"our DenseNet at 0.5 computes {int(computed)} % more than with plain `dtr`"


def cells_of_a_pool() -> Iterator[str]:
    plain, all_ = feasible("dtr")
    yield (
        f"of {all_} cells (twelve traces at nine budgets) {plain} are feasible when blocks lie "
        f"where they lie, and {feasible('default')[0]} in a scope"
    )


def windows() -> Iterator[str]:
    us = measured("decision_cost")
    among = [us[name] for name in us if name.endswith("a window among 1,000")]
    yield f"a search costs {span(among, 0)} ns a block"


def links() -> Iterator[str]:
    cases = rows("perf/results/link.csv")
    at = {
        (row["trace"], row["link"]): float(row["overhead"]) if row["status"] == "ok" else None
        for row in cases
        if row["budget"] == "0.3" and row["leave_by"] != "swap"
    }
    for link in ("10GB/s", "50GB/s"):
        ratios: dict[bool, list[float]] = {True: [], False: []}
        for trace in dict.fromkeys(row["trace"] for row in cases):
            found, drop = at[trace, link], at[trace, ""]
            if found is not None and drop is not None:
                ratios["(published)" in trace].append(found / drop)
        yield (
            f"At {link[:-4]} GB a second `both` has {span(ratios[False], 2)} of that overhead on "
            f"our traces and {span(ratios[True], 2)} on the {len(ratios[True])} published"
        )


def floors_with_orphans() -> Iterator[str]:
    least: dict[str, list[str]] = {}
    told = (ROOT / "perf/paper/results/orphans_dtr-logs.txt").read_text()
    for line in told.split("\n\n")[1].splitlines()[1:]:
        log, way, *_, smallest = cells(line)
        if way != "dtr, orphans first":
            least.setdefault(log.removeprefix("tv_"), []).append(f"{float(smallest):.2f}")
    for log, shares in least.items():
        yield f"| {log} | {' | '.join(shares)} |"


def page_prices() -> Iterator[str]:
    lines = text("page_prices").splitlines()[3:]
    over = {}
    for trace, share, us, *_, last in map(str.split, filter(None, lines)):
        if last != "-":
            over[trace, share, us] = float(last)
    near = sum(ratio <= 0.08 for ratio in over.values())
    yield f"Of {len(over)} cells {near} are at most 8 % above the better"
    percent = {cell: f"{100 * ratio:.0f} %" for cell, ratio in over.items() if ratio < math.inf}
    at = [percent["tv_densenet121", "0.3", us] for us in ("20", "200")]
    yield f"DenseNet-121 at 0.3 of its peak is {at[0]} above at 20 us, and {at[1]} at 200"
    yield f"U-Net at 0.5 is {percent['unet', '0.5', '20']} above at 20 us"
    assert over.keys() - percent.keys() == {("unet", "0.3", us) for us in ("20", "80", "200")}
    yield "At 0.3 U-Net needs moves from the beginning: it runs only where pages always move"


def theorem() -> Iterator[str]:
    cases = {
        (row["bound"], row["heuristic"], int(row["N"])): row
        for row in rows("perf/paper/results/theorem_linear.csv")
    }

    def times_n(n: int) -> str:
        return f"{float(cases['2 sqrt N', 'dtr', n]['/ N']):.2f} N"

    yield (
        f"`dtr` runs {times_n(16384)} operators again at N = 16,384 and {times_n(65536)} at 65,536"
    )
    again = int(cases["2 sqrt N", "dtr, staleness ^ 0.5", 65536]["run again"])
    yield f"it runs N - {65536 - again} again at 65,536"
    logs = [float(row["/ N log2 N"]) for key, row in cases.items() if key[:2] == ("log2 N", "dtr")]
    yield f"`dtr` runs {span(logs, 2)} N log2(N), from 64 layers to 65,536"


def tuning() -> Iterator[str]:
    tuned, held_out = text("tune").split("\nheld out\n")

    def ratios(part: str) -> list[tuple[str, float]]:
        """Of each log at each budget: the log, and tuned over `dtr`."""
        found = re.findall(r"^  (\w+)\.log\.gz at .* (\S+)$", part, re.MULTILINE)
        return [(log, float(ratio)) for log, ratio in found]

    means = [re.findall(r"^ *mean +(\S+) +(\S+)", part, re.M)[0] for part in (tuned, held_out)]
    yield (
        f"On the {len(ratios(tuned))} tuned cases the mean overhead fell from {means[0][0]} to "
        f"{means[0][1]}"
    )
    gained = [f"{100 * (1 - ratio):.0f}" for log, ratio in ratios(tuned) if log == "lstm"]
    others = [ratio - 1 for log, ratio in ratios(tuned) if log != "lstm"]
    yield (
        f"The LSTM gained {' and '.join(gained)} %. The others changed by "
        f"{100 * max(map(abs, others)):.1f} % or less, {sum(x > 0 for x in others)} of them for "
        "the worse"
    )
    all_ = [ratio for _, ratio in ratios(held_out)]
    better, worse = sum(x < 0.98 for x in all_), sum(x > 1.02 for x in all_)
    yield (
        f"Of {len(all_)} cases held out, {len(all_) - better - worse} changed by 2 % or less, "
        f"{better} more for the better and {worse} for the worse (up to "
        f"{100 * (max(all_) - 1):.0f} %). Their mean fell by "
        f"{100 * (1 - float(means[1][1]) / float(means[1][0])):.0f} %"
    )
    before, after = re.findall(r"lstm\.log\.gz at 0\.3 +(\S+) +(\S+)", tuned)[0]
    saved = 1 - (float(after) - 1) / (float(before) - 1)
    yield (
        f"at 0.3 of its memory, other exponents save {100 * saved:.0f} % of what the paper's "
        "heuristic recomputes"
    )
