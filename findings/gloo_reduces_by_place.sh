#!/usr/bin/env bash
# Guess: an all_reduce treats equal elements alike: a NaN of one rank is in the maximum, as
# torch.maximum has it, and a sum in bfloat16 is the same in each place of the tensor.
# Truth: gloo cuts the tensor into a part for each rank, and adds the ranks up in another order in
# each part. Its maximum is std::max, which keeps the NaN only where that comes first. So of four
# equal elements two become NaN and two do not, a NaN on the last rank is lost, and 256 + 1 + 1 in
# bfloat16 is 258 in one half of the tensor and 256 in the other. All ranks agree, and nothing
# warns.
# Seen: torch 2.13.0 and 2.14.1 on the CPU, three processes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy==2.4.6
# Each process imports the program, which must be a file.
cat >"$folder/program.py" <<'PROGRAM'
import sys

import torch
import torch.distributed as dist

RANKS = 3


def run(rank, path):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=RANKS)
    for place in range(RANKS):
        largest = torch.full((4,), float("nan") if rank == place else 1.0)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        if rank == 0:
            print(f"maximum with NaN on rank {place}: {largest.tolist()}")
    total = torch.full((4,), 256.0 if rank == 0 else 1.0, dtype=torch.bfloat16)
    dist.all_reduce(total)
    if rank == 0:
        print(f"256 + 1 + 1: {total.tolist()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(run, (sys.argv[1],), RANKS)
PROGRAM
GLOO_SOCKET_IFNAME=lo "$folder/venv/bin/python" "$folder/program.py" "$folder/store" >"$folder/seen"
diff - "$folder/seen" <<'SEEN'
maximum with NaN on rank 0: [nan, nan, 1.0, 1.0]
maximum with NaN on rank 1: [1.0, 1.0, nan, nan]
maximum with NaN on rank 2: [1.0, 1.0, 1.0, 1.0]
256 + 1 + 1: [258.0, 258.0, 256.0, 256.0]
SEEN
