"""What a result must say of itself: which code ran, on which machine, how fast that was clocked.

Torch is asked in another process, because the one that starts the parts must not hold the GPU. The
clocks come from NVML, or from nvidia-smi; where neither is there the result says so. A tree that
came without its history has no commit to tell: then the caller may name it.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ASK = """
import json, torch
found = {"torch": torch.__version__, "cuda": torch.version.cuda}
try:
    import triton
    found["triton"] = triton.__version__
except ModuleNotFoundError:
    found["triton"] = None
if torch.cuda.is_available():
    device = torch.cuda.get_device_properties(0)
    found |= {"gpu": device.name, "gpu_bytes": device.total_memory,
              "multiprocessors": device.multi_processor_count,
              "cudnn": torch.backends.cudnn.version()}
print(json.dumps(found))
"""
QUERY = {
    "driver": "driver_version",
    "sm_mhz": "clocks.sm",
    "memory_mhz": "clocks.mem",
    "sm_mhz_most": "clocks.max.sm",
    "watts": "power.draw",
    "celsius": "temperature.gpu",
}


def commit(named: str | None) -> dict[str, Any]:
    """The commit, and whether files differ from it. A name given goes before what git says, which
    may have come along without what was committed last."""
    if named:
        return {"commit": named, "dirty": None}
    try:
        git = ["git", "-C", str(ROOT)]
        hash_ = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True, stderr=-3).strip()
        changed = subprocess.check_output([*git, "status", "--porcelain"], text=True, stderr=-3)
        return {"commit": hash_, "dirty": bool(changed.strip())}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": "unknown: no git here", "dirty": None}


def torch_facts(env: dict[str, str]) -> dict[str, Any]:
    """Versions, and the GPU's name where torch sees one."""
    done = subprocess.run(
        [sys.executable, "-c", ASK], capture_output=True, text=True, env=env, check=False
    )
    if done.returncode != 0:
        return {"torch": f"failed: {done.stderr.strip()[-500:]}"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def gpu_now() -> dict[str, Any]:
    """Driver, clocks, power and temperature at this moment, and who said so."""
    try:
        return _by_nvml()
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
    try:
        return _by_smi()
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        return {"absent": f"NVML: {why}; nvidia-smi: {type(error).__name__}: {error}"}


def _by_nvml() -> dict[str, Any]:
    import pynvml

    pynvml.nvmlInit()
    try:
        gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        driver = pynvml.nvmlSystemGetDriverVersion()
        return {
            "by": "NVML",
            "driver": driver.decode() if isinstance(driver, bytes) else driver,
            "sm_mhz": pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
            "memory_mhz": pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_MEM),
            "sm_mhz_most": pynvml.nvmlDeviceGetMaxClockInfo(gpu, pynvml.NVML_CLOCK_SM),
            "watts": pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
            "celsius": pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
            "used_bytes": int(pynvml.nvmlDeviceGetMemoryInfo(gpu).used),
        }
    finally:
        pynvml.nvmlShutdown()


def _by_smi() -> dict[str, Any]:
    query = [f"--query-gpu={','.join(QUERY.values())}", "--format=csv,noheader,nounits"]
    text = subprocess.check_output(["nvidia-smi", *query], text=True, timeout=10)
    values = [value.strip() for value in text.splitlines()[0].split(",")]
    return {"by": "nvidia-smi"} | dict(zip(QUERY, values, strict=True))


def of_call(device: str, named: str | None, env: dict[str, str]) -> dict[str, Any]:
    """All that does not change within a call."""
    return {
        "command": shlex.join(["python", *sys.argv]),
        **commit(named),
        "device": device,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        **torch_facts(env),
        "gpu_at_the_start": gpu_now() if device == "cuda" else {"absent": "a rehearsal"},
    }
