"""All that needs a GPU, in calls of some minutes: driver, tests, exactness, speed, allocators.

    python perf/gpu/run.py --minutes 9.5                what is worth most, as far as time goes
    python perf/gpu/run.py --minutes 3 --missing        what is not measured yet
    python perf/gpu/run.py --list --minutes 3           what such a call would do
    python perf/gpu/run.py --device cpu                 a rehearsal: small models, no GPU

It builds the extension where that is needed, and needs no make and no network. Each part is made of
processes with limits, so that one that fails, hangs or crashes loses nothing but itself. Results go
to $OUT, or to perf/results/gpu: gpu.json, gpu.txt (the table) and tests.txt. They are added to what
lies there, or to perf/results/gpu/gpu.json where $OUT is empty: a later call goes on, and a part
that runs again replaces what it found before. With `--missing` it keeps what is whole, and runs the
rest.
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
from report import Report, earlier
from work import Part, Work

RESULTS = Path(__file__).parents[1] / "results/gpu"
THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def run_part(part: Part, work: Work) -> str:
    """Runs it whatever it does; returns how it ended."""
    work.report.begin(part.name, work.missing, gpu=facts.gpu_now() if work.cuda else {})
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


def run(chosen: list[Part], work: Work) -> int:
    """Runs parts in turn until the time of this call is up; 1 if one that ran did not come to its
    end."""
    states = {}
    for together in parts.turns(chosen):
        now = time.monotonic()
        left, running = work.deadline - now, []
        for part in together:
            before = work.report.document["parts"]
            if why := parts.why_not(part, before, work.missing, work.device, left):
                work.report.skip(part.name, why)
                states[part.name] = "skipped"
                continue
            print(f"-- {part.name}: {part.question}", flush=True)
            deadline = min(work.deadline, now + part.limit)
            running.append((part, replace(work, part=part.name, deadline=deadline)))
        if len(running) == 1:  # In this thread, which a signal ends at once.
            states[running[0][0].name] = run_part(*running[0])
            continue
        with ThreadPoolExecutor(max(len(running), 1)) as pool:
            ended = pool.map(lambda given: run_part(*given), running)
            states |= {part.name: state for (part, _), state in zip(running, ended, strict=True)}
    print("-- " + ", ".join(f"{name}: {state}" for name, state in states.items()), flush=True)
    return int(any(state not in ("done", "skipped") for state in states.values()))


def arguments_of(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="parts by name, with commas")
    parser.add_argument("--list", action="store_true", help="tell what would run, and go")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--minutes", type=float, default=9.5, help="for this call")
    parser.add_argument("--build", type=Path, help="folder of what is compiled; build/gpu")
    parser.add_argument("--build-only", action="store_true", help="build and go")
    parser.add_argument("--commit", help="what to call the code, instead of asking git")
    parser.add_argument("--missing", action="store_true", help="only what is not measured yet")
    parser.add_argument("--tests", nargs="+", default=[], help="files for the part tests")
    parser.add_argument("--out", type=Path)
    return parser.parse_args(given)


def main() -> int:
    begin = time.monotonic()
    arguments = arguments_of()
    seconds, missing = 60 * arguments.minutes, arguments.missing
    out = arguments.out or Path(os.environ.get("OUT") or RESULTS)
    before = RESULTS / "gpu.json" if arguments.device == "cuda" else None
    old = earlier(out / "gpu.json", before)["parts"]
    try:
        chosen = parts.chosen(arguments.only, old, missing)
    except ValueError as error:
        sys.exit(f"run.py: {error}")
    if arguments.list:
        for part, needs, why in parts.planned(chosen, old, missing, arguments.device, seconds):
            print(f"{part.name:<10} {needs:4.0f} s  {f'skipped: {why}' if why else part.question}")
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
    report = Report(out, call | {"seconds_to_build": time.monotonic() - begin}, before)
    named = tuple(arguments.tests)
    return run(chosen, Work(report, "", arguments.device, begin + seconds, env, named, missing))


if __name__ == "__main__":
    sys.exit(main())
