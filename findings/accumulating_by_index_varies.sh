#!/usr/bin/env bash
# Guess: on the CPU an operator gives the same bits whenever it runs again with the same number of
# threads; atomic additions are a thing of CUDA.
# Truth: index_put_ and put_ with accumulate=True add atomically, and differ from run to run as soon
# as two threads work. So does the backward of x[index]. What looks alike does not: index_add_,
# scatter_add_, bincount and the backward of index_select repeat themselves.
# Seen: torch 2.13.0 and 2.14.1 on x86-64, two threads, 4 to 35 contents in 50 runs; on a busy
# machine fewer, so four threads and 300 runs below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - >"$folder/seen" <<'PROGRAM'
import torch

torch.set_num_threads(4)
torch.manual_seed(0)
index, updates = torch.randint(0, 1000, (1_000_000,)), torch.randn(1_000_000)


def gradient(read):
    x = torch.zeros(1000, requires_grad=True)
    (read(x) * updates).sum().backward()
    return x.grad


ways = {
    "index_put_": lambda: torch.zeros(1000).index_put_((index,), updates, accumulate=True),
    "put_": lambda: torch.zeros(1000).put_(index, updates, accumulate=True),
    "x[index], backward": lambda: gradient(lambda x: x[index]),
    "index_select, backward": lambda: gradient(lambda x: x.index_select(0, index)),
    "index_add_": lambda: torch.zeros(1000).index_add_(0, index, updates),
    "scatter_add_": lambda: torch.zeros(1000).scatter_add_(0, index, updates),
    "bincount": lambda: torch.bincount(index, updates, 1000),
}
for name, make in ways.items():
    first = make()
    same = all(torch.equal(first, make()) for _ in range(300))
    print(f"{name}: {'repeats itself' if same else 'differs'}")
PROGRAM
diff - "$folder/seen" <<'SEEN'
index_put_: differs
put_: differs
x[index], backward: differs
index_select, backward: repeats itself
index_add_: repeats itself
scatter_add_: repeats itself
bincount: repeats itself
SEEN
