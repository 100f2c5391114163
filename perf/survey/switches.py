"""Which operators give other bits when a switch of torch is set otherwise?

A kernel reads more than its arguments: which libraries it may use, how precise it has to be, how
many threads there are. So each operator that a scope sees runs with the same arguments under each
setting of each switch (switch_list.py): float32, other types where torch's tests have them, and
numbers that are denormal for the switch that flushes these. Most switches change nothing, so all of
the kind are set at once first, and one by one only where that gave other bits.

    python perf/survey/switches.py --out perf/results/survey
"""

import argparse
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

sys.path.append(str(Path(__file__).parents[1] / "support"))

from calls import Call, Source, digest, operators
from children import Lost, results
from result import read, surveyed, write
from samples import samples
from schemas import is_composite
from switch_list import (
    DEFAULT_DTYPE,
    DETERMINISTIC,
    FLUSH_DENORMAL,
    IN_A_RECIPE,
    NO_RESULT_DEPENDS,
    OF_A_DEVICE,
    THREADS,
    Switch,
    context_fields,
    switches,
)


def outcome(call: Call) -> str:
    """A digest of results and arguments, or the error's class."""
    args, kwargs = call.fresh()
    torch.manual_seed(0)
    try:
        with torch.no_grad():
            made = call.run(args, kwargs)
    except Exception as error:
        return type(error).__name__
    return digest((made, args, kwargs))


def denormal(call: Call) -> Call:
    """The same with numbers so small that float32 has no normal ones for them."""

    def small(x: Any) -> Any:
        if isinstance(x, Tensor) and x.dtype == torch.float32 and x.layout == torch.strided:
            return x * (1e-39 / max(1e-30, float(x.abs().max())) if x.numel() else 1)
        return x

    args, kwargs = tree_map(small, (call.args, call.kwargs))
    return Call(call.operator, args, kwargs, call.how)


def differing(call: Call) -> Iterator[str]:
    """The settings under which the call's outcome is another, as "switch=value"."""
    torch.set_num_threads(2)
    usual = outcome(call)
    if outcome(call) != usual:
        return  # It does not repeat itself: repeats.py.
    for switch in (THREADS, DEFAULT_DTYPE, DETERMINISTIC):
        yield from (f"{switch.name}={x}" for x in switch.others if _differs(call, switch, x, usual))
    if any(_differs_at_once(call, usual, last) for last in (False, True)):
        for switch in switches():
            for value in switch.others:
                if _differs(call, switch, value, usual):
                    yield f"{switch.name}={value}"
    tiny = denormal(call)
    usual = outcome(tiny)
    if _differs(tiny, FLUSH_DENORMAL, True, usual):
        yield f"{FLUSH_DENORMAL.name}=True"


def _differs(call: Call, switch: Switch, value: Any, usual: str) -> bool:
    try:
        with switch.at(value):
            return outcome(call) != usual
    except Exception:  # torch refuses the value here.
        return False


def _differs_at_once(call: Call, usual: str, last: bool) -> bool:
    """With all switches at their first other value, or their last. oneDNN stays enabled for the
    one: without it what says how precise it is plays no part."""
    with ExitStack() as stack:
        for switch in switches():
            if last and switch.name == "_set_mkldnn_enabled":
                continue
            try:
                stack.enter_context(switch.at(switch.others[-last]))
            except Exception:
                continue
        return outcome(call) != usual


def survey(source: Source, operator: str) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    worked = 0
    found: dict[str, str] = {}
    for call in source.calls(operator, 2):
        worked += 1
        for setting in differing(call):
            found.setdefault(setting, call.how)
    return {"calls": worked, "settings": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("perf/results/survey"))
    parser.add_argument("--samples", type=Path, default=Path("build/survey"))
    parser.add_argument("--only", default="", help="operators with this in their names")
    parser.add_argument("--out-variants", action="store_true", help="those that end in out, too")
    parser.add_argument("--fresh", action="store_true", help="those that no committed result names")
    asked = parser.parse_args()
    known = surveyed(asked.out, "switches") if asked.fresh else set()
    torch.set_num_threads(1)
    source = Source(samples(asked.samples))
    able, unable = operators()
    able = [name for name in able if not is_composite(name) and asked.only in name]
    if not asked.out_variants:
        unable |= {x: "writes to out what another returns" for x in able if x.endswith("out")}
        able = [name for name in able if not name.endswith("out")]
    # Where the survey of repeats.py found one, no setting can be told from chance.
    for row in read(asked.out, "repeats").get("differ", []):
        unable[row["operator"]] = "does not repeat itself"
    able = [name for name in able if name not in unable and name not in known]
    unable = {name: why for name, why in unable.items() if name not in known}
    tried = [THREADS, DEFAULT_DTYPE, DETERMINISTIC, FLUSH_DENORMAL, *switches()]
    settings = [f"{switch.name}={value}" for switch in tried for value in switch.others]
    table: dict[str, list[str]] = {}
    called: list[str] = []

    def document(unfinished: bool) -> dict[str, Any]:
        found = {x: table.get(x, []) for x in settings}
        return {
            "unfinished": unfinished,
            "fresh alone": asked.fresh,
            "operators called": len(called),
            "settings": {
                x: {"number": len(names), "operators": " ".join(names)}
                for x, names in found.items()
            },
            "of all that were called": " ".join(called),
            "fields of at::Context": " ".join(context_fields()),
            "not set, for a recipe keeps them": sorted(IN_A_RECIPE),
            "not set, for no result depends on them": NO_RESULT_DEPENDS,
            "not set, for their values are a device's": sorted(OF_A_DEVICE),
            "not called": dict(unable),
        }

    for count, (name, about) in enumerate(results(lambda x: survey(source, x), able, seconds=60)):
        if isinstance(about, Lost):
            unable[name] = about.reason
        elif about["calls"] == 0:
            unable[name] = "no arguments were found"
        else:
            called.append(name)
            for setting in about["settings"]:
                table.setdefault(setting, []).append(name)
        if count % 20 == 0:
            write(asked.out, "switches", document(unfinished=True))
    write(asked.out, "switches", document(unfinished=False))


if __name__ == "__main__":
    main()
