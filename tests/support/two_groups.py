"""Two threads of each process reduce over a group each, and each process begins with another of the
groups: what one waits for, the other process does only after that wait has begun.

    torchrun --standalone --nproc-per-node 2 tests/support/two_groups.py

Prints a line of JSON for each process: what both groups computed.
"""

import json
import sys
import threading

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as collectives

import dtr_alloc


def main() -> int:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    groups = [dist.new_group(), dist.new_group()]
    sums = [0.0, 0.0]
    begun = [threading.Event(), threading.Event()]

    def reduce(which: int) -> None:
        with dtr_alloc.join_scope():
            pending = collectives.all_reduce(torch.ones(1 << 10), "sum", groups[which])
            begun[which].set()
            sums[which] = float(collectives.wait_tensor(pending).sum())  # type: ignore[no-untyped-call]

    with dtr_alloc.rematerialize("64MiB"):
        first = rank
        threads = [threading.Thread(target=reduce, args=(which,)) for which in range(2)]
        threads[first].start()
        begun[first].wait()
        threading.Event().wait(0.5)  # It waits by now.
        threads[1 - first].start()
        for thread in threads:
            thread.join()
    sys.stdout.write(json.dumps({"rank": rank, "sums": sums}) + "\n")
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
