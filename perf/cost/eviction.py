"""What does an eviction cost among 1,000 candidates, and how fast is a long chain recomputed?

Evictions: a budget that holds 1,000 tensors of 4 KiB is full, and each new tensor evicts one. The
search is what the session says it spent searching, per eviction. The whole is the thread-CPU time
that an addition takes more than in a scope without a budget: it also holds giving the victim's
block back and marking its tensor. Both work on pages that have been touched before.

Chain: 200,000 additions, each of the one before; the intermediates were dropped by the program, the
end is evicted by hand, and asking for it again recomputes them all, in constant memory.

    python perf/cost/eviction.py --out perf/results/eviction.json
"""

import argparse
import gc
import sys
import time
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1] / "support"))

from measurement import Measurement, end_first_steps, report

import dtr_alloc

CANDIDATES = 1000
TENSOR_BYTES = 4096
EVICTION_LIMIT_US = 3.0
CHAIN_LIMIT_S = 1.0


def additions_ns(base: torch.Tensor, count: int) -> tuple[float, list[torch.Tensor]]:
    """Thread-CPU ns per addition of a number to `base`, and the results."""
    begin = time.thread_time_ns()
    kept = [base + number for number in range(count)]
    return (time.thread_time_ns() - begin) / count, kept


def evictions(count: int) -> list[Measurement]:
    """Costs of `count` evictions, in us each."""
    base = torch.ones(TENSOR_BYTES // 4)
    with dtr_alloc.rematerialize(None, device="cpu"):
        end_first_steps()
        _, kept = additions_ns(base, count)  # Touches the pages.
        del kept
        free_ns, kept = additions_ns(base, count)
        del kept
    with dtr_alloc.rematerialize(CANDIDATES * TENSOR_BYTES, device="cpu") as session:
        end_first_steps()
        _, full = additions_ns(base, CANDIDATES)
        before = session.stats()
        tight_ns, kept = additions_ns(base, count)
        after = session.stats()
        del full, kept  # Leaving the scope would bring all of them back.
    made = after.evictions - before.evictions
    if made < count:
        raise RuntimeError(f"{count} tensors beyond the budget made only {made} evictions")
    search_ns = (after.search_ns - before.search_ns) / made
    return [
        Measurement("eviction among 1,000: search", search_ns / 1e3, "us", EVICTION_LIMIT_US),
        Measurement(
            "eviction among 1,000: whole",
            (tight_ns - free_ns) * count / made / 1e3,
            "us",
            EVICTION_LIMIT_US,
        ),
    ]


def chain(length: int) -> list[Measurement]:
    """Thread-CPU seconds to recompute the end of a chain of `length` additions of 1 KiB tensors.
    The program holds them all: of what it dropped, a recipe goes no further back than 256
    operators.
    """
    y = torch.ones(256)
    with dtr_alloc.rematerialize(None, device="cpu") as session:
        end_first_steps()
        links = [torch.zeros(256) + y]
        begin = time.thread_time()
        for _ in range(length - 1):
            links.append(links[-1] + y)
        forward_s = time.thread_time() - begin
        for link in links:
            dtr_alloc.evict(link)
        x = links[-1]
        before = session.stats().rematerializations
        begin = time.thread_time()
        dtr_alloc.materialize(x)
        remat_s = time.thread_time() - begin
        made = session.stats().rematerializations - before
        if not torch.equal(x, torch.full((256,), float(length))):
            raise RuntimeError("the recomputed end of the chain is wrong")
        del x, links
    if made < length:
        raise RuntimeError(f"a chain of {length} was recomputed by {made} operators")
    limit = CHAIN_LIMIT_S * length / 200_000
    return [
        Measurement(f"chain of {length:,}: forward", forward_s, "s"),
        Measurement(f"chain of {length:,}: recomputed", remat_s, "s", limit),
    ]


def main() -> int:
    """Runs both measurements; returns 1 if a limit was passed."""
    parser = argparse.ArgumentParser(description="Cost of an eviction and of a long chain.")
    parser.add_argument("--quick", action="store_true", help="fewer evictions, a shorter chain")
    parser.add_argument("--out", type=Path, help="write JSON here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    gc.disable()  # A collection of everything takes 100 ms, in whichever part it falls.
    found = evictions(2_000 if options.quick else 20_000)
    found += chain(20_000 if options.quick else 200_000)
    return report(found, options.out)


if __name__ == "__main__":
    sys.exit(main())
