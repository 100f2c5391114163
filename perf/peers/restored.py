"""What does each tool restore before it runs a block again: random numbers, statistics, buffers?

Each tool gets an environment of its own, with packages of fixed versions, and there a program of
blocks/ trains a small network of residual blocks (linear layers, batch norm, GELU) for two steps on
two threads, without the tool and with it. Losses, gradients, buffers and generators are compared to
the bit. Each question adds one thing to the block (blocks/answers.py). The answers:

- restored: all is equal. rounded: equal but for the last digits.
- wrong: not equal, and no error. error: the tool raised one; the plain program does not, but for a
  write that comes after the block.
- once, twice: how often batch statistics took each batch.
- "-": not asked, or the library has no such thing, or shows the same without the tool.

Environments take 11 GB, and up to an hour; with `--venvs` those in the folder are used again. A
tool whose packages cannot be had is left out, and said so. Needs Python 3.11, for which all have
builds.

    python perf/peers/restored.py [--venvs FOLDER] [--only TOOL ...] [--out perf/results]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any, NamedTuple, TextIO

sys.path.append(str(Path(__file__).parents[1] / "support"))
sys.path.append(str(Path(__file__).parent))

from blocks.answers import QUESTIONS
from measurement import origin, provenance, write_json
from rich.console import Console
from rich.table import Table

BLOCKS = Path(__file__).parent / "blocks"
TORCH = ("torch==2.13.0", "numpy==2.4.6", "setuptools==80.9.0")
ENVIRONMENTS = {
    "torch": TORCH,
    "torch_remat": (*TORCH, "torch-remat==0.2.2"),
    "fairscale": (*TORCH, "fairscale==0.4.13"),
    "deepspeed": (*TORCH, "deepspeed==0.19.8"),
    "torchgpipe": (*TORCH, "torchgpipe==0.0.7"),
    "transformers": (*TORCH, "transformers==5.23.0", "peft==0.21.2"),
    "keras": (*TORCH, "keras==3.15.1"),
    "jax": ("numpy==2.4.6", "jax==0.10.2"),
    "paddle": ("numpy==2.4.6", "paddlepaddle==3.3.1"),
    "mindspore": ("numpy==1.26.4", "mindspore==2.10.0"),
}


class Tool(NamedTuple):
    """A row of the table. dtr_alloc has no environment but this one."""

    name: str
    environment: str
    program: str


TOOLS = [
    Tool("dtr_alloc", "", "in_torch.py dtr_alloc"),
    Tool("`torch.utils.checkpoint`, `use_reentrant=False`", "torch", "in_torch.py checkpoint"),
    Tool("the same, `use_reentrant=True`", "torch", "in_torch.py reentrant"),
    Tool("torch's selective checkpoints (SAC)", "torch", "in_torch.py selective"),
    Tool("SAC, the first of two draws saved", "torch", "in_torch.py selective_noise"),
    Tool("`checkpoint_wrapper` of torch.distributed", "torch", "in_torch.py wrapper"),
    Tool("`save_on_cpu()`, which runs nothing again", "torch", "in_torch.py save_on_cpu"),
    Tool("torch_remat 0.2.2", "torch_remat", "in_torch.py torch_remat"),
    Tool("the same, with a hook", "torch_remat", "in_torch.py torch_remat_hook"),
    Tool("fairscale 0.4.13", "fairscale", "in_torch.py fairscale"),
    Tool("DeepSpeed 0.19.8, `checkpoint`", "deepspeed", "in_torch.py deepspeed"),
    Tool("`non_reentrant_checkpoint`", "deepspeed", "in_torch.py deepspeed_non_reentrant"),
    Tool("torchgpipe 0.0.7", "torchgpipe", "in_torch.py torchgpipe"),
    Tool("transformers 5.23.0 with PEFT 0.21.2", "transformers", "in_torch.py transformers"),
    Tool("Keras 3.15.1 on torch, `RematScope`", "keras", "in_keras.py"),
    Tool("JAX 0.10.2, `jax.checkpoint` in a `scan`", "jax", "in_jax.py"),
    Tool("Paddle 3.3.1, `recompute`", "paddle", "in_paddle.py recompute"),
    Tool("the same, `use_reentrant=False`", "paddle", "in_paddle.py hooks"),
    Tool("MindSpore 2.10.0, `cell.recompute()`", "mindspore", "in_mindspore.py"),
]


def environment(name: str, folder: Path) -> Path:
    """The Python of an environment, which is made if it is not there."""
    made = folder / name
    python, packages = made / "bin/python", ENVIRONMENTS[name]
    told = made / "packages"
    if not told.exists() or told.read_text() != " ".join(packages):
        print(f"installing {' '.join(packages)}", flush=True)
        venv.create(made, with_pip=True, clear=True)
        install = [str(python), "-m", "pip", "install", "-q", "--no-build-isolation"]
        for wanted in (packages[:-1], packages):  # What is built may need torch.
            subprocess.run([*install, *wanted], check=True)
        told.write_text(" ".join(packages))
    return python


def answers(tool: Tool, python: Path) -> dict[str, Any]:
    """What the tool's program prints."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    program, *arguments = tool.program.split()
    done = subprocess.run(
        [str(python), str(BLOCKS / program), *arguments],
        env=(mine if tool.environment else {**os.environ}) | {"OMP_NUM_THREADS": "2"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def versions(python: Path) -> str:
    """All packages of an environment."""
    freeze = [str(python), "-m", "pip", "freeze", "--all"]
    return " ".join(
        subprocess.run(freeze, capture_output=True, check=True, text=True).stdout.split()
    )


def show(rows: list[dict[str, Any]], file: TextIO | None = None) -> None:
    """Prints the answers, and below them what errors said."""
    table = Table()
    for column in ("tool", *QUESTIONS):
        table.add_column(column)
    for row in rows:
        found = row["answers"]
        table.add_row(row["tool"], *(found.get(one, {}).get("answer", "-") for one in QUESTIONS))
    console = Console(file=file, width=160, highlight=False)
    console.print(table)
    for name, meaning in QUESTIONS.items():
        console.print(f"{name}: {meaning}", markup=False)
    for row in rows:
        said: dict[str, list[str]] = {}
        for question, one in row["answers"].items():
            for text in (one.get("error"), one.get("why"), *one.get("warnings", ())):
                said.setdefault(text, []).append(question)
        for text, questions in said.items():
            if text:
                console.print(f"{row['tool']}: {', '.join(questions)}: {text}", markup=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="torch's own tools, in this Python")
    parser.add_argument("--venvs", type=Path, help="folder of the environments, kept")
    parser.add_argument("--out", type=Path, help="folder for restored.json and restored.txt")
    options = parser.parse_args()
    first_line, head = origin(), provenance()  # Files may change meanwhile.
    rows: list[dict[str, Any]] = []
    packages: dict[str, str] = {}
    left_out: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for tool in TOOLS:
            if options.quick and tool.environment not in ("", "torch"):
                continue
            try:
                python = Path(sys.executable)
                if tool.environment and not options.quick:
                    python = environment(tool.environment, options.venvs or Path(folder))
                    packages[tool.environment] = versions(python)
                rows.append({"tool": tool.name, "answers": answers(tool, python)})
            except subprocess.CalledProcessError as error:
                left_out.append(tool.name)
                print(f"left out: {tool.name}: {error}", flush=True)
    show(rows)
    if options.out is not None:
        about = {"date": datetime.date.today().isoformat(), "environments": packages}
        document = head | about | {"left_out": left_out, "tools": rows}
        write_json(options.out / "restored.json", document)
        with (options.out / "restored.txt").open("w") as file:
            print(
                f"{first_line}\n# {about['date']}; left out: {', '.join(left_out) or 'none'}",
                file=file,
            )
            show(rows, file)
    return 1 if left_out else 0


if __name__ == "__main__":
    sys.exit(main())
