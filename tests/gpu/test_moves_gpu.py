"""Pages move, and blocks change hands, while kernels that use them are still queued behind one that
sleeps. Whatever is read too late, or written too early, shows as a wrong number. On the CPU nothing
is queued: there the same programs show that pages do move."""

from typing import Any

import pytest
import torch

import dtr_alloc
from tests.gpu.programs import MIB, Watched, digest, hold_up, swap, told


def moved(device: str, budget: int, on_another_stream: bool) -> Any:
    watched: Watched = swap(device, budget)
    size = budget // 32  # Two pages and more on a device.
    blocks = []
    for i in range(31):
        block = torch.full((size,), i, dtype=torch.uint8, device=device)
        dtr_alloc.pin(block)  # So that pages must move, since nothing can be evicted.
        blocks.append(block)
    hold_up(device)
    sums = [block[::4096].sum() for block in blocks[:30:2]]  # Queued behind the sleep.
    sizes = [block[::4096].numel() for block in blocks[:30:2]]
    del block, blocks[:30:2]
    streams: Any = torch.cuda
    with streams.stream(streams.Stream() if on_another_stream and device == "cuda" else None):
        large = torch.full((15 * size - size // 2,), 99, dtype=torch.uint8, device=device)
        right = bool((large[::4096] == 99).all())
    if device == "cuda":
        torch.cuda.synchronize()
    watched.check()
    return {
        "remaps": watched.remaps(),
        "sums": [int(s) for s in sums] == [2 * i * n for i, n in enumerate(sizes)],
        "stayed": all(bool((b[::4096] == 2 * i + 1).all()) for i, b in enumerate(blocks[:15])),
        "large": right,
    }


@pytest.mark.parametrize("on_another_stream", [False, True])
def test_pages_move_behind_queued_kernels_and_nobody_reads_wrong_bytes(
    device: str, on_another_stream: bool
) -> None:
    found = told(moved, device, 256 * MIB, on_another_stream)
    assert found["remaps"] >= 1
    assert [found["sums"], found["stayed"], found["large"]] == [True] * 3


def moved_again_and_again(device: str, budget: int, turns: int) -> Any:
    """Layers of two sizes, so that holes of one do not serve the other."""
    watched: Watched = swap(device, budget)
    sums = []
    for turn in range(turns):
        size = (5 if turn % 2 else 3) * budget // 64
        kept = [torch.full((size // 4,), float(turn), device=device) for _ in range(10)]
        hold_up(device, 1_000_000)
        for i in range(0, 10, 2):
            kept[i] = kept[i] + kept[i + 1]
        sums.append(torch.stack([k[:: 1 << 10].mean() for k in kept]).sum())
        kept = kept[::3]
    total = torch.stack(sums)
    expected = torch.tensor([15.0 * turn for turn in range(turns)])
    return {"right": bool((total.cpu() == expected).all()), "remaps": watched.remaps()}


def test_many_moves_under_a_loaded_stream_change_no_number(device: str) -> None:
    turns = 60 if device == "cuda" else 12
    found = told(moved_again_and_again, device, 256 * MIB, turns)
    assert found["right"]


def overlapping(device: str, budget: int, turns: int) -> Any:
    """Nothing waits for the device until the end."""
    swap(device, budget)
    streams: list[Any] = [torch.cuda.Stream() for _ in range(4)]  # type: ignore[no-untyped-call]
    found = []
    for turn in range(turns):
        with torch.cuda.stream(streams[turn % 4]):
            x = torch.full((4 << 20,), float(turn), device=device)
            hold_up(device, 500_000)
            for _ in range(8):
                x = x * 1.0
            found.append(x.max() - x.min() + (x[0] - turn).abs())
            del x
    torch.cuda.synchronize()
    return sum(float(y) != 0 for y in found)


@pytest.mark.gpu
def test_streams_that_overlap_do_not_read_each_others_memory() -> None:
    assert told(overlapping, "cuda", 512 * MIB, 200) == 0


def recorded(device: str, budget: int, turns: int) -> Any:
    """A side stream reads what the default stream made, dropped and wrote over."""
    swap(device, budget)
    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    found = []
    for turn in range(turns):
        x = torch.full((8 << 20,), float(turn), device=device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            hold_up(device, 2_000_000)
            found.append((x.max() + x.min()) / 2 - turn)
        x.record_stream(side)
        del x
        y = torch.full((8 << 20,), -1.0, device=device)  # Perhaps in the same place.
        del y
    torch.cuda.synchronize()
    return sum(float(y) != 0 for y in found)


@pytest.mark.gpu
def test_memory_given_to_another_stream_waits_for_that_stream() -> None:
    assert told(recorded, "cuda", 256 * MIB, 40) == 0


def evicted_behind_a_kernel(device: str, budget: int) -> Any:
    """Evicts what queued kernels read, and fills its place, before they have run."""
    swap(device, budget)
    torch.manual_seed(0)
    x = torch.randn(1 << 20, device=device)
    layers = [x.mul(i).sin() for i in range(8)]
    before = [digest(layer) for layer in layers]
    hold_up(device)
    sums = [layer.sum() for layer in layers]
    gone = [dtr_alloc.evict(layer) for layer in layers]
    noise = [torch.full((1 << 20,), 7.0, device=device) for _ in range(8)]
    again = [layer.sum() for layer in layers]
    same = [digest(layer) for layer in layers] == before
    equal = all(bool(one == two) for one, two in zip(sums, again, strict=True))
    return [all(gone), same, equal, all(bool((n == 7).all()) for n in noise)]


def test_what_queued_kernels_read_may_be_evicted_and_overwritten(device: str) -> None:
    assert told(evicted_behind_a_kernel, device, 256 * MIB) == [True] * 4
