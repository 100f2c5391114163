#!/usr/bin/env bash
# Guess: what a library below torch needs for itself, it takes from malloc; a convolution asks
# torch's allocator for its result.
# Truth: oneDNN's inputs, weights and result in its own layout come from torch's CPU allocator. A
# convolution whose result has 12.25 MiB asks for 36.9, of which 24.6 live at once. Without oneDNN
# it asks for its result alone.
# Seen: torch 2.13.0 on x86-64 with AVX-512, one thread, in torch's profiler.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - >"$folder/seen" <<'PROGRAM'
import json
import os
import tempfile

import torch

torch.set_num_threads(1)
convolution = torch.nn.Conv2d(64, 64, 3, padding=1)
x = torch.randn(16, 64, 56, 56)


def asked():
    """What one call asks torch's allocator for, in MiB: the requests and the most at once."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.no_grad(), torch.profiler.profile(activities=activities, profile_memory=True) as run:
        convolution(x)
    path = os.path.join(tempfile.mkdtemp(), "trace.json")
    run.export_chrome_trace(path)
    with open(path) as trace:
        events = [e for e in json.load(trace)["traceEvents"] if e.get("name") == "[memory]"]
    live, sizes = [0], []
    for event in events:
        size = event["args"]["Bytes"] / 2**20
        live.append(live[-1] + size)
        sizes += [f"{size:.2f}"] if size > 0.05 else []
    return f"{' + '.join(sizes)} MiB, {max(live):.2f} at once"


print("with oneDNN:", asked())
with torch.backends.mkldnn.flags(enabled=False):
    print("without:", asked())
PROGRAM
diff - "$folder/seen" <<'SEEN'
with oneDNN: 12.25 + 0.14 + 12.25 + 12.25 MiB, 24.64 at once
without: 12.25 MiB, 12.25 at once
SEEN
