"""The sentences of the documents that quote a result, each made of the result's own figures."""

import math
import re
from collections.abc import Callable, Iterator
from statistics import fmean

from tests.documents import gpu_quotes, simulator_quotes
from tests.support.result_files import MIB, limited, measured, result, span, text


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
    pool = [row for row in result("real_size")["rows"] if row["way"] == "eager in the pool"]
    grown = [f"{row['resident_bytes'] / MIB:,.0f}" for row in pool]
    yield f"without a budget it grows by {' and '.join(grown)} MiB"


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
        f"10,000 live blocks of up to 16 KiB, replaced at random: {of['virtual']} without memory "
        f"behind them, {of['host']} with; jemalloc "
        f"{of['jemalloc']}, mimalloc {of['mimalloc']}, tcmalloc {of['tcmalloc']}."
    )
    of = {name: f"{took:,.0f}" for name, took in ns["steady, large, 200 live"].items()}
    yield (
        f"200 live blocks of 1 to 64 MiB: {of['host']}; tcmalloc {of['tcmalloc']}, jemalloc "
        f"{of['jemalloc']}, mimalloc "
        f"{of['mimalloc']}, torch {of['torch']}."
    )
    ms = {name: took / 1e6 for name, took in ns["touch, 64 MiB"].items()}
    yield (
        f"64 MiB allocated, written and freed, again and again: {ms['host']:.2f} ms; tcmalloc "
        f"{ms['tcmalloc']:.2f} ms, torch {ms['torch']:.1f} ms, "
        f"with huge pages {ms['torch_thp']:.1f}, jemalloc {ms['jemalloc']:.1f}, mimalloc "
        f"{ms['mimalloc']:.1f}."
    )
    growth = [ns[f"growth, small, {10**n:,} live"]["virtual"] for n in range(2, 7)]
    yield f"by tens: {', '.join(f'{took:.0f}' for took in growth)}."
    four = ns["threads, 4"]
    yield f"Four threads at once: {four['host']:.0f}; mimalloc {four['mimalloc']:.0f}."


def page_moves() -> Iterator[str]:
    us = measured("page_moves")
    small, huge = "a page of 4 KiB, in runs of 8", "a page of 2 MiB, in runs of 1"
    yield (
        f"a page of 4 KiB takes {us[f'{small}: moved']:.2f} us in runs of 8, and "
        f"{us[f'{small}: anew']:.2f} us where the kernel does not move it"
    )
    yield f"A page of 2 MiB takes {us[f'{huge}: moved']:.1f} us"


def unavoidable() -> Iterator[str]:
    for row in result("unavoidable")["rows"]:
        if row["share"] in (0.5, 0.3):
            again = f"{row['least']:.3f} | {row['default']:.3f}"
            yield f"| {row['model']} | {row['share']:.0%} | {again} |"


def unavoidable_at_real_size() -> Iterator[str]:
    rows = result("unavoidable_real_size")["rows"]
    gpt, resnet = (row["least"] for row in rows if row["share"] == 0.25)
    yield (
        f"At real size and a budget of 25 % any policy has to run again {gpt:.2f} of the GPT's "
        f"time and {resnet:.2f} of ResNet-50's"
    )


def overlaps() -> Iterator[str]:
    found = measured("swap_overlap")
    for cell in dict.fromkeys(name.split(":")[0] for name in found):
        yield (
            f"| {cell} | {found[f'{cell}: copied']:.1f} MiB | "
            f"{found[f'{cell}: came back ahead of its use']:.0f} % | "
            f"{found[f'{cell}: stood for copies']:.1f} % |"
        )


def floors_with_swap() -> Iterator[str]:
    found = measured("swap")
    for model in ("resnet", "unet"):
        yield (
            f"{found[f'{model}: in use by operators below it']:.1f} of "
            f"{found[f'{model}: floor with swap']:.1f} MiB"
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


def compiled() -> Iterator[str]:
    rows = result("compiled")["rows"]
    found = {(row["model"], row["way"]): row for row in rows}
    for model in ("gpt", "resnet", "llama"):
        whole = found[model, "no budget"]["peak_bytes"]
        smallest = found[model, "smallest"]["peak_bytes"] / whole
        steps = {
            way: f"{row['slowdown']:.2f}" for (name, way), row in found.items() if name == model
        }
        first = " | ".join(steps[f"at {share}%"] for share in (70, 50, 30))
        last = " | ".join(steps[way] for way in ("smallest", "torch's 0.5", "ours, as torch's 0.5"))
        yield f"| {model} | {first} | {smallest:.2f} of the peak | {last} |"


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
    yield (
        f"{within} of {len(errors)} predictions are within 10 %; the mean error is "
        f"{fmean(errors):.1%}"
    )


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
    yield (
        f"{skipped} of the {of['cases']:,} (an operator, module or optimizer at one type), "
        f"{100 * skipped / of['cases']:.1f} %"
    )


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
    more = {name: x for name, x in found.items() if name.endswith("more than the other")}
    mean = more.pop("mean: the one more than the other")
    yield (
        f"What a guest adds, less what recording adds, is {mean:.3f} in the mean of the five, and "
        f"{min(more.values()):.3f} to {max(more.values()):.3f} on one of them"
    )
    yield f"{sum(x > 0.01 for x in more.values())} of the five models are above a hundredth"
    low, high = (found[f"lstm: a quarter of the processes {side}"] for side in ("below", "above"))
    yield f"of lstm a quarter of the processes is below {low:.3f}, and a quarter above {high:.3f}"


def mutants() -> Iterator[str]:
    noticed, all_ = re.findall(r"^(\d+) of (\d+) faults are noticed", text("mutants"), re.M)[0]
    yield f"{noticed} of {all_} noticed, {100 * int(noticed) / int(all_):.1f} %"


def limits() -> Iterator[str]:
    for _, one in limited():
        if not one["kept"]:
            yield f"| {one['name']} | {one['limit']:.3f} | {one['value']:.3f} |"


QUOTES: dict[str, tuple[Callable[[], Iterator[str]], ...]] = {
    "README.md": (gpu_quotes.batches, gpu_quotes.budgets, demo, real_size, operators, checkpoints),
    "docs/heuristics.md": (simulator_quotes.floors_with_orphans,),
    "docs/guest.md": (guests,),
    "docs/odd_batches.md": (odd_batches,),
    "perf/README.md": (
        gpu_quotes.exactness,
        gpu_quotes.tests,
        gpu_quotes.speeds,
        gpu_quotes.bus,
        gpu_quotes.bus_of_short_runs,
        gpu_quotes.pages,
        gpu_quotes.seconds,
        peers,
        unavoidable,
        throughput,
        page_moves,
        simulator_quotes.fragmentation,
        simulator_quotes.scope,
        simulator_quotes.windows,
        device_time,
        mutants,
        limits,
        floors_with_swap,
        unavoidable_at_real_size,
    ),
    "docs/allocator.md": (scores_on_the_host, gpu_quotes.crossover),
    "docs/exactness.md": (conformance,),
    "docs/plan.md": (plans,),
    "docs/room.md": (
        advice,
        gpu_quotes.page,
        simulator_quotes.page_prices,
        simulator_quotes.cells_of_a_pool,
    ),
    "docs/scoring.md": (scores,),
    "docs/simulator.md": (simulator_quotes.theorem, simulator_quotes.links),
    "docs/ecosystem.md": (compiled,),
    "docs/swap.md": (swaps, overlaps, gpu_quotes.bus),
    "docs/tuning.md": (simulator_quotes.tuning,),
}
