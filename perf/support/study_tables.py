"""The tables of studies of heuristics, the simulator and peers: one function for each table."""

import re
from collections.abc import Callable

from markdown_tables import Table, percent, ratio
from result_files import ROOT, cells, result, rows, text

WAYS = {
    "dtr": "`dtr`, blocks stay where they are",
    "megengine as published": "MegEngine as published",
    "megengine": "MegEngine's terms on the paper's score",
    "window": "windows",
    "window, two-ended": "windows, two-ended placement",
    "megengine as published + remap": "MegEngine as published, pages move",
    "megengine + remap": "MegEngine's terms on the paper's score, pages move",
    "dtr + remap": "`dtr`, pages move",
    "window + remap": "windows, pages move",
    "window, two-ended + remap": "windows, two-ended placement, pages move",
    "default": "a scope, by default",
    "bytes": "the paper's simulator: bytes alone",
}


def fragmentation() -> Table:
    found = {way: row for way, *row in map(cells, text("fragmentation").splitlines())}
    drawn = []
    for way, name in WAYS.items():
        feasible, again, to_dtr, holes, _, wasted, *_ = found[way]
        line = [name, feasible.split()[0], f"{float(again):.3f}", ratio(float(to_dtr))]
        if way != "bytes":
            line += [f"{float(holes):.4f}", percent(float(wasted))]
        drawn.append([*line, "", ""][:6])
    of = found["dtr"][0].split()[2]
    head = ("way", f"feasible, of {of}", "again", "to `dtr`", "fragmentation")
    return Table((*head, "evicted and not used"), drawn, ["perf/results/fragmentation.txt"])


def orphans() -> Table:
    path = "perf/paper/results/orphans_dtr-logs.txt"
    least: dict[str, list[str]] = {}
    for line in (ROOT / path).read_text().split("\n\n")[1].splitlines()[1:]:
        log, way, *_, smallest = cells(line)
        if way != "dtr, orphans first":
            least.setdefault(log.removeprefix("tv_"), []).append(ratio(float(smallest)))
    head = ("log", "`dtr`", "ancestors", "with `orphans_first`", '`policy="ignore"` too')
    return Table(head, [(log, *shares) for log, shares in least.items()], [path])


def links() -> Table:
    path = "perf/results/link.csv"
    overhead = {
        (row["trace"], row["link"]): float(row["overhead"])
        for row in rows(path)
        if row["budget"] == "0.3" and row["leave_by"] != "swap" and row["status"] == "ok"
    }
    drawn = []
    for trace in dict.fromkeys(trace for trace, _ in overhead):
        drop = overhead.get((trace, ""))
        if drop is not None:
            ratios = (overhead[trace, link] / drop for link in ("10GB/s", "50GB/s"))
            drawn.append((trace, ratio(drop), *map(ratio, ratios)))
    head = ("trace", "overhead, dropping alone", "10 GB/s: of that", "50 GB/s: of that")
    return Table(head, drawn, ["perf/results/link.txt"])


def theorem() -> Table:
    path = "perf/paper/results/theorem_linear.csv"
    drawn = []
    for row in rows(path):
        if row["heuristic"].startswith("dtr") and int(row["N"]) in (16384, 65536):
            again = f"{int(row['run again']) / int(row['N']):.2f} N"
            drawn.append((row["bound"], f"{int(row['N']):,}", row["heuristic"], again))
    return Table(("room for", "N", "heuristic", "run again"), drawn, [path], " (an earlier build)")


def tuned() -> Table:
    drawn = []
    for name, part in zip(
        ("tuned on", "held out"), text("tune").split("\nheld out\n"), strict=True
    ):
        ratios = [float(x) for x in re.findall(r"^  \w+\.log\.gz at .* (\S+)$", part, re.M)]
        before, after = re.findall(r"^ *mean +(\S+) +(\S+)", part, re.M)[0]
        better, worse = sum(x < 0.98 for x in ratios), sum(x > 1.02 for x in ratios)
        change = f"{min(ratios):.2f} to {max(ratios):.2f}"
        drawn.append((name, str(len(ratios)), before, after, str(better), str(worse), change))
    head = ("", "cases", "mean overhead by `dtr`", "tuned", "better by 2 %", "worse by 2 %")
    about = " (an earlier build)"
    return Table((*head, "tuned, of `dtr`'s"), drawn, ["perf/results/tune.txt"], about)


RESTORED = {
    "random": "global random numbers",
    "generator": "explicit Generator",
    "statistics": "batch statistics",
    "buffer": "a buffer that the block counts up and reads",
    "write": "a write to the block's input in the block",
    "write_later": "a write to it after the block",
    "autocast": "CPU autocast",
    "func": "`func.grad`",
}
WORDS = {
    "rounded": "restored but for rounding",
    "once": "updated once",
    "twice": "updated twice",
}


def restored() -> Table:
    drawn = []
    for tool in result("restored")["tools"]:
        said = {one: about["answer"] for one, about in tool["answers"].items()}
        told = {one: WORDS.get(said.get(one, "-"), said.get(one, "-")) for one in RESTORED}
        for one, finer, where in (
            ("random", "noise", "for `ops.rand`"),
            ("write", "write_constant", "if the input needs no gradient"),
        ):
            if said.get(finer, said.get(one)) != said.get(one):
                told[one] += f"; {said[finer]} {where}"
        drawn.append((tool["tool"], *told.values()))
    return Table(("tool", *RESTORED.values()), drawn, ["perf/results/restored.json"])


STUDY_TABLES: dict[str, Callable[[], Table]] = {
    one.__name__: one for one in (fragmentation, orphans, links, theorem, tuned, restored)
}
