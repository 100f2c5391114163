"""A second tier of memory in the simulator, on small logs, where each decision can be worked out.

Tensors have a MiB, and the link takes a millisecond for one, each way, unless said otherwise. A run
is told as in test_simulate.py: "+3" where tensor 3 was computed, "-3" where it was evicted, "x3"
where it went because the program let it go.
"""

import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dtr_alloc import SimulationResult, Trace, simulate
from dtr_alloc.__main__ import main
from dtr_alloc.pool.size import Share
from dtr_alloc.runtime.simulate.link import Link
from dtr_alloc.runtime.simulate.result import LINK_FIELDS
from dtr_alloc.runtime.simulate.rules import Rules
from dtr_alloc.runtime.simulate.simulator import Simulator
from dtr_alloc.runtime.trace.format import Annotate, Call, Instruction, Release, Result
from tests.simulate.test_simulate import story
from tests.simulate.test_simulate_model import random_trace
from tests.support.fences import ROOT
from tests.support.trace_lines import Line, call, load, mutate, release

MIB, MS = 1 << 20, 1_000_000
LINK = Link(1000 * MIB)


def run(log: Path, mib: float, *parts: list[Line], **more: Any) -> SimulationResult:
    rules: dict[str, Any] = {"heuristic": "dtr", "log_events": True, "link": LINK, "thrash": None}
    return simulate(load(log, *parts), int(mib * MIB), **(rules | more))


def made(name: str, args: str = "", ms: int = 1, memory: int = MIB) -> list[Line]:
    return call(args, name, time=ms * MS, memory=memory)


def untracked(name: str, args: str = "", ms: int = 1) -> list[Line]:
    line, *rest = made(name, args, ms)
    return [{**line, "memory": [f"a{MIB}"], "blocks": [0], "tracked": [0]}, *rest]


def write(name: str, tracked: int) -> list[Line]:
    return [{**line, "tracked": [tracked]} for line in mutate(name, 0)]


def three(ms: int) -> list[list[Line]]:
    """Room for two: a goes for c, and is read at the end."""
    return [made("a", ms=ms), made("b"), made("c"), release("b", "c"), made("d", "a")]


SLOW = Link(LINK.bytes_per_second, latency_ns=MS // 2)


@pytest.mark.parametrize(
    ("ms", "rules", "again", "reloads", "waited_ms"),
    [
        (50, {}, 0, 1, 2),  # What is dear goes over the link and comes back.
        (50, {"link": SLOW}, 0, 1, 3),  # Each transfer waits for the latency.
        (1, {}, 1, 0, 0),  # What is cheap is recomputed.
        (1, {"leave_by": "swap"}, 0, 1, 2),
    ],
)
def test_what_goes_comes_back_as_is_cheaper(
    log: Path, ms: int, rules: dict[str, Any], again: int, reloads: int, waited_ms: int
) -> None:
    result = run(log, 2, *three(ms), heuristic="lru", pin_outputs=False, **rules)
    assert (result.status, result.rematerializations, result.reloads) == ("ok", again, reloads)
    assert result.swapped_out_bytes == result.swapped_in_bytes == reloads * MIB
    assert result.waited_ns == waited_ms * MS
    assert result.total_compute - result.base_compute == (waited_ms + again * ms) * MS


def test_what_is_missing_behind_a_tensor_counts(log: Path) -> None:
    # To recompute b takes 1 ms; a, which it is made from, has gone, and takes 2 more.
    chain = [made("a", ms=2), made("b", "a"), release("a"), made("c"), made("d")]
    result = run(log, 2, *chain, release("c", "d"), made("e", "b"), heuristic="lru")
    assert (result.status, result.rematerializations, result.reloads) == ("ok", 0, 1)


def test_what_was_written_once_comes_back_for_half(log: Path) -> None:
    again = [release("d"), made("e"), made("f"), release("e", "f"), made("g", "a")]
    result = run(log, 2, *three(ms=50), *again, heuristic="lru", pin_outputs=False)
    assert (result.reloads, result.swapped_out_bytes, result.swapped_in_bytes) == (2, MIB, 2 * MIB)
    assert result.waited_ns == 3 * MS


def test_a_small_tensor_stays_though_its_bytes_would_move_in_no_time(log: Path) -> None:
    # The mean of a batch has a KiB and takes 50 ms: the larger tensor goes, not it.
    small = made("mean", ms=50, memory=1024)
    result = run(log, 2.01, small, made("b", ms=50), made("c"), made("d"), release("c", "d"))
    assert story(result).startswith("-1")


def test_what_no_operator_can_make_goes_over_the_link(log: Path) -> None:
    kept = [untracked("a"), untracked("b"), made("c"), release("c"), made("d", "a")]
    assert run(log, 2, *kept, link=None).status == "oom"
    result = run(log, 2, *kept, heuristic="lru", pin_outputs=False)
    assert (result.status, result.reloads, result.swapped_out_bytes) == ("ok", 1, 2 * MIB)


def test_what_is_written_in_place_must_be_written_to_the_other_side_again(log: Path) -> None:
    more = [made("b"), made("c"), release("b", "c"), write("a", tracked=0)]
    again = [made("e"), made("f"), release("e", "f"), made("g", "a")]
    result = run(log, 2, untracked("a"), *more, *again, heuristic="lru", pin_outputs=False)
    assert (result.status, result.reloads, result.swapped_out_bytes) == ("ok", 2, 2 * MIB)


def test_recipes_read_what_was_there_before_a_write_in_place(log: Path) -> None:
    """x is moved, y was made from it, and x is written. From then on y costs its own millisecond
    and the way back of the old x, which is as much as its own two ways: it goes over the link. Were
    x and what it became one tensor, y would be made from that."""
    parts = [made("x", ms=50), made("y", "x"), made("p"), made("q"), release("p", "q")]
    more = [write("x", tracked=1), made("r"), made("s"), release("r", "s"), made("z", "y")]
    result = run(log, 3, *parts, *more, heuristic="lru", pin_outputs=False)
    assert story(result) == "-0 x2 x3 -1 x5 x6"
    assert (result.status, result.rematerializations, result.reloads) == ("ok", 0, 2)
    assert result.swapped_out_bytes == 2 * MIB


def test_an_operator_of_two_missing_results_counts_once(log: Path) -> None:
    """c is made from both: to recompute it takes 1.5 ms, and a transfer 2."""
    pair = [call("", "a b", time=MS, memory=MIB), call("a b", "c", time=MS // 2, memory=MIB)]
    rest = [release("a", "b"), made("d"), made("e"), made("f"), release("d", "e", "f")]
    result = run(log, 3, *pair, *rest, made("g", "c"), heuristic="lru", pin_outputs=False)
    assert (result.status, result.reloads) == ("ok", 0)
    assert result.total_compute - result.base_compute == 3 * MS // 2


def test_with_drop_alone_a_link_changes_nothing(log: Path) -> None:
    without = run(log, 2, *three(ms=50), link=None)
    dropped = run(log, 2, *three(ms=50), leave_by="drop")
    assert story(dropped) == story(without)
    assert (dropped.waited_ns, dropped.reloads) == (0, 0)


def step_of_short_lives(number: int) -> list[Instruction]:
    """Five tensors that the end of the step reads, and many that are read at once."""

    def make(name: str, *args: str) -> Call:
        result = Result(f"{name}.{number}", MIB, -1)
        return Call("f", tuple(f"{arg}.{number}" for arg in args), (result,), 20 * MS)

    def let_go(*names: str) -> list[Instruction]:
        return [Release(f"{name}.{number}") for name in names]

    lines: list[Instruction] = [make(f"kept{i}") for i in range(5)]
    for i in range(20):
        lines += [make(f"{x}{i}") for x in "abc"]
        for x in "abc":
            lines += [make(f"read {x}{i}", f"{x}{i}"), *let_go(f"read {x}{i}", f"{x}{i}")]
    for i in range(5):
        lines += [make(f"end{i}", f"kept{i}"), *let_go(f"end{i}", f"kept{i}")]
    return [*lines, Annotate("STEP")]


def test_the_next_use_of_what_was_just_made_is_foretold_where_it_can_only_be_moved() -> None:
    trace = Trace(tuple(line for step in range(6) for line in step_of_short_lives(step)))
    simulator = Simulator(trace)
    rules = Rules("dtr", link="1GB/s", leave_by="swap", thrash=None)
    stale = simulator.run(7 * MIB, rules)
    foretold = simulator.run(7 * MIB, replace(rules, heuristic="foresight"))
    assert 0 < foretold.reloads <= 2 * stale.reloads


@pytest.mark.parametrize("leave_by", ["swap", "both"])
def test_in_random_programs_the_sums_are_right(leave_by: Any) -> None:
    draw, moved = random.Random(0), 0
    for _ in range(300):
        small = random_trace(40, draw.randrange, only_held=True).schedule()
        sizes, times = small.tensor_size * MIB, small.op_cost * 100
        grown = Simulator(replace(small, tensor_size=sizes, op_cost=times))
        result = grown.run(
            Share(0.5, whole=True), Rules("dtr", link="100TB/s", leave_by=leave_by, thrash=None)
        )
        if result.status != "ok":
            continue
        recomputed = result.total_compute - result.base_compute - result.waited_ns
        assert recomputed == 0 if leave_by == "swap" else recomputed >= 0
        assert (result.reloads > 0) == (result.swapped_in_bytes > 0)
        moved += result.reloads
    assert moved > 100


# What is asked for.


@pytest.mark.parametrize(
    ("text", "link"),
    [
        ("50GB/s", Link(50 * 10**9)),
        (" 12.5 GiB/s + 10us", Link(int(12.5 * 2**30), 10_000)),
        ("1MB/s+1.5ms", Link(10**6, 1_500_000)),
    ],
)
def test_a_link_is_written_as_a_size_a_second(text: str, link: Link) -> None:
    assert Link.parse(text) == link
    assert Link.parse(str(link)) == link


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"link": "50GB"}, 'link "50GB" is no speed: write it as "50GB/s" or "50GB/s+10us"'),
        ({"link": "50GB/s+soon"}, 'link "50GB/s+soon" is no speed'),
        ({"link": "fast/s"}, 'link "fast/s" is no speed'),
        ({"link": "1GB/s+"}, 'link "1GB/s+" is no speed'),
        ({"link": "0GB/s"}, 'link "0GB/s" is no speed'),
        ({"link": "1B/s"}, "give 1 MB to 100 TB"),
        ({"link": "900TB/s"}, "give 1 MB to 100 TB"),
        ({"link": "1GB/s+2000ms"}, "give 0 to a second"),
        ({"link": "1GB/s", "mode": "bytes"}, "has no link: use 'pool'"),
        ({"link": "1GB/s", "policy": "ignore"}, "needs the policy 'eager', not 'ignore'"),
        ({"leave_by": "train"}, "leave_by 'train' is not"),
        ({"leave_by": "swap"}, "leave_by 'swap' needs a link"),
    ],
)
def test_what_is_no_link_is_refused(rules: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Rules(**{"mode": "pool", **rules})


def test_a_number_is_no_link_and_a_part_of_a_nanosecond_no_latency() -> None:
    with pytest.raises(TypeError, match="give integers"):
        Link(10**9, 0.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="link 50 is neither a Link nor a text"):
        Rules(mode="pool", link=50)  # type: ignore[arg-type]


UNET = ROOT / "perf/traces/unet.log.gz"


def command(*args: str) -> Any:
    return CliRunner().invoke(main, [*args])


def test_the_commands_take_a_link(tmp_path: Path) -> None:
    asked = ("--mode", "pool", "--link", "10GB/s")
    done = command("simulate", str(UNET), "--budget", "50%", *asked)
    assert done.exit_code == 0
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert set(LINK_FIELDS) <= set(names)
    found = json.loads(command("simulate", str(UNET), "--budget", "50%", *asked, "--json").stdout)
    assert (found["link"], found["leave_by"], found["reloads"] > 0) == ("10GB/s", "both", True)
    rows = tmp_path / "rows.csv"
    swept = command(
        *("sweep", str(UNET), "--budgets", "50%", "--heuristics", "dtr", "--jobs", "1"),
        *(*asked, "--leave-by", "swap", "--csv", str(rows)),
    )
    assert swept.exit_code == 0, swept.output
    assert ",10GB/s,swap,ok," in rows.read_text()


def test_the_command_says_what_a_link_needs() -> None:
    done = command("simulate", str(UNET), "--budget", "50%", "--paper", "--link", "10GB/s")
    assert (done.exit_code, "use 'pool'" in done.output) == (1, True)
