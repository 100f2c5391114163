#!/usr/bin/env bash
# Guess: torch.set_flush_denormal(True) makes every later operator flush denormal numbers to zero,
# and False ends it.
# Truth: it sets a bit of the calling thread's processor state. OpenMP's workers have copied that of
# the thread that made them, at its first parallel operator, and keep the copy. So after a first
# operator the switch holds for the caller's share of each result only, and one that was on from the
# start stays on in the workers' shares: half of one result is flushed, half is not.
# Seen: torch 2.13.0 and 2.14.1 on x86-64 with torch's libgomp, two threads.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - >"$folder/seen" <<'PROGRAM'
import threading

import torch

torch.set_num_threads(2)
tiny = torch.full((1_000_000,), 1e-20)


def flushed():
    return int((tiny * 1e-20 == 0).sum())


def switched_later():
    before = flushed()
    torch.set_flush_denormal(True)
    on = flushed()
    torch.set_flush_denormal(False)
    print(f"an operator, flushed {before}; switched on {on}; off again {flushed()}")


def switched_first():
    torch.set_flush_denormal(True)
    on = flushed()
    torch.set_flush_denormal(False)
    print(f"switched on before the first, flushed {on}; off again {flushed()}")


for each in (switched_later, switched_first):  # Each thread has workers of its own.
    thread = threading.Thread(target=each)
    thread.start()
    thread.join()
PROGRAM
diff - "$folder/seen" <<'SEEN'
an operator, flushed 0; switched on 500000; off again 0
switched on before the first, flushed 1000000; off again 500000
SEEN
