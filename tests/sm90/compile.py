"""Compiles the kernels for sm_90 without a GPU, by way of their launchers, and tells what came out.

A driver that only says "sm_90" stands in for the device, so that Triton specialises on the
launch's own arguments, as it will there; a launch ends with the compilation. Prints one JSON
object: for each case the registers, spills and widths of loads of the kernel. To be run in a
process of its own, with TRITON_INTERPRET=0.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget

from dtr_alloc.kernels import _kernels, launch
from dtr_alloc.kernels.columns import Columns, Settings
from dtr_alloc.runtime.heuristic import Heuristic


class Sm90:
    """What Triton asks of a driver before it launches."""

    class utils:  # noqa: N801
        @staticmethod
        def get_device_properties(device: int) -> dict[str, int]:
            return {"max_shared_mem": 232448, "multiprocessor_count": 132, "warpSize": 32}

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        pass

    def is_active(self) -> bool:
        return True


class Compiled:
    """Takes the place of a kernel: compiles what would be launched."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.last: Any = None

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def compile_only(*arguments: Any, **options: Any) -> None:
            self.last = self.kernel.warmup(*arguments, grid=grid, **options)
            for argument in arguments:  # Results that the launcher looks at.
                if isinstance(argument, torch.Tensor) and argument.dtype == torch.int32:
                    argument.zero_()

        return compile_only


def resources(compiled: Any) -> dict[str, int]:
    """Registers, stack bytes, spills, and loads from memory by their width in bits."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()

        def run(*options: str) -> str:
            command = [str(tool), *options, str(file.name)]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout

        usage, sass = run("--dump-resource-usage"), run("-sass")
    found = {name.lower(): int(n) for name, n in re.findall(r"(REG|STACK|SHARED):(\d+)", usage)}
    loads = re.findall(r"\bLDG\.E([.\w]*)", sass)
    return found | {
        "spills": len(re.findall(r"\b(?:LDL|STL)\b", sass)),
        "loads": len(loads),
        "loads_of_128": sum(".128" in load for load in loads),
        "loads_of_64_and_less": sum(".128" not in load for load in loads),
    }


def columns(n: int) -> Columns:
    wide = torch.zeros(n, dtype=torch.int64)
    return Columns(
        wide,
        wide.clone(),
        wide.clone(),
        wide.clone(),
        wide.clone(),
        wide.clone(),
        wide.int(),
        wide.to(torch.uint8),
        wide.clone(),
    )


def main() -> None:
    triton.runtime.driver.set_active(Sm90())
    score, take, scan, search = (
        Compiled(kernel)
        for kernel in (
            _kernels.score_rows,
            _kernels.take_victims,
            _kernels.prefix_sums,
            _kernels.window_of_ends,
        )
    )
    _kernels.score_rows, _kernels.take_victims = score, take
    _kernels.prefix_sums, _kernels.window_of_ends = scan, search
    found: dict[str, dict[str, int]] = {}
    plain = Settings.of([Heuristic()])
    several = Settings.of([Heuristic()] * 32)
    extras = Settings.of([Heuristic(fragmentation=1, recompute_penalty=1.1)])
    tuned = Settings.of([Heuristic(size_exp=0.7, fragmentation=0.2, recompute_penalty=1.1)])
    clock = (1 << 41) + 16
    for name, settings, dtype, n in (
        ("plain", plain, torch.float64, 100_000),
        ("plain", plain, torch.float64, 100_001),
        ("plain of 32 settings", several, torch.float64, 100_000),
        ("plain in float32", plain, torch.float32, 100_000),
        ("extras", extras, torch.float64, 100_000),
        ("tuned", tuned, torch.float64, 100_000),
    ):
        launch.score(columns(n), settings, clock, dtype)
        found[f"{name}, {n} rows"] = resources(score.last)
    launch.victims(columns(100_000), plain, clock, 1 << 30)
    found["plain with minima"] = resources(score.last)
    found["take_victims"] = resources(take.last)
    wide = torch.zeros(4096, dtype=torch.int64)
    launch.window(wide, wide, wide, wide, wide, clock, 1 << 20, 1)
    found["prefix_sums"] = resources(scan.last)
    found["window_of_ends"] = resources(search.last)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
