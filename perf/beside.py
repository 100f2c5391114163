"""Is one commit slower than another?

On a shared machine the same program differs by a sixth from one hour to the next, so a figure of
today says nothing beside one of last week. Here both commits are built, each in a folder of its own
under build/beside, and a script of this folder runs on the one and on the other in turn, A B B A,
so that a machine that slows down evenly does so for both. A round's ratio of a figure is the two
Bs' sum over the two As'; a figure's ratio is the median of five rounds, and its spread is their
smallest and largest.

Figures are the processor times in what a script writes: measurements in a unit of time, fields
named after one, and the demo's ratios to eager's time in the same run (its `step_ms` are of the
wall). Time that is "added" to an operator is taken with eager's: on its own it is near zero for
some, and a ratio of such numbers says nothing. What dtr_alloc has no part in, such as eager, is the
control: printed, to show how quiet the machine was, and not counted.

The bound of a script: the geometric mean of its figures is at most 1.02, and no figure is above
1.05 in both of two runs. So a run with something above is repeated, once, and the mean is then of
all ten rounds.

Scripts are those of this checkout; only the package is the commit's. The builds stay, and cost
minutes each the first time. A name may carry its script's arguments.

    python perf/beside.py 835e9f7 HEAD op_overhead "demo --quick" --out perf/results
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

sys.path.append(str(Path(__file__).parent / "support"))

from measurement import origin, provenance, write_json

ROOT = Path(__file__).resolve().parent.parent
BUILDS = ROOT / "build/beside"
UNITS = ("ns", "us", "ms", "s")
FIELD = re.compile(r"_(ns|us)$|^(slowdown|over)(_pool|_plain)?$")
CONTROL = re.compile(r"\beager(_us)?$|TorchDispatchMode$")
ROUNDS = 5
MEAN_BOUND = 1.02
FIGURE_BOUND = 1.05

Figures = dict[str, float]


def is_time(value: object) -> bool:
    """A field that is 0 was not measured: that of a step that did not fit its budget, say."""
    return isinstance(value, int | float) and math.isfinite(value) and value != 0


def leaves(document: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Each time in a script's JSON, and how it is called. An entry of a list is named by its first
    field, or by its place where that names two."""
    if isinstance(document, list):
        names = [str(next(iter(x.values()))) if isinstance(x, dict) and x else "" for x in document]
        for place, entry in enumerate(document):
            name = names[place] if names.count(names[place]) == 1 else str(place)
            yield from leaves(entry, f"{path} {name}".strip())
    elif isinstance(document, dict):
        if document.get("unit") in UNITS:
            yield document["name"], document["value"]
        for key, value in document.items():
            if FIELD.search(key) and is_time(value):
                yield f"{path} {key}".strip(), value
            elif isinstance(value, dict | list):
                yield from leaves(value, f"{path} {key}".strip())


def figures(document: Any) -> Figures:
    """The times that a script found, what is added to an operator with eager's own."""
    found = dict(leaves(document))
    for name in [name for name in found if ": added" in name]:
        base = f"{name.partition(': added')[0]}: eager"
        if base in found:
            found[name] += found[base]
    return found


@dataclass(frozen=True)
class Comparison:
    """A figure's ratio B/A in each round of a run."""

    name: str
    ratios: list[float]

    @property
    def ratio(self) -> float:
        """The rounds' median."""
        return median(self.ratios)

    @property
    def counts(self) -> bool:
        """Whether dtr_alloc has a part in it."""
        return CONTROL.search(self.name) is None

    @property
    def above(self) -> bool:
        """Whether it is above what a figure may be."""
        return self.counts and self.ratio > FIGURE_BOUND

    def __str__(self) -> str:
        spread = f"{min(self.ratios):.3f} to {max(self.ratios):.3f}"
        note = "  ABOVE" * self.above if self.counts else "  control"
        return f"{self.ratio:.3f}  ({spread})  {self.name}{note}"


def ratios(rounds: Sequence[tuple[Figures, Figures, Figures, Figures]]) -> list[Comparison]:
    """Compares the figures of rounds A B B A. A figure of A that B lacks, such as a step that no
    longer fits its budget, is infinitely slow. One that is not above zero has no ratio."""
    every = [one for each in rounds for one in each]
    names = [
        name
        for name in every[0]
        if all(name in a1 and name in a2 for a1, _, _, a2 in rounds)
        and all(one.get(name, math.inf) > 0 for one in every)
    ]

    def sum_of(name: str, first: Figures, second: Figures) -> float:
        return first.get(name, math.inf) + second.get(name, math.inf)

    return [
        Comparison(name, [sum_of(name, b1, b2) / sum_of(name, a1, a2) for a1, b1, b2, a2 in rounds])
        for name in names
    ]


def mean(comparisons: Sequence[Comparison]) -> float:
    """The geometric mean of the ratios that count; not a number where there is none."""
    counted = [comparison.ratio for comparison in comparisons if comparison.counts]
    return geometric_mean(counted) if counted else math.nan


def of_all_rounds(runs: Sequence[Sequence[Comparison]]) -> list[Comparison]:
    """The comparisons of the first run, with the rounds of the later ones."""
    found = {comparison.name: [*comparison.ratios] for comparison in runs[0]}
    for comparison in (one for run in runs[1:] for one in run if one.name in found):
        found[comparison.name] += comparison.ratios
    return [Comparison(name, ratios) for name, ratios in found.items()]


def missed(runs: Sequence[Sequence[Comparison]]) -> list[str]:
    """What a script's run, or its two runs, miss of the bound. Each is a sentence."""
    found = []
    whole = mean(of_all_rounds(runs))
    if math.isnan(whole):
        found.append("no figure is of dtr_alloc")
    elif whole > MEAN_BOUND:
        found.append(f"the geometric mean is {whole:.3f}, above {MEAN_BOUND}")
    above = [{comparison.name for comparison in run if comparison.above} for run in runs]
    if len(runs) == 2:
        for name in sorted(above[0] & above[1]):
            found.append(f"{name} is above {FIGURE_BOUND} in both runs")
    return found


def build(commit: str) -> Path:
    """Builds a commit's package for this Python's torch; the folder from which it is imported."""
    folder = BUILDS / commit
    package = folder / "path"
    package.mkdir(parents=True, exist_ok=True)
    (package / "dtr_alloc").unlink(missing_ok=True)
    (package / "dtr_alloc").symlink_to("../dtr_alloc")
    files = subprocess.run(
        ["git", "-C", str(ROOT), "archive", commit], capture_output=True, check=True
    )
    subprocess.run(["tar", "-x", "-C", str(folder)], input=files.stdout, check=True)
    compile_it = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    if subprocess.run(compile_it, cwd=folder, check=False).returncode:
        raise SystemExit(f"{commit} does not build: in {folder} run {shlex.join(compile_it)}")
    return package


def run_once(package: Path, script: str, quick: bool) -> Figures:
    """Runs a script on a package, and reads the figures that it wrote."""
    name, *arguments = shlex.split(script)
    (path,) = ROOT.glob(f"perf/*/{name}.py")
    # Of dtr_alloc the package alone is found; the script's own folder is for those beside it.
    paths = {"PYTHONPATH": f"{package}:{path.parent}", "PYTHONSAFEPATH": "1"}
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, str(path), *arguments]
        command += ["--quick"] * quick + ["--out", out]
        done = subprocess.run(
            command, env={**os.environ, **paths}, capture_output=True, text=True, check=False
        )
        written = [*Path(out).glob("*.json")]
        if done.returncode not in (0, 1) or len(written) != 1:  # 1: a limit was passed.
            raise SystemExit(f"{shlex.join(command)} on {package} failed:\n{done.stderr}")
        return figures(json.loads(written[0].read_text()))


def compare(run: Callable[[str], Figures], rounds: int) -> list[list[Comparison]]:
    """Runs "A" and "B" in turn, and all of it again where something is above the bound."""

    def once() -> list[Comparison]:
        found = []
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
            found.append((run("A"), run("B"), run("B"), run("A")))
        return ratios(found)

    first = once()
    above = mean(first) > MEAN_BOUND or any(comparison.above for comparison in first)
    return [first, once()] if above else [first]


def resolve(name: str) -> str:
    """The commit that a name stands for."""
    git = ["git", "-C", str(ROOT), "rev-parse", "--verify", "-q", f"{name}^{{commit}}"]
    found = subprocess.run(git, capture_output=True, text=True, check=False)
    if found.returncode:
        raise SystemExit(f"{name} is no commit of this repository: name one that git log shows")
    return found.stdout.strip()


def main() -> int:
    """Compares two commits; returns 1 where a script misses the bound."""
    parser = argparse.ArgumentParser(description="Two commits side by side, in turn.")
    parser.add_argument("before", help="commit A")
    parser.add_argument("after", help="commit B; what is not committed is not in it")
    parser.add_argument("scripts", nargs="+", help="such as op_overhead, or 'demo --quick'")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="A B B A so many times")
    parser.add_argument("--quick", action="store_true", help="one round of short versions")
    parser.add_argument("--out", type=Path, help="write JSON here")
    options = parser.parse_args()
    for script in options.scripts:
        name = shlex.split(script)[0]
        if len([*ROOT.glob(f"perf/*/{name}.py")]) != 1:
            parser.error(f"there is no {name}.py in a folder of perf/")
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: there must be a round")
    commits = {"A": resolve(options.before), "B": resolve(options.after)}
    packages = {side: build(commit) for side, commit in commits.items()}

    print(origin())
    print(f"A is {commits['A'][:7]}, B is {commits['B'][:7]}: B/A, (smallest to largest)")
    document: dict[str, Any] = {"before": commits["A"], "after": commits["B"], "scripts": []}
    failures = []
    for script in options.scripts:

        def run(side: str, script: str = script) -> Figures:
            return run_once(packages[side], script, options.quick)

        rounds = 1 if options.quick else options.rounds
        runs = compare(run, rounds)
        for number, comparisons in enumerate(runs, 1):
            counted = sum(comparison.counts for comparison in comparisons)
            print(f"\n{script}, run {number}: {mean(comparisons):.3f}, the mean of {counted}")
            print(*comparisons, sep="\n")
        found = [f"{script}: {sentence}" for sentence in missed(runs)]
        failures += found
        saved = [
            {
                "geometric_mean": mean(run),
                "figures": [{**asdict(c), "ratio": c.ratio, "counts": c.counts} for c in run],
            }
            for run in runs
        ]
        document["scripts"].append({"script": script, "missed": found, "runs": saved})
        if options.out:
            write_json(options.out, provenance() | document)
    print("", *(failures or ["the bound is kept"]), sep="\n")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
