"""The tables of what programs take on a CPU: one function for each table.

"vs. PyTorch" is the processor time of a step over that of plain PyTorch, whose memory is malloc's.
"vs. PyTorch on our pool" is the same over PyTorch's with tensors in our pool and no budget.
"""

from collections.abc import Callable

from markdown_tables import Table, percent, ratio
from result_files import MIB, limited, measured, result

MODELS = ("resnet", "gpt", "lstm", "treelstm", "unet")
PLAIN, POOL = "vs. PyTorch", "vs. PyTorch on our pool"


def json(*stems: str) -> list[str]:
    """The paths of results."""
    return [f"perf/results/{stem}.json" for stem in stems]


def mib(size_bytes: float) -> str:
    return f"{size_bytes / MIB:,.1f} MiB"


def demo() -> Table:
    rows = []
    for model in result("demo")["models"]:
        runs = [run for run in model["runs"] if run["budget_ratio"]]
        assert all(run["identical"] for run in runs)
        assert [run["budget_ratio"] for run in runs] == [0.7, 0.5, 0.3]
        cells = [model["model"], mib(model["peak_bytes"])]
        cells += [ratio(run[over]) for over in ("slowdown_plain", "slowdown") for run in runs]
        rows.append(cells)
    head = ("model", "peak without a budget", f"{PLAIN}: 70 %", "50 %", "30 %")
    return Table((*head, f"{POOL}: 70 %", "50 %", "30 %"), rows, json("demo"))


def real_size() -> Table:
    rows = []
    for row in result("real_size")["rows"]:
        assert row["identical"]
        budget = mib(row["budget_bytes"]) if row["budget_bytes"] else ""
        grown = mib(row["resident_bytes"])
        rows.append(
            (
                row["model"],
                row["way"],
                budget,
                grown,
                ratio(row["over_plain"]),
                ratio(row["over_pool"]),
            )
        )
    head = ("model", "way", "budget", "process grows by", PLAIN, POOL)
    return Table(head, rows, json("real_size"))


def operators() -> Table:
    us = measured("op_overhead")
    names = (
        "add, 256 elements",
        "view",
        "linear, 16x64x64",
        "cat of 10",
        "dropout",
        "add_ (in place)",
    )
    ways = ("eager", "added", "added in the first steps", "added where memory is torch's")
    rows = [(name, *(f"{max(us[f'{name}: {way}'], 0):.1f}" for way in ways)) for name in names]
    head = ("operator", "PyTorch, us", "added", "in the first steps", 'with memory="torch"')
    return Table(head, rows, json("op_overhead"))


def peers() -> Table:
    rows = []
    for row in result("peers")["rows"]:
        if row["slowdown"]:
            ways = (row["plain"], row["ours_plain"], row["slowdown"], row["ours"])
            share = percent(row["share"])
            rows.append((row["model"], row["peer"], share, *map(ratio, ways)))
    head = ("model", "peer", "activations in memory", f"peer {PLAIN}", f"ours {PLAIN}")
    return Table((*head, "peer on our pool", "ours on our pool"), rows, json("peers"))


def unavoidable() -> Table:
    rows = [
        (row["model"], percent(row["share"]), f"{row['least']:.3f}", f"{row['default']:.3f}")
        for row in result("unavoidable")["rows"]
        if row["share"] in (0.5, 0.3)
    ]
    return Table(("model", "budget", "unavoidable", "by default"), rows, json("unavoidable"))


KNOWN = {
    "guest": "Where memory lies moves a model's figure by as much from process to process.",
    "swap": "An operator's arguments and results must be in memory together (docs/swap.md).",
    "trace_overhead": "It reads ten tensors and makes ten, and a recording writes each down.",
}


def missed_limits() -> Table:
    """Each limit that a measurement misses, with what is known of it."""
    rows = []
    stems = []
    for stem, one in limited():
        if not one["kept"]:
            assert stem in KNOWN, f"{stem} misses a limit: tell in KNOWN what is known of it"
            figures = f"{one['limit']:.3f}", f"{one['value']:.3f} {one['unit']}".strip()
            rows.append((f"{stem}: {one['name']}", *figures, KNOWN[stem]))
            stems.append(stem)
    head = ("measurement", "limit", "measured", "what is known")
    return Table(head, rows, json(*dict.fromkeys(stems)))


def pool_speed() -> Table:
    ns = result("throughput")["ns_per_pair"]
    names = ("host", "tcmalloc", "mimalloc", "jemalloc", "glibc", "torch")
    rows = []
    for program, told in (
        ("steady, small, 10,000 live", "10,000 live blocks of up to 16 KiB"),
        ("steady, large, 200 live", "200 live blocks of 1 to 64 MiB"),
        ("touch, 64 MiB", "64 MiB, written each time"),
        ("threads, 1", "one thread"),
        ("threads, 4", "four threads"),
    ):
        rows.append((told, *(f"{ns[program][name]:,.0f}" for name in names)))
    head = ("ns for an allocate and a free", "our pool", *names[1:])
    return Table(head, rows, json("throughput"))


def page_moves() -> Table:
    us = measured("page_moves")
    rows = []
    for page in dict.fromkeys(name.rpartition(":")[0] for name in us):
        anew = us.get(f"{page}: anew")
        rows.append((page, f"{us[f'{page}: moved']:.2f}", "" if anew is None else f"{anew:.2f}"))
    return Table(("us a page", "moved", "cleared anew"), rows, json("page_moves"))


def device_time() -> Table:
    found = measured("device_time")
    rows = []
    for run, waits in (
        ("gpt at 0.5, launch", "the device waits for the host"),
        ("gpt at 0.5, compute", "the host waits for the device"),
        ("gpt at 0.3, launch", "the device waits for the host"),
        ("resnet at 0.5, launch", "the device waits for the host"),
        ("unet at 0.5, launch", "the device waits for the host"),
    ):
        waited = "never" if found[f"{run}: host waited"] == 0 else "sometimes"
        calls, first = found[f"{run}: driver calls"], found[f"{run}: first step, of it ours"]
        rows.append((f"{run.split(',')[0]}, {waits}", f"{calls:.3f} %", waited, ratio(first)))
    head = ("model, budget", "driver calls in a steady step", "host waits", "first step, of second")
    return Table(head, rows, json("device_time"))


def conformance() -> Table:
    rows = []
    for what, total in result("conformance")["totals"].items():
        skipped = sum(total["skipped_cases"].values())
        counts = [total[name] for name in ("cases", "samples", "evictions", "checks", "identical")]
        rows.append((what, *(f"{count:,}" for count in (*counts, skipped))))
    head = ("", "cases", "samples", "evictions", "checks", "identical", "cases skipped")
    return Table(head, rows, json("conformance"))


def plans() -> Table:
    rows = []
    found = [row for row in result("plan")["rows"] if row["share"]]
    for model in dict.fromkeys(row["model"] for row in found):
        cells = [model]
        for row in (row for row in found if row["model"] == model):
            cells.append(f"{row['slowdown']:.2f}, {row['predicted_slowdown']:.2f}")
            redone = row["rematerializations"], row["predicted_rematerializations"]
        rows.append((*cells, f"{redone[0]:,.0f}, {redone[1]:,.0f}"))
    head = (f"{PLAIN}: measured, predicted", "70 %", "50 %", "30 %", "recomputed a step at 30 %")
    return Table(head, rows, json("plan"))


def odd_batches() -> Table:
    found = measured("odd_batches")
    assert found["models that differ from eager's"] == 0
    rows = []
    for memory in ("pool", "torch"):
        cells = [f'memory="{memory}"', f"{found[f'{memory}: steps that needed evictions']:.0f}"]
        names = ("those over no cap", "the slowest of them", "others over no cap")
        rows.append((*cells, *(ratio(found[f"{memory}: {name}"]) for name in names)))
    head = ("of 10,000 steps", "needed evictions", "these, vs. no budget", "the slowest of them")
    return Table((*head, "the others"), rows, json("odd_batches"))


def guest() -> Table:
    found = measured("guest")
    rows = []
    for model in MODELS:
        parts = ("a guest over plain eager", "recording, over the pool without")
        more = f"{found[f'{model}: the one more than the other']:+.3f}"
        rows.append((model, *(ratio(found[f"{model}: {part}"]) for part in parts), more))
    rows.append(("mean", "", "", f"{found['mean: the one more than the other']:+.3f}"))
    head = ("nothing evicted", f'memory="torch" {PLAIN}', f"a pool {POOL}", "difference")
    return Table(head, rows, json("guest"))


def swaps() -> Table:
    found = measured("swap")
    rows = []
    for model in MODELS:
        cells = [model]
        cells += [f"{found[f'{model}: floor {way} swap']:.1f} MiB" for way in ("without", "with")]
        for place in ("its floor", "30 %"):
            for way in ("no swap", "swap"):
                times = found.get(f"{model}: at {place}, {way}: step")
                cells.append("refused" if times is None else ratio(times))
        rows.append(cells)
    head = ("model", "floor", "with swap", "step at that floor", "with swap", "step at 30 %")
    return Table((*head, "with swap"), rows, json("swap"))


def swap_overlap() -> Table:
    found = measured("swap_overlap")
    rows = []
    for cell in dict.fromkeys(name.split(":")[0] for name in found):
        copied, ahead = found[f"{cell}: copied"], found[f"{cell}: came back ahead of its use"]
        stood = found[f"{cell}: stood for copies"]
        rows.append((cell, f"{copied:.1f} MiB", f"{ahead:.0f} %", f"{stood:.1f} %"))
    head = ("model", "copied a step, both ways", "back ahead of its use", "device stood for copies")
    return Table(head, rows, json("swap_overlap"))


def compiled() -> Table:
    found = {(row["model"], row["way"]): row for row in result("compiled")["rows"]}
    rows = []
    for model in dict.fromkeys(name for name, _ in found):
        whole = found[model, "no budget"]["peak_bytes"]
        ours = ("at 70%", "at 50%", "at 30%", "smallest")
        option = ("0.5 in ours, as torch's", "0.5 in ours, whole")
        ways = (*ours, "torch's 0.5", "ours, as torch's 0.5", *option)
        steps = [found[model, way]["note"] or ratio(found[model, way]["slowdown"]) for way in ways]
        smallest = percent(found[model, "smallest"]["peak_bytes"] / whole)
        rows.append((model, *steps[:3], f"{steps[3]} at {smallest}", *steps[4:]))
    head = ("step vs. no budget", "70 %", "50 %", "30 %", "smallest, of the peak", "torch's 0.5")
    beside = ("ours in that memory", "with 0.5 in blocks", "with 0.5 in the whole")
    return Table((*head, *beside), rows, json("compiled"))


CPU_TABLES: dict[str, Callable[[], Table]] = {
    one.__name__: one
    for one in (
        *(demo, real_size, operators, peers, unavoidable, missed_limits, pool_speed),
        *(page_moves, device_time, conformance, plans, odd_batches, guest, swaps, swap_overlap),
        compiled,
    )
}
