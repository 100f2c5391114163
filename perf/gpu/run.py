"""All that needs a GPU, in calls of some minutes: driver, tests, exactness, speed, allocators.

    python perf/gpu/run.py --list
    python perf/gpu/run.py --only probe,tests
    python perf/gpu/run.py --device cpu                 a rehearsal: small models, no GPU

It builds the extension where that is needed, and needs no make and no network. Each part is made of
processes with limits, so that one that fails, hangs or crashes loses nothing but itself. Results go
to $OUT, or to perf/results/gpu: gpu.json, gpu.txt (the table) and tests.txt. They are added to what
lies there, or to perf/results/gpu/gpu.json where $OUT is empty: a later call goes on, and a part
that runs again replaces what it found before. perf/README.md has the calls that make up a whole.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).parent))

import facts
import parts
import prepare
from report import Report
from work import Part, Work

RESULTS = Path(__file__).parents[1] / "results/gpu"
THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def run_part(part: Part, work: Work) -> str:
    """Runs it whatever it does; returns how it ended."""
    work.report.begin(part.name, work.fill, gpu=facts.gpu_now() if work.cuda else {})
    try:
        part.run(work)
    except Exception:
        text = traceback.format_exc()
        print(text, flush=True)
        work.report.end(part.name, "failed", failed=text[-2000:])
        return "failed"
    found = work.report.results(part.name).values()
    state = "done"
    if any("unfinished" in result for result in found):
        state = "unfinished"
    if any("failed" in result for result in found):
        state = "failed in part"
    work.report.end(part.name, state)
    return state


def run(report: Report, chosen: list[Part], work: Work) -> int:
    """Runs parts until the time of this call is up, side by side where they measure no time, then
    the others in turn; 1 if one did not come to its end."""

    def one(part: Part) -> str:
        now = time.monotonic()
        if work.deadline - now < 10:
            report.skip(part.name, "no time left in this call")
            return "skipped"
        print(f"-- {part.name}: {part.question}", flush=True)
        deadline = min(work.deadline, now + part.limit)
        return run_part(part, replace(work, part=part.name, deadline=deadline))

    beside = [part for part in chosen if not part.timed]
    in_turn = [part for part in chosen if part.timed]
    with ThreadPoolExecutor(max(len(beside), 1)) as pool:
        states = list(pool.map(one, beside))
    states += [one(part) for part in in_turn]
    named = zip([*beside, *in_turn], states, strict=True)
    print("-- " + ", ".join(f"{part.name}: {state}" for part, state in named), flush=True)
    return int(any(state != "done" for state in states))


def arguments_of(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="parts by name, with commas")
    parser.add_argument("--list", action="store_true", help="name the parts and go")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--seconds", type=float, default=540, help="for this call")
    parser.add_argument("--build", type=Path, help="folder of what is compiled; build/gpu")
    parser.add_argument("--build-only", action="store_true", help="build and go")
    parser.add_argument("--commit", help="what to call the code, instead of asking git")
    parser.add_argument("--fill", action="store_true", help="keep results of earlier calls")
    parser.add_argument("--tests", nargs="+", default=[], help="files for the part tests")
    parser.add_argument("--out", type=Path)
    return parser.parse_args(given)


def main() -> int:
    begin = time.monotonic()
    arguments = arguments_of()
    try:
        chosen = parts.chosen(arguments.only)
    except ValueError as error:
        sys.exit(f"run.py: {error}")
    if arguments.list:
        print("\n".join(f"{p.name:<12} {p.limit:4.0f} s  {p.question}" for p in chosen))
        return 0
    # A polite end is an exception here, so that no process stays behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    env = prepare.environment(arguments.build, arguments.device)
    if arguments.build_only:
        return 0
    if arguments.device == "cpu":
        env |= THREADS
    call = facts.of_call(arguments.device, arguments.commit, env)
    if arguments.device == "cuda" and "gpu" not in call:
        sys.exit("there is no CUDA device here that torch can use; --device cpu is a rehearsal")
    out = arguments.out or Path(os.environ.get("OUT") or RESULTS)
    before = RESULTS / "gpu.json" if arguments.device == "cuda" else None
    report = Report(out, call | {"seconds_to_build": time.monotonic() - begin}, before)
    deadline = begin + arguments.seconds
    named = tuple(arguments.tests)
    work = Work(report, "", arguments.device, deadline, env, named, arguments.fill)
    return run(report, chosen, work)


if __name__ == "__main__":
    sys.exit(main())
