"""The demo, for the README: its table, its figures with what they were measured on, its picture.

python perf/cost/demo.py [--quick] [--rounds 6] [--out perf/results] [--picture docs/demo.png]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1] / "support"))

from measurement import origin, provenance
from measurement import write_json as write_whole
from rich.console import Console

from dtr_alloc.demo import MODELS, Plan, draw, table, write_json
from dtr_alloc.demo.progress import compare_all


def main() -> int:
    """Runs the demo; returns 1 where a promise of its was not kept."""
    parser = argparse.ArgumentParser(description="The demo's table, figures and picture.")
    parser.add_argument("--quick", action="store_true", help="one model, one budget, one round")
    parser.add_argument("--rounds", type=int, default=6, help="train each way so many times")
    parser.add_argument("--out", type=Path, help="write demo.json and demo.txt here")
    parser.add_argument("--picture", type=Path, help="draw here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    plan = Plan((0.5,), steps=2, rounds=1) if options.quick else Plan(rounds=options.rounds)
    models = {name: MODELS[name] for name in (["unet"] if options.quick else MODELS)}

    console = Console(width=100, record=True)
    comparisons = compare_all(models, plan, Console(stderr=True))
    console.print(origin(), soft_wrap=True)
    console.print(table(comparisons))
    failures = [failure for comparison in comparisons for failure in comparison.failures()]
    for failure in failures:
        console.print(failure)
    if options.out:
        with tempfile.TemporaryDirectory() as folder:
            write_json(Path(folder, "demo.json"), comparisons, plan)
            document = json.loads(Path(folder, "demo.json").read_text())
        write_whole(options.out / "demo.json", document | provenance())
        (options.out / "demo.txt").write_text(console.export_text(styles=False))
    if options.picture:
        draw(options.picture, comparisons)
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
