"""The sentences of the documents that quote a result, each made of the result's own figures."""

import csv
import json
import math
import re
from collections.abc import Callable, Iterator
from functools import cache
from statistics import fmean
from typing import Any

from tests import gpu_quotes
from tests.fences import ROOT

MIB = 1 << 20


@cache
def result(stem: str) -> Any:
    return json.loads((ROOT / f"perf/results/{stem}.json").read_text())


@cache
def measured(stem: str) -> dict[str, float]:
    return {one["name"]: one["value"] for one in result(stem)["measurements"]}


def span(values: Iterator[float] | list[float], digits: int) -> str:
    """The least and the largest; one where they look alike."""
    found = list(values)
    least, largest = f"{min(found):.{digits}f}", f"{max(found):.{digits}f}"
    return least if least == largest else f"{least} to {largest}"


def demo() -> Iterator[str]:
    models = result("demo")["models"]
    yield f"the same run had {span([model['runs'][0]['slowdown'] for model in models], 2)} x"
    for model in models:
        cells = [model["model"], f"{model['peak_bytes'] / MIB:.1f} MiB"]
        for run in model["runs"][1:]:
            assert run["identical"]
            times = f"{run['slowdown']:.2f} x ({run['slowdown_plain']:.2f})"
            cells.append(f"{run['peak_bytes'] / MIB:.1f} MiB, {times}")
        yield f"| {' | '.join(cells)} |"


def real_size() -> Iterator[str]:
    names = {"gpt": "GPT", "resnet50": "ResNet-50"}
    for model, name in names.items():
        rows = {row["way"]: row for row in result("real_size")["rows"] if row["model"] == model}
        assert all(row["identical"] for row in rows.values())
        cells = [name, f"+{rows['eager']['resident_bytes'] / MIB:,.0f} MiB"]
        for way in ("50%", "33%", "25%"):
            row = rows.get(way)
            cells.append(
                f"{row['budget_bytes'] / MIB:,.0f} MiB, +{row['resident_bytes'] / MIB:,.0f} MiB, "
                f"{row['over_pool']:.2f} x ({row['over_plain']:.2f})"
                if row
                else "not run"
            )
        yield f"| {' | '.join(cells)} |"


def operators() -> Iterator[str]:
    us = measured("op_overhead")
    added = {name.removesuffix(": added"): us[name] for name in us if name.endswith(": added")}
    views = ("view", "transpose", "slice")
    assert max(added[name] for name in views) < 0.05
    plain = added.keys() - {*views, "dropout", "_foreach_add of 10"}
    yield (
        f"adds {span([added[name] for name in plain], 1)} us to an operator, "
        f"{added['dropout']:.1f} us to dropout, nothing to a view, on a machine whose eager "
        f"addition of 256 numbers takes {us['add, 256 elements: eager']:.1f} us"
    )
    more = [us[f"{name}: added in the first steps"] - added[name] for name in plain]
    yield f"It adds {span(more, 1)} us more in the first twelve steps"


def checkpoints() -> Iterator[str]:
    rows = [row for row in result("peers")["rows"] if row["peer"] == "checkpoint"]
    ours = [row["ours"] / row["slowdown"] for row in rows if row["slowdown"]]
    yield f"a step takes {span(ours, 2)} of checkpointing's time"


def peers() -> Iterator[str]:
    rows = {(row["model"], row["peer"]): row for row in result("peers")["rows"]}
    for model in ("gpt", "resnet", "unet"):
        line = f"| {model} |"
        for peer in ("checkpoint", "checkpoint sqrt N", "selective"):
            row = rows[model, peer]
            if row["slowdown"]:
                plain = row["ours_plain"] / row["plain"]
                line += f" {row['slowdown']:.2f} | {row['ours']:.2f} | {plain:.2f} |"
            else:
                line += " no chain of modules | | |"
        yield line
    tree = rows["treelstm", "checkpoint, edited"]
    yield (
        f"takes {tree['slowdown']:.2f} at {100 * tree['share']:.0f} % of the activations; ours, "
        f"without an edit, takes {tree['ours']:.2f}"
    )


def throughput() -> Iterator[str]:
    ns = result("throughput")["ns_per_pair"]
    of = {name: f"{took:.0f}" for name, took in ns["steady, small, 10,000 live"].items()}
    yield (
        f"{of['virtual']} without memory behind them, {of['host']} with; jemalloc "
        f"{of['jemalloc']}, mimalloc {of['mimalloc']}, tcmalloc {of['tcmalloc']}."
    )
    of = {name: f"{took:,.0f}" for name, took in ns["steady, large, 200 live"].items()}
    yield (
        f"{of['host']}; tcmalloc {of['tcmalloc']}, jemalloc {of['jemalloc']}, mimalloc "
        f"{of['mimalloc']}, torch {of['torch']}."
    )
    ms = {name: took / 1e6 for name, took in ns["touch, 64 MiB"].items()}
    yield (
        f"{ms['host']:.2f} ms; tcmalloc {ms['tcmalloc']:.2f} ms, torch {ms['torch']:.1f} ms, "
        f"with huge pages {ms['torch_thp']:.1f}, jemalloc {ms['jemalloc']:.1f}, mimalloc "
        f"{ms['mimalloc']:.1f}."
    )
    growth = [ns[f"growth, small, {10**n:,} live"]["virtual"] for n in range(2, 7)]
    yield f"by tens: {', '.join(f'{took:.0f}' for took in growth)}."
    four = ns["threads, 4"]
    yield f"Four threads at once: {four['host']:.0f}; mimalloc {four['mimalloc']:.0f}."


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
    "default": "`dtr` in a scope",
    "bytes": "the paper's simulator: bytes alone",
}


def fragmentation() -> Iterator[str]:
    lines = (ROOT / "perf/results/fragmentation.txt").read_text().splitlines()
    found = {way: cells for way, *cells in (re.split(r" {2,}", line.strip()) for line in lines)}
    for way, name in WAYS.items():
        feasible, again, to_dtr, holes, _, wasted, *_ = found[way]
        cells = [name, feasible.split()[0], f"{float(again):.3f}", f"{float(to_dtr):.2f}"]
        if way == "bytes":
            yield f"| {' | '.join(cells)} | | |"
            continue
        digits = 4 if "remap" in way or way == "default" else 3
        cells += [f"{float(holes):.{digits}f}", f"{100 * float(wasted):.0f} %"]
        if way == "default":
            cells = [f"**{cell}**" for cell in cells]
        yield f"| {' | '.join(cells)} |"
    dtr, megengine = found["dtr + remap"], found["megengine + remap"]
    yield (
        f"`megengine` is feasible in {megengine[0].split()[0]} cells and `dtr` in "
        f"{dtr[0].split()[0]}. The mean of `megengine` against plain `dtr` is "
        f"{float(megengine[2]):.2f}, that of `dtr` is {float(dtr[2]):.2f}."
    )


def windows() -> Iterator[str]:
    us = measured("decision_cost")
    among = [us[name] for name in us if name.endswith("a window among 1,000")]
    yield f"a search costs {span(among, 0)} ns a block"


def chosen() -> Iterator[str]:
    for stem, models in (("auto", "the demo's five"), ("auto_models", "the paper's eight")):
        over = result(stem)["over dtr"]
        for share in over["auto step"]:
            cells = [models, f"{100 * float(share):.0f} %"]
            for what in ("recomputing", "step"):
                for way in ("foresight", "auto"):
                    mean, most = over[f"{way} {what}"][share]
                    cells.append(f"{mean:.2f} ({most:.2f})")
            yield f"| {' | '.join(cells)} |"


def overlaps() -> Iterator[str]:
    found = measured("swap_overlap")
    for cell in dict.fromkeys(name.split(":")[0] for name in found):
        yield (
            f"| {cell} | {found[f'{cell}: copied']:.1f} MiB | "
            f"{found[f'{cell}: came back ahead of its use']:.0f} % | "
            f"{found[f'{cell}: stood for copies']:.1f} % |"
        )


def swaps() -> Iterator[str]:
    found = measured("swap")
    for model in ("resnet", "gpt", "lstm", "treelstm", "unet"):
        cells = [model]
        cells += [f"{found[f'{model}: floor {way} swap']:.1f} MiB" for way in ("without", "with")]
        for place in ("its floor", "30 %"):
            for way in ("no swap", "swap"):
                times = found.get(f"{model}: at {place}, {way}: step")
                cells.append("refused" if times is None else f"{times:.2f}")
        yield f"| {' | '.join(cells)} |"


def links() -> Iterator[str]:
    with open(ROOT / "perf/results/link.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    at = {
        (row["trace"], row["link"]): float(row["overhead"]) if row["status"] == "ok" else None
        for row in rows
        if row["budget"] == "0.3" and row["leave_by"] != "swap"
    }
    for link in ("10GB/s", "50GB/s"):
        ratios: dict[bool, list[float]] = {True: [], False: []}
        for trace in dict.fromkeys(row["trace"] for row in rows):
            found, drop = at[trace, link], at[trace, ""]
            if found is not None and drop is not None:
                ratios["(published)" in trace].append(found / drop)
        yield (
            f"At {link[:-4]} GB a second `both` has {span(ratios[False], 2)} of that overhead on "
            f"our traces and {span(ratios[True], 2)} on the {len(ratios[True])} published"
        )


def floors_with_orphans() -> Iterator[str]:
    least: dict[str, list[str]] = {}
    text = (ROOT / "perf/paper/results/orphans_dtr-logs.txt").read_text()
    for line in text.split("\n\n")[1].splitlines()[1:]:
        log, way, *_, smallest = re.split(r" {2,}", line)
        if way != "dtr, orphans first":
            least.setdefault(log.removeprefix("tv_"), []).append(f"{float(smallest):.2f}")
    for log, shares in least.items():
        yield f"| {log} | {' | '.join(shares)} |"


def one_score() -> str:
    return f"{measured('scoring')['C++: 10,000 rows']:.1f} ns"


def scores() -> Iterator[str]:
    yield f"in memory: {one_score()} each where there are 10,000"


def scores_on_the_host() -> Iterator[str]:
    yield f"the host takes {one_score()} a candidate"


def device_time() -> Iterator[str]:
    found = measured("device_time")
    for run, waits, digits in (
        ("gpt at 0.5, launch", "the device waits for the host", 2),
        ("gpt at 0.5, compute", "the host waits for the device", 3),
        ("gpt at 0.3, launch", "the device waits for the host", 2),
        ("resnet at 0.5, launch", "the device waits for the host", 1),
        ("unet at 0.5, launch", "the device waits for the host", 1),
    ):
        assert found[f"{run}: host waited"] == 0
        calls, first = found[f"{run}: driver calls"], found[f"{run}: first step, of it ours"]
        yield f"| {run.split(',')[0]}, {waits} | {calls:.{digits}f} % | never | {first:.2f} |"

    def second(model: str) -> tuple[float, float]:
        """Microseconds, and the per cent of them in calls of the driver."""
        whole = found[f"{model} at 0.5, launch: step 2"]
        return whole, 100 * found[f"{model} at 0.5, launch: driver calls in step 2"] / whole

    (gpt, of_gpt), (_, of_unet), (resnet, _) = map(second, ("gpt", "unet", "resnet"))
    yield f"The second step has {of_gpt:.0f} % of driver calls in gpt, {of_unet:.0f} % in unet"
    pages = found["gpt at 0.5, launch: pages mapped in step 1"]
    made = pages * found["100,000 pages made, each"] / 1e3
    eager = found["gpt at 0.5, launch: the same in eager"]
    yield (
        f"gpt makes {pages} pages, for {made:.1f} ms beside a second step of {gpt / 1e3:.1f} ms; "
        "an optimizer makes its state then, so that eager's own first step takes "
        f"{eager:.1f} times its second"
    )
    pages = found["resnet at 0.5, launch: pages mapped in step 1"]
    yield f"Resnet's step of {resnet / 1e3:.1f} ms is short for its {pages} pages"
    believed = {run: cost for run, cost in found.items() if run.endswith("to true ones")}
    most = max(cost for run, cost in believed.items() if "launch" in run)
    yield f"a kernel of 2.5 us is measured as {2.5 * most:.1f}"
    off = max(abs(cost - 1) for run, cost in believed.items() if "compute" in run)
    yield f"costs are within {math.ceil(100 * off)} % of the truth"


def plans() -> Iterator[str]:
    rows = [row for row in result("plan")["rows"] if row["share"]]
    for model in dict.fromkeys(row["model"] for row in rows):
        cells = [model]
        for row in rows:
            if row["model"] == model:
                times = f"{row['slowdown']:.2f}, {row['predicted_slowdown']:.2f}"
                cells.append(f"{times} ({row['error']:+.1%})")
                redone = row["rematerializations"], row["predicted_rematerializations"]
        yield f"| {' | '.join(cells)} | {redone[0]:,.0f}, {redone[1]:,.0f} |"
    errors = [abs(row["error"]) for row in rows]
    within = sum(error <= 0.1 for error in errors)
    yield f"{within} of {len(errors)} predictions are within 10 %; the mean error is"
    yield f"the mean error is {fmean(errors):.1%}"


def page_prices() -> Iterator[str]:
    lines = (ROOT / "perf/results/page_prices.txt").read_text().splitlines()[3:]
    over = {}
    for trace, share, us, *_, last in map(str.split, filter(None, lines)):
        if last != "-":
            over[trace, share, us] = float(last)
    near = sum(ratio <= 0.01 for ratio in over.values())
    yield f"Of the {len(over)} cells that run, {near} are at most 1 % above the better"
    at = {us: f"{100 * over['tv_densenet121', '0.3', us]:.0f} %" for us in ("20", "80")}
    yield f"it is {at['20']} above at 20 us, and {at['80']} at 80 us"
    yield f"U-Net at 0.5 is {100 * over['unet', '0.5', '20']:.0f} % above at 20 us"


def advice() -> Iterator[str]:
    rows = result("advice")["rows"]
    yield f"has {len(rows)} small trainings"
    most = math.ceil(100 * max(row["ratio"] for row in rows)) / 100
    yield f"The advice is at most {most:.2f} of the smallest budget that works."
    idle = {1: "one", 2: "two", 3: "three"}[sum(row["refusals"] == 0 for row in rows)]
    yield f"it is refused once, {idle} of the {len(rows)} not at all"


def conformance() -> Iterator[str]:
    totals = result("conformance")["totals"].values()
    names = ("samples", "checks", "evictions", "cases", "identical")
    of = {name: sum(total[name] for total in totals) for name in names}
    assert of["identical"] == of["checks"]
    yield (
        f"{of['samples']:,} samples, {of['checks']:,} checks, {of['evictions'] / 1e6:.1f} million "
        "evictions, no difference"
    )
    skipped = sum(sum(total["skipped_cases"].values()) for total in totals)
    yield f"{skipped} of the {of['cases']:,} (an operator, module or optimizer at one type)"


def theorem() -> Iterator[str]:
    with open(ROOT / "perf/paper/results/theorem_linear.csv", newline="") as file:
        rows = {
            (row["bound"], row["heuristic"], int(row["N"])): row for row in csv.DictReader(file)
        }

    def times_n(n: int) -> str:
        return f"{float(rows['2 sqrt N', 'dtr', n]['/ N']):.2f} N"

    yield (
        f"`dtr` runs {times_n(16384)} operators again at N = 16,384 and {times_n(65536)} at 65,536"
    )
    again = int(rows["2 sqrt N", "dtr, staleness ^ 0.5", 65536]["run again"])
    yield f"it runs N - {65536 - again} again at 65,536"
    logs = [float(row["/ N log2 N"]) for key, row in rows.items() if key[:2] == ("log2 N", "dtr")]
    yield f"`dtr` runs {span(logs, 2)} N log2(N), from 64 layers to 65,536"


def tuning() -> Iterator[str]:
    text = (ROOT / "perf/results/tune.txt").read_text()
    before, after = re.findall(r"^ *mean +(\S+) +(\S+)", text, re.MULTILINE)[0]
    yield f"the mean overhead fell from {before} to {after}"


def odd_batches() -> Iterator[str]:
    found = measured("odd_batches")
    assert found["models that differ from eager's"] == 0
    pool, torchs = (
        (
            f"{found[f'{memory}: steps that needed evictions']:.0f}",
            f"{found[f'{memory}: those over no cap']:.2f}",
            f"{found[f'{memory}: the slowest of them']:.2f}",
            f"{found[f'{memory}: others over no cap']:.2f}",
        )
        for memory in ("pool", "torch")
    )
    yield (
        f"Of the steps in a pool {pool[0]} needed evictions, and took {pool[1]} times as long as "
        f"the same steps without a limit, the slowest {pool[2]} times; the others took {pool[3]} "
        f"times. Where memory is torch's, {torchs[0]} steps took {torchs[1]} times, the slowest "
        f"{torchs[2]} times; the others {torchs[3]} times"
    )


def guests() -> Iterator[str]:
    found = measured("guest")
    guest = [x for name, x in found.items() if name.endswith("a guest over plain eager")]
    recording = [x for name, x in found.items() if "recording" in name]
    yield (
        f"a guest takes {span(guest, 2)} times as long as plain eager on the demo's five models, "
        f"where recording alone takes {span(recording, 2)} times as long in a pool"
    )
    more = [x for name, x in found.items() if name.endswith("more than the other")]
    yield (
        f"A guest adds {fmean(more):.3f} more than recording does in the mean of the five, and "
        f"{max(more):.3f} at most"
    )


QUOTES: dict[str, tuple[Callable[[], Iterator[str]], ...]] = {
    "README.md": (gpu_quotes.batches, gpu_quotes.budgets, demo, real_size, operators, checkpoints),
    "docs/heuristics.md": (chosen, floors_with_orphans),
    "docs/guest.md": (guests,),
    "docs/odd_batches.md": (odd_batches,),
    "perf/README.md": (gpu_quotes.details, peers, throughput, fragmentation, windows, device_time),
    "docs/allocator.md": (scores_on_the_host,),
    "docs/exactness.md": (conformance,),
    "docs/plan.md": (plans,),
    "docs/room.md": (advice, page_prices, gpu_quotes.page),
    "docs/scoring.md": (scores,),
    "docs/simulator.md": (theorem, links),
    "docs/swap.md": (swaps, overlaps),
    "docs/tuning.md": (tuning,),
}
