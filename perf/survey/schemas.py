"""What do operators do that their schemas do not say?

A schema says which arguments an operator writes and which results share an argument's memory, and a
tag says that it draws from the generator. Here each operator of the dispatcher's list is called
with the arguments of torch's own tests, forward and backward, and seen: which arguments have other
bytes afterwards, which results lie in an argument's storage, whether the generator moved. A row is
what was seen and is not declared, and what the tables of live/operators/operators.cpp say of it.

A composite operator is made of others, which a scope sees one by one; its own schema plays no part.

    python perf/survey/schemas.py --out perf/results/survey
"""

import argparse
import re
import sys
import warnings
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1] / "support"))

from calls import Call, Source, digest, operators, tensors
from children import Lost, results
from result import write
from samples import copied, overload, samples

TABLES = Path(__file__).parents[2] / "runtime/csrc/live/operators/operators.cpp"
Row = tuple[str, str, str]


def is_composite(operator: str) -> bool:
    """Made of other operators, as the rule of live/operators/operators.cpp has it."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return has(operator, "CompositeImplicitAutograd") and not any(
        has(operator, key) for key in ("CPU", "CUDA")
    )


def in_tables(operator: str, argument: str) -> str:
    """The tables of operators.cpp that have the operator; of rows with arguments, with this one."""
    name, found = operator.partition(".")[0], []
    tables = re.findall(r"constexpr [\w:]+ (k\w+)\[\] = \{(.*?)\};", TABLES.read_text(), re.S)
    for table, body in tables:
        rows = re.findall(r"\{([^{}]*)\}", body) or [body]
        for row in rows:
            words = re.findall(r'"([^"]*)"', row)
            prefix = "Prefixes" in table and any(name.startswith(word) for word in words)
            if prefix or (name in words and (row is body or argument in words)):
                found.append(table)
    return ", ".join(dict.fromkeys(found))


def _storages(tree: object) -> set[int]:
    found = set()
    for x in tensors(tree):
        parts = [x._indices(), x._values()] if x.layout == torch.sparse_coo else [x]
        for part in parts:
            if part.layout == torch.strided and part.untyped_storage().nbytes():
                found.add(part.untyped_storage()._cdata)
    return found


def seen(call: Call) -> Iterator[Row]:
    """(what, argument, what the schema says), for all that one call does and does not declare."""
    schema = overload(call.operator)._schema
    # A copy of each argument, so that two of them share nothing.
    args, kwargs = copied((call.args, call.kwargs))
    given = {a.name: x for a, x in zip(schema.arguments, args, strict=False)} | kwargs
    before = {name: digest(x) for name, x in given.items()}
    storages = {name: _storages(x) for name, x in given.items()}
    torch.manual_seed(0)
    state = torch.get_rng_state()
    with torch.no_grad():
        made = call.run(args, kwargs)
    moved = not torch.equal(state, torch.get_rng_state())
    tagged = torch.Tag.nondeterministic_seeded in overload(call.operator).tags
    if moved and not tagged:
        yield ("draws from the generator", "", "has no tag nondeterministic_seeded")
    returned = made if isinstance(made, tuple) else (made,)
    for a in schema.arguments:
        if a.name not in given:
            continue
        info = a.alias_info
        if digest(given[a.name]) != before[a.name] and not (info and info.is_write):
            yield ("is written", a.name, "reads it")
        if set(map(id, tensors(given[a.name]))) & set(map(id, tensors(made))):
            shared = "is a result itself"
        elif storages[a.name] & _storages(returned):
            shared = "shares its storage with a result"
        else:
            continue
        if info is None or not any(r.alias_info for r in schema.returns):
            yield (shared, a.name, "no result is an alias of it")


def survey(source: Source, operator: str) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows: dict[Row, str] = {}
    worked = 0
    for call in chain(source.small(operator), source.calls(operator, 1)):
        try:
            for row in seen(call):
                rows.setdefault(row, call.how)
        except Exception:
            continue
        worked += 1
    return {"calls": worked, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("perf/results/survey"))
    parser.add_argument("--samples", type=Path, default=Path("build/survey"))
    parser.add_argument("--only", default="", help="operators with this in their names")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    source = Source(samples(asked.samples))
    able, unable = operators()
    rows: list[dict[str, Any]] = []
    called = 0
    able = [name for name in able if asked.only in name]
    for name, about in results(lambda x: survey(source, x), able, seconds=30):
        if isinstance(about, Lost):
            unable[name] = about.reason
        elif about["calls"] == 0:
            unable[name] = "no arguments were found"
        else:
            called += 1
            for (what, argument, says), how in about["rows"].items():
                row = {"operator": name, "argument": argument, "seen": what, "schema": says,
                       "composite": is_composite(name), "tables": in_tables(name, argument),
                       "call": how}  # fmt: skip
                rows.append(row)
    one_by_one = [row for row in rows if not row["composite"]]
    document = {
        "operators called": called,
        "operators with rows that a scope sees": len({row["operator"] for row in one_by_one}),
        "of these in no table": sorted({r["operator"] for r in one_by_one if not r["tables"]}),
        "rows": sorted(rows, key=lambda row: (row["composite"], row["operator"], row["argument"])),
        "not called": unable,
    }
    write(asked.out, "schemas", document)


if __name__ == "__main__":
    main()
