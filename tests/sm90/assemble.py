"""Compiles the engine's kernel as kernels/ahead.py does, assembles it for sm_90, and tells what
came out, as one JSON object. To be run in a process of its own, with TRITON_INTERPRET=0."""

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path

os.environ["TRITON_DISABLE_LINE_INFO"] = "1"

import triton

from dtr_alloc.kernels import ahead

TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"


def assembled(folder: str, version: str) -> dict[str, int]:
    """Registers, stack bytes, spills and wide loads of one version of the kernel."""
    cubin = f"{folder}/{version}.cubin"
    kernel = f"least_of_tiles_{version}"

    def tool(name: str, *arguments: str) -> str:
        command = [str(TOOLS / name), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    tool("ptxas", "-arch=sm_90", "-e", kernel, str(ahead.FILE), "-o", cubin)
    usage = tool("cuobjdump", "--dump-resource-usage", cubin)
    sass = tool("cuobjdump", "-sass", cubin)
    found = {name.lower(): int(n) for name, n in re.findall(r"(REG|STACK):(\d+)", usage)}
    return found | {
        "spills": len(re.findall(r"\b(?:LDL|STL)\b", sass)),
        "loads_of_128": len(re.findall(r"\bLDG\.E[.\w]*\.128", sass)),
    }


with tempfile.TemporaryDirectory() as folder:
    print(
        json.dumps(
            {
                "image": ahead.build(),
                "sm_90": {name: assembled(folder, name) for name in ("plain", "general")},
            }
        )
    )
