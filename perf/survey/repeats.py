"""Which operators give other bits when they run again with the same arguments?

A recipe that runs again must give what ran first. On the CPU some kernels add into one place from
several threads, in an order that no two runs share. No schema and no tag says so. So each operator
of the dispatcher's list runs several times with the same arguments and the same state of the
generator: with four threads first, more often where the operator takes indices, and 50 times with
1, 2 and 4 threads where two runs differed, and once more with torch.use_deterministic_algorithms.
Threads may be more than cores: what they do in turn shows as well.

What differs with one thread too is memory that nobody wrote.

A run that was stopped goes on from its result. OMP_WAIT_POLICY=passive spares a busy machine.

    python perf/survey/repeats.py --out perf/results/survey
"""

import argparse
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1] / "support"))

from calls import Call, Source, digest, operators, tensors
from children import Lost, results
from result import read, surveyed, write
from samples import overload, samples

THREADS = (1, 2, 4)
RUNS = 50
LARGE_ELEMENTS = 100_000
FIRST_RUNS = 3
FIRST_RUNS_WITH_INDICES = 6


def results_of(call: Call, runs: int, threads: int, until_two: bool = False) -> int:
    """How many different results the runs gave."""
    torch.set_num_threads(threads)
    found = set()
    for _ in range(runs):
        args, kwargs = call.fresh()
        torch.manual_seed(0)
        with torch.no_grad():
            made = call.run(args, kwargs)
        found.add(digest((made, args, kwargs)))
        if until_two and len(found) > 1:
            break
    return len(found)


def in_deterministic_mode(call: Call, runs: int) -> str:
    torch.use_deterministic_algorithms(True)
    try:
        return str(results_of(call, runs, THREADS[-1]))
    except RuntimeError as error:
        return "refused" if "deterministic" in str(error) else str(error)[:60]
    finally:
        torch.use_deterministic_algorithms(False)


def takes_indices(operator: str) -> bool:
    """Whether it may add or write to places that a tensor of whole numbers names."""
    names = [a.name for a in overload(operator)._schema.arguments if "Tensor" in str(a.type)]
    words = ("index", "indices", "offset", "target", "mask", "grid", "bucket", "segment", "length")
    return any(word in name for name in names for word in words)


def described(call: Call) -> str:
    """The arguments in words: shapes of tensors, and all else as it is."""

    def one(x: Any) -> str:
        if isinstance(x, torch.Tensor):
            return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
        if isinstance(x, (list, tuple)):
            return f"[{', '.join(map(one, x[:4]))}{', ...' * (len(x) > 4)}]"
        return str(x)

    schema = overload(call.operator)._schema.arguments
    named = {a.name: x for a, x in zip(schema, call.args, strict=False)} | call.kwargs
    return ", ".join(f"{name}={one(x)}" for name, x in named.items() if x is not None)


def survey(source: Source, operator: str) -> dict[str, Any]:
    """What is known of an operator: how many calls worked, and those that do not repeat."""
    warnings.simplefilter("ignore")
    indices = takes_indices(operator)
    worked = elements = 0
    differ: list[dict[str, Any]] = []
    for call in source.calls(operator, 8 if indices else 2):
        try:
            runs = FIRST_RUNS_WITH_INDICES if indices else FIRST_RUNS
            several = results_of(call, runs, THREADS[-1], until_two=True)
        except Exception:
            continue
        worked += 1
        elements = max([elements, *(x.numel() for x in tensors((call.args, call.kwargs)))])
        if several > 1:
            counts = {str(n): results_of(call, RUNS, n) for n in THREADS}
            mode = in_deterministic_mode(call, RUNS)
            differ.append({"arguments": described(call), "results": counts, "deterministic": mode})
            break
    return {"calls": worked, "elements": elements, "differ": differ}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("perf/results/survey"))
    parser.add_argument("--samples", type=Path, default=Path("build/survey"))
    parser.add_argument("--only", default="", help="operators with this in their names")
    parser.add_argument("--fresh", action="store_true", help="those that no committed result names")
    asked = parser.parse_args()
    known = surveyed(asked.out, "repeats") if asked.fresh else set()
    torch.set_num_threads(1)
    source = Source(samples(asked.samples))
    able, unable = operators()
    able = sorted(
        (x for x in able if asked.only in x), key=lambda x: (not takes_indices(x), "out" in x)
    )
    unable = {name: why for name, why in unable.items() if name not in known}
    table = Table.of(asked.out)
    table.fresh = asked.fresh
    able = [name for name in able if name not in table.known | known]
    for count, (name, about) in enumerate(results(lambda x: survey(source, x), able, seconds=45)):
        table.add(name, about)
        if count % 20 == 0:
            write(asked.out, "repeats", table.document(unable, unfinished=True))
    write(asked.out, "repeats", table.document(unable, unfinished=False))


@dataclass
class Table:
    """What is known so far."""

    repeat: set[str] = field(default_factory=set)
    small: set[str] = field(default_factory=set)
    differ: list[dict[str, Any]] = field(default_factory=list)
    unable: dict[str, str] = field(default_factory=dict)
    fresh: bool = False

    @classmethod
    def of(cls, folder: Path) -> "Table":
        """From the result of a run that was stopped, if there is one."""
        before = read(folder, "repeats")
        if not before.get("unfinished"):
            return cls()
        repeat, small = set(before["repeat"].split()), set(before["of them small"].split())
        return cls(repeat, small, before["differ"], before["not called"])

    @property
    def known(self) -> set[str]:
        return self.repeat | {row["operator"] for row in self.differ} | set(self.unable)

    def add(self, name: str, about: dict[str, Any] | Lost) -> None:
        if isinstance(about, Lost):
            self.unable[name] = about.reason
        elif about["calls"] == 0:
            self.unable[name] = "no arguments were found"
        else:
            self.differ += [{"operator": name, **row} for row in about["differ"]]
            if not about["differ"]:
                self.repeat.add(name)
            if about["elements"] < LARGE_ELEMENTS:
                self.small.add(name)

    def document(self, unable: dict[str, str], unfinished: bool) -> dict[str, Any]:
        differ = sorted({row["operator"] for row in self.differ})
        with_one = {row["operator"] for row in self.differ if row["results"]["1"] > 1}
        return {
            "unfinished": unfinished,
            "fresh alone": self.fresh,
            "runs": RUNS,
            "operators called": len(self.repeat) + len(differ),
            "operators that repeat themselves": len(self.repeat),
            "differ with several threads alone": [x for x in differ if x not in with_one],
            "differ with one thread too": [x for x in differ if x in with_one],
            "differ": sorted(self.differ, key=lambda row: str(row["operator"])),
            "repeat": " ".join(sorted(self.repeat)),
            "of them small": " ".join(sorted(self.small)),
            "not called": {**unable, **self.unable},
        }


if __name__ == "__main__":
    main()
