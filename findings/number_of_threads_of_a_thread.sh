#!/usr/bin/env bash
# Guess: torch.set_num_threads sets the number of threads of the process; or, if it is a thread's
# own, then the caller's from that moment on.
# Truth: a thread takes the number that was last set, by whichever thread, when it first computes in
# parallel or asks get_num_threads, and keeps it from then on. Until then a number that it set
# itself is lost to one that another thread sets later.
# Seen: torch 2.13.0 and 2.14.1; aten/src/ATen/ParallelOpenMP.cpp.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - >"$folder/seen" <<'PROGRAM'
import threading

import torch


def after_another_sets_1(prepare):
    """What a thread that `prepare` ran in reads, after the main thread has set 1."""
    ready, go, read = threading.Event(), threading.Event(), []

    def body():
        prepare()
        ready.set()
        go.wait()
        read.append(torch.get_num_threads())

    thread = threading.Thread(target=body)
    thread.start()
    ready.wait()
    torch.set_num_threads(1)
    go.set()
    thread.join()
    return read[0]


def set_and_asked():
    torch.set_num_threads(3)
    torch.get_num_threads()


torch.get_num_threads()
ways = {
    "did nothing": lambda: None,
    "had asked": torch.get_num_threads,
    "had set 3": lambda: torch.set_num_threads(3),
    "had set 3 and asked": set_and_asked,
}
for name, prepare in ways.items():
    torch.set_num_threads(2)
    print(f"2, then another thread sets 1: one that {name} reads {after_another_sets_1(prepare)}")
torch.set_num_threads(2)
thread = threading.Thread(target=lambda: torch.set_num_threads(3))
thread.start()
thread.join()
print("another sets 3: the main thread, which had asked, reads", torch.get_num_threads())
PROGRAM
diff - "$folder/seen" <<'SEEN'
2, then another thread sets 1: one that did nothing reads 1
2, then another thread sets 1: one that had asked reads 2
2, then another thread sets 1: one that had set 3 reads 1
2, then another thread sets 1: one that had set 3 and asked reads 3
another sets 3: the main thread, which had asked, reads 2
SEEN
