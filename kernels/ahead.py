"""The kernel that the engine launches, compiled ahead to PTX.

An eviction happens inside an allocation and must not wait for Python's lock, so the engine loads
its kernel into the driver itself (`policy/device_scorer.h`). What it loads lies beside this
file: text that every GPU from sm_80 on can run, made by Triton once. So the runtime needs no
Triton, and nothing is compiled when a session starts but by the driver, from PTX.

After a change of `_kernels.least_of_tiles`, under the Triton that the text names:

    TRITON_INTERPRET=0 python -m dtr_alloc.kernels.ahead
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("least_of_tiles.ptx")
TILE = 256
"""Rows of a program: a tile of the C++ scorer (`runtime/csrc/policy/scorer.h`)."""
WARPS = 4
SHARED_BYTES = 1024
"""What the engine grants a program; a reduction among four warps needs 32."""
ARCHITECTURE = 80
PTX_VERSION = 80
"""8.0, which drivers read since CUDA 12.0."""


def image() -> str:
    """The text for the driver."""
    return FILE.read_text()


def build() -> str:
    """Compiles both versions of the kernel, without powers and with, into one text."""
    import triton

    head = f"// By python -m dtr_alloc.kernels.ahead, with Triton {triton.__version__}.\n"
    texts = {name: _compile(name == "general") for name in ("plain", "general")}
    prologue: dict[str, None] = {}  # Its lines, each once.
    entries = []
    for name, text in texts.items():
        text = re.sub(r"[ \t]*//.*", "", text).replace("least_of_tiles", f"least_of_tiles_{name}")
        lines = [line for line in text.splitlines() if line.strip()]
        entry = next(at for at, line in enumerate(lines) if ".visible .entry" in line)
        prologue |= dict.fromkeys(lines[:entry])
        entries += lines[entry:]
    return head + "\n".join([*prologue, *entries]) + "\n"


def _compile(general: bool) -> str:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from dtr_alloc.kernels import _kernels

    kernel: Any = _kernels.least_of_tiles
    types = {"recomputes": "*i32", "evictable": "*u8", "lowest": "*fp64"}
    types |= {name: "i64" for name in ("n", "clock", "epsilon")}
    given = {"block": TILE, "general": general}
    names = kernel.arg_names
    settings = names[names.index("epsilon") + 1 : names.index("block")]
    types |= dict.fromkeys(settings, "fp64")
    signature = {name: types.get(name, "*i64") for name in names}
    # Columns begin at multiples of 64 bytes, and rows are counted up to one of 16.
    aligned = [name for name in names if signature[name].startswith("*") or name == "n"]
    source = ASTSource(
        fn=kernel,
        signature=signature | dict.fromkeys(given, "constexpr"),
        constexprs={(names.index(name),): value for name, value in given.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    options = {"num_warps": WARPS, "enable_fp_fusion": False, "ptx_version": PTX_VERSION}
    compiled: Any = triton.compile(
        source, target=GPUTarget("cuda", ARCHITECTURE, 32), options=options
    )
    meta = compiled.metadata
    if meta.shared > SHARED_BYTES or meta.global_scratch_size or meta.profile_scratch_size:
        raise RuntimeError(f"the engine does not grant a program what this one needs: {meta}")
    text: str = compiled.asm["ptx"]
    return text


if __name__ == "__main__":
    os.environ.setdefault("TRITON_DISABLE_LINE_INFO", "1")
    FILE.write_text(build())
