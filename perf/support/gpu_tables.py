"""The tables of what a GPU measured, perf/results/gpu/gpu.json: one function for each table.

"vs. PyTorch" is the time of a step over PyTorch's in the same part of the same call, with the
memory that PyTorch has there; where batches differ, the time a sample.
"""

import re
from collections.abc import Callable
from statistics import mean
from typing import Any

from markdown_tables import Table, percent
from result_files import result

SOURCE = ("perf/results/gpu/gpu.json",)
GIB = 1 << 30
MODELS = {
    "resnet50": "ResNet-50, {} images",
    "bert-large": "BERT-large, {} x 512 tokens",
    "gpt1b": "GPT of 1.0 B, {} x 512 tokens",
}


def on_a_gpu(part: str) -> Any:
    return result("gpu/gpu")["parts"][part]["results"]


def machine() -> str:
    """The GPU, the driver and torch; all calls had the same."""
    calls = result("gpu/gpu")["calls"].values()
    (gpu,) = {call["gpu"] for call in calls}
    (torch,) = {call["torch"] for call in calls}
    (driver,) = {call["gpu_at_the_start"]["driver"] for call in calls}
    return f", {gpu}, driver {driver}, torch {torch}"


def rate(run: Any) -> str:
    return f"{run['per_second']:,.0f} {run['unit']}/s"


def h200_batches() -> Table:
    rows = []
    for model, name in MODELS.items():
        stock = on_a_gpu("anchors")[f"{model} stock"]["runs"]
        ours = on_a_gpu("anchors")[f"{model} dtr_alloc"]["runs"]
        assert "out of memory" in stock["2x"]
        first = stock["1x"]
        cells = [name.format(first["batch"]), f"{first['held_peak_bytes'] / GIB:.1f} GiB"]
        cells.append(rate(first))
        for times in ("1x", "2x", "3x"):
            speed = ours[times]["per_second"]
            cells.append(f"{speed:,.0f} ({100 * speed / first['per_second']:.0f} %)")
        rows.append(cells)
    head = ("model, batch", "memory", "PyTorch", "dtr_alloc", "twice the batch", "three times")
    return Table(head, rows, SOURCE, machine())


def h200_ways() -> Table:
    gpt, swap, guest = (
        {name: found.get("runs", {}).get("1x") for name, found in on_a_gpu(part).items()}
        for part in ("gpt", "swap", "guest")
    )
    resnet = on_a_gpu("anchors")["resnet50 checkpoint"]["runs"]
    resnet_stock = on_a_gpu("anchors")["resnet50 stock"]["runs"]["1x"]
    rows = []

    def add(model: str, way: str, run: Any, base: float) -> None:
        held = f"{run['held_peak_bytes'] / GIB:.1f} GiB"
        rows.append((model, way, rate(run), f"{base / run['per_second']:.2f}", held))

    stock = gpt["gpt1b speed stock"]
    add("GPT", "PyTorch", stock, stock["per_second"])
    add("GPT", "pool, nothing evicted", gpt["gpt1b speed budget 1.3"], stock["per_second"])
    for share in (0.7, 0.5, 0.3):
        run = gpt[f"gpt1b speed budget {share}"]
        add("GPT", f"budget of {percent(share)}", run, stock["per_second"])
    for share in (0.3, 0.2):
        for name, way in ((f"dtr_alloc {share}", ", no swap"), (f"swap {share}", ", swap")):
            base = swap["gpt1b speed stock"]["per_second"]
            add("GPT", f"budget of {percent(share)}{way}", swap[f"gpt1b {name}"], base)
    base = mean(guest[f"fixed stock {turn}"]["per_second"] for turn in (1, 2))
    add("GPT", "torch's allocator, memory plenty", guest["fixed guest 1"], base)
    add("GPT", "torch's allocator, 2/3 of the memory", guest["fixed at 1.5x"], base)
    add("ResNet-50", "PyTorch", resnet_stock, resnet_stock["per_second"])
    for times, batch in (("1x", ""), ("2x", ", twice the batch")):
        add("ResNet-50", f"checkpoints{batch}", resnet[times], resnet_stock["per_second"])
    head = ("model", "way", "speed", "vs. PyTorch", "peak memory")
    return Table(head, rows, SOURCE, machine())


def h200_exact() -> Table:
    rows = []
    for part, models in (("exact", ("gpt1b",)), ("demo", ("resnet", "gpt", "lstm", "unet"))):
        found = on_a_gpu(part)
        for model in (*models, *(("treelstm",) if part == "demo" else ())):
            name = "GPT of 1.0 B" if model == "gpt1b" else f"{model} (demo)"
            cells = [name]
            for share in (0.7, 0.5, 0.3):
                line = found[f"{model} dtr_alloc {share}"]["line"]
                same = re.match(r"bit for bit, (\d+)", line)
                differs = re.match(r"DIFFERS in (\d+ of \d+)", line)
                assert same or differs
                cells.append(f"all {same[1]}" if same else f"differs in {differs and differs[1]}")
            rows.append(cells)
    head = ("equal to PyTorch's: tensors and losses", "70 %", "50 %", "30 %")
    return Table(head, rows, SOURCE, machine())


def h200_pages() -> Table:
    us = on_a_gpu("probe")["driver calls"]["microseconds"]
    run, whole = us["idle, 256 pages"], us["one allocation of 256 pages"]
    move = on_a_gpu("remap")["remap"]["idle"]["microseconds_a_page"]
    rows = [
        ("give access to a page", f"{run['give access']:.1f}", f"{whole['give access']:.2f}"),
        ("unmap a page", f"{run['unmap, one call']:.1f}", f"{whole['unmap']:.2f}"),
        ("the pool moves a page", f"{move:.1f}", ""),
    ]
    head = ("us a page of 2 MiB, idle device", "runs of 256 pages", "one allocation of 256 pages")
    return Table(head, rows, SOURCE, machine())


GPU_TABLES: dict[str, Callable[[], Table]] = {
    one.__name__: one for one in (h200_batches, h200_ways, h200_exact, h200_pages)
}
