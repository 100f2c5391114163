"""Which operators give other bits when they run again with the same arguments?

A recipe that runs again must give what ran first. On the CPU some kernels add into one place from
several threads, in an order that no two runs share. No schema and no tag says so. So each operator
of the dispatcher's list runs several times with the same arguments and the same state of the
generator: with four threads first, more often where the operator takes indices, and 50 times with
1, 2 and 4 threads where two runs differed, and once more with torch.use_deterministic_algorithms.
Threads may be more than cores: what they do in turn shows as well.

What differs with one thread too is memory that nobody wrote.

    python perf/survey/repeats.py --out perf/results/survey
"""

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1]))

from calls import Call, Source, digest, operators, tensors
from children import Lost, results
from result import write
from samples import overload, samples

THREADS = (1, 2, 4)
RUNS = 50
FIRST_RUNS = 3
FIRST_RUNS_WITH_INDICES = 8


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
        if several > 1 and len(differ) < 2:
            counts = {str(n): results_of(call, RUNS, n) for n in THREADS}
            mode = in_deterministic_mode(call, RUNS)
            differ.append({"arguments": described(call), "results": counts, "deterministic": mode})
    return {"calls": worked, "elements": elements, "differ": differ}


def rows(found: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"operator": name, **one}
        for name, about in sorted(found.items())
        for one in about["differ"]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("perf/results/survey"))
    parser.add_argument("--samples", type=Path, default=Path("build/survey"))
    parser.add_argument("--only", default="", help="operators with this in their names")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    source = Source(samples(asked.samples))
    able, unable = operators()
    able = sorted(
        (x for x in able if asked.only in x), key=lambda x: (not takes_indices(x), "out" in x)
    )
    found: dict[str, dict[str, Any]] = {}
    for name, about in results(lambda x: survey(source, x), able, seconds=45):
        if isinstance(about, Lost):
            unable[name] = about.reason
        elif about["calls"] == 0:
            unable[name] = "no arguments were found"
        else:
            found[name] = about
        if len(found) % 50 == 0 or name == able[-1]:
            write(asked.out, "repeats", document(found, unable, name != able[-1]))


def document(found: dict[str, Any], unable: dict[str, str], going_on: bool) -> dict[str, Any]:
    many = sum(about["elements"] >= 100_000 for about in found.values())
    differ = rows(found)
    return {
        "unfinished": going_on,
        "runs": RUNS,
        "operators called": len(found),
        "of them with 100,000 elements and more": many,
        "operators that repeat themselves": len(found) - len({row["operator"] for row in differ}),
        "operators that do not": sorted({row["operator"] for row in differ}),
        "differ": differ,
        "not called": unable,
    }


if __name__ == "__main__":
    main()
