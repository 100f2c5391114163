"""The sentences of the documents that quote what a GPU measured (perf/results/gpu)."""

import json
import re
from collections.abc import Iterator
from functools import cache
from statistics import median
from typing import Any

from tests.support.fences import ROOT
from tests.support.result_files import MIB, span

GIB = 1 << 30
GPU = "perf/results/gpu/gpu.json"


@cache
def everything() -> Any:
    return json.loads((ROOT / GPU).read_text())


def results() -> Any:
    return everything()["parts"]


def replaced() -> Any:
    """Runs before the last of a part."""
    return everything()["replaced"]


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


def exactness() -> Iterator[str]:
    """What was compared, what differed, and by how much pages passed small budgets."""
    gpt, demo = on_a_gpu("exact"), on_a_gpu("demo")
    parameters = gpt["gpt1b swap 0.3"]["parameters"]
    yield f"GPT of {parameters / 1e9:.1f} billion parameters"
    compared = gpt["gpt1b eager"]["line"].split()[0]
    assert not any(found.get("differing") for found in gpt.values())
    yield f"eager's in {compared} tensors and losses without a limit, at 70, 50 and 30 %"
    budgets = {name: found for name, found in demo.items() if " dtr_alloc 0." in name}
    (differing,) = (name for name, found in budgets.items() if found["differing"])
    assert differing == "unet dtr_alloc 0.3"
    among = re.findall(r"DIFFERS in (\d+) of (\d+)", demo[differing]["line"])[0]
    yield f"but for the U-Net at 30 %, which differed in {' of '.join(among)}"
    refused = json.loads((ROOT / "perf/results/gpu/refused_workspace.json").read_text())["caught"]
    (workspace,) = refused.values()
    yield f"`convolution_backward` that went on without {workspace / MIB:.0f} MiB"
    assert all(of["allocated_peak_bytes"] <= of["limit_bytes"] for of in budgets.values())
    limits = [of["limit_bytes"] / MIB for of in budgets.values()]
    passed = [of["held_peak_bytes"] / of["limit_bytes"] - 1 for of in budgets.values()]
    yield (
        f"In the demo's budgets of {min(limits):.0f} to {max(limits):.0f} MiB they passed it by up "
        f"to {100 * max(passed):.0f} %"
    )


def tests() -> Iterator[str]:
    last = results()["tests"]["results"]["tests/gpu"]["counts"]
    full_card = on_a_gpu("full-card")["tests/gpu"]["counts"]
    told = (ROOT / "perf/results/gpu/tests.txt").read_text()
    collected = int(re.findall(r"\[(\d+) items\]", told)[0])
    assert full_card.keys() == {"PASSED"}
    yield (
        f"{last['PASSED'] + full_card['PASSED']} of the {collected + full_card['PASSED']} tests in "
        "tests/gpu passed in their last run"
    )


def speeds() -> Iterator[str]:
    """Beside checkpoints, with a swap, as a guest, and how much stock differs between calls."""
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
    stock = [guest[f"fixed stock {turn}"]["runs"]["1x"] for turn in (1, 2)]
    steps = guest["fixed at 1.5x"]["runs"]["1x"]["step_seconds"]
    usual = median(seconds for turn in stock for seconds in turn["step_seconds"])
    yield (
        f"a step took {1e3 * min(steps):.0f} to {1e3 * max(steps):.0f} ms, and stock's "
        f"{1e3 * usual:.0f}"
    )
    rates = [turn["per_second"] for turn in stock]
    rates.append(on_a_gpu("gpt")["gpt1b speed stock"]["runs"]["1x"]["per_second"])
    rates.append(on_a_gpu("anchors")["gpt1b stock"]["runs"]["1x"]["per_second"])
    rates.append(gpt["gpt1b speed stock"]["per_second"])
    yield f"stock's of the GPT varied by {100 * (max(rates) / min(rates) - 1):.1f} % from call to"


def bus() -> Iterator[str]:
    """What a swap copied, and what share of the copies' time operators waited."""
    found = [of for name, of in on_a_gpu("swap").items() if name.endswith(": bus")]
    yield (
        f"at {span([of['gigabytes_a_second'] for of in found], 0)} GB/s, and operators waited for "
        f"{span([100 * of['waited'] for of in found], 0)} % of the copies' time"
    )


def bus_of_short_runs() -> Iterator[str]:
    short = [of["counts"] for name, of in on_a_gpu("exact").items() if "swap" in name]
    waited = [100 * of["session.swap_waited_ns"] / of["session.swap_ns"] for of in short]
    yield (
        f"it moved {span([of['session.swapped_out_bytes'] / GIB for of in short], 1)} GiB, and "
        f"operators waited for {span(waited, 0)} % of the copies' time"
    )


def pages() -> Iterator[str]:
    us = on_a_gpu("probe")["driver calls"]["microseconds"]
    move = on_a_gpu("remap")["remap"]["idle"]["microseconds_a_page"]
    run, whole = us["idle, 256 pages"], us["one allocation of 256 pages"]
    yield (
        f"{run['give access']:.0f} us to give access to a page, {run['unmap, one call']:.0f} us "
        f"to unmap one, and the pool {move:.0f} us to move one"
    )
    yield (
        f"of 256 pages takes {whole['give access']:.2f} us a page to give access, and "
        f"{whole['unmap']:.2f} us to unmap"
    )


def seconds() -> Iterator[str]:
    (whole,) = (one for one in replaced() if one["part"] == "tests" and one["call"] == "2")
    took = {name: results()[name]["seconds"] for name in ("exact", "gpt")}
    yield (
        f"all tests took {whole['seconds']:.0f} seconds, `exact` {took['exact']:.0f}, `gpt` "
        f"{took['gpt']:.0f}"
    )


def crossover() -> Iterator[str]:
    """The least that any run found; -1 is none."""
    every = re.findall(r'"session.device_scores_from": (\d+)', (ROOT / GPU).read_text())
    least = min(int(count) for count in every if int(count) > 0)
    yield f"an H200 found {least // 1000 * 1000:,} candidates and more"


def page() -> Iterator[str]:
    move = on_a_gpu("remap")["remap"]["idle"]["microseconds_a_page"]
    yield f"On an H200 a page of 2 MiB takes {move:.0f} us to move"
