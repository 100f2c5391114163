"""The sentences of the documents that quote what a GPU measured (perf/results/gpu)."""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from tests.fences import ROOT

GIB = 1 << 30


@cache
def results() -> Any:
    return json.loads((ROOT / "perf/results/gpu/gpu.json").read_text())["parts"]


def on_a_gpu(part: str) -> Any:
    return results()[part]["results"]


def batches() -> Iterator[str]:
    """Twice and three times the batch in stock's memory, by way."""
    names = {
        "resnet50": "ResNet-50, {} images",
        "bert-large": "BERT-large, {} x 512 tokens",
        "gpt1b": "GPT of 1.0 B, {} x 512 tokens",
    }
    kept = []
    for model, name in names.items():
        stock = on_a_gpu("anchors")[f"{model} stock"]["runs"]
        ours = on_a_gpu("anchors")[f"{model} dtr_alloc"]["runs"]
        assert "out of memory" in stock["2x"]
        first = stock["1x"]
        cells = [name.format(first["batch"]), f"{first['held_peak_bytes'] / GIB:.1f} GiB"]
        cells.append(f"{first['per_second']:,.0f} {first['unit']}/s")
        cells += [f"{ours[times]['per_second']:,.0f}" for times in ("1x", "2x", "3x")]
        kept += [ours[times]["per_second"] / first["per_second"] for times in ("2x", "3x")]
        yield f"| {' | '.join(cells)} |"
    yield f"{100 * min(kept):.0f} to {100 * max(kept):.0f} % of the speed per sample"


def budgets() -> Iterator[str]:
    runs = {name: found["runs"]["1x"] for name, found in on_a_gpu("gpt").items()}
    stock = runs["gpt1b speed stock"]["per_second"]
    times = [stock / runs[f"gpt1b speed budget {share}"]["per_second"] for share in (0.7, 0.5, 0.3)]
    assert all(
        found["differing"] == []
        for name, found in on_a_gpu("exact").items()
        if "dtr_alloc" in name or "swap" in name
    )
    yield (
        f"takes {times[0]:.2f}, {times[1]:.2f} and {times[2]:.2f} times stock's time a step at "
        "70, 50 and 30 %"
    )


def details() -> Iterator[str]:
    resnet = on_a_gpu("anchors")["resnet50 checkpoint"]["runs"]
    rates = [resnet[times]["per_second"] for times in ("1x", "2x")]
    assert "out of memory" in resnet["3x"]
    yield f"{rates[0]:,.0f} images a second at the single batch, {rates[1]:,.0f} at twice"
    gpt = {name: found.get("runs", {}).get("1x", {}) for name, found in on_a_gpu("swap").items()}
    for share in (0.3, 0.2):
        alone, both = (gpt[f"gpt1b {way} {share}"]["per_second"] for way in ("dtr_alloc", "swap"))
        yield f"{both:,.0f} tokens a second with a swap and {alone:,.0f} without"
    guest = on_a_gpu("guest")
    yield f"{guest['fixed overhead']['ratio']:.3f} times stock's time"
    steps = guest["fixed at 1.5x"]["runs"]["1x"]["step_seconds"]
    yield f"a step took {1e3 * min(steps):.0f} to {1e3 * max(steps):.0f} ms"
    calls = on_a_gpu("probe")["driver calls"]["microseconds"]
    yield (
        f"{calls['idle, 256 pages']['give access']:.0f} us to give access to a page, "
        f"{calls['idle, 256 pages']['unmap, one call']:.0f} us to unmap one"
    )
    move = on_a_gpu("remap")["remap"]
    yield f"{move['idle']['microseconds_a_page']:.0f} us to move one"


def page() -> Iterator[str]:
    move = on_a_gpu("remap")["remap"]["idle"]["microseconds_a_page"]
    yield f"On an H200 a page of 2 MiB takes {move:.0f} us to move"
