#!/usr/bin/env bash
# Guess: a method of MindSpore whose name ends in "_", such as Tensor.mul_, writes its tensor, as the
# methods of PyTorch that it is named after do.
# Truth: on the CPU add_ and mul_ return another tensor with the result. The one that they should
# write stays as it was, and nothing warns. copy_ writes.
# Seen: mindspore 2.10.0, on the CPU. So perf/peers/blocks/in_mindspore.py writes by copy_.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q mindspore==2.10.0 'numpy<2' setuptools==80.9.0
"$folder/venv/bin/python" - >"$folder/seen" 2>"$folder/warnings" <<'PROGRAM'
import numpy
from mindspore import Tensor

for name in ("add_", "mul_", "copy_"):
    x = Tensor(numpy.ones(2, numpy.float32))
    returned = getattr(x, name)(Tensor(numpy.full(2, 3, numpy.float32)))
    print(f"{name}: wrote {x.asnumpy().tolist()}, returned {returned.asnumpy().tolist()}")
PROGRAM
diff - "$folder/seen" <<'SEEN'
add_: wrote [1.0, 1.0], returned [4.0, 4.0]
mul_: wrote [1.0, 1.0], returned [3.0, 3.0]
copy_: wrote [3.0, 3.0], returned [3.0, 3.0]
SEEN
