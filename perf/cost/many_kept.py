"""What does a scope cost that evicts nothing, beside many tensors that the program keeps?

Two programs whose steps take branches that depend on data, so that no step repeats another. `kept`
keeps N results of 1 KiB and computes with a few of them. `dqn` learns by Q-learning with a replay
buffer: it acts by chance or by its network, keeps each transition, and trains on a batch of them.
Each runs in eager, in measure(), which records operators but not what they need, and in a scope
with room for all (`dqn`: twice its peak). The ways take turns, each in a scope of its own; the
figure is the median over the turns of a median step's processor time over the other way's.

    python perf/cost/many_kept.py [--quick] [--out perf/results/many_kept.json]
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.append(str(Path(__file__).parents[1] / "support"))

from measurement import Measurement, report

import dtr_alloc

Way = Callable[[], AbstractContextManager[dtr_alloc.Session | None]]
SETTLED = 15  # Steps that are not counted: in the first twelve, operators cost more.


def kept(count: int, steps: int) -> list[int]:
    """Nanoseconds of each step beside `count` kept tensors."""
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with torch.no_grad():
        bank = [torch.randn(256).tanh() for _ in range(count)]
    times = []
    for _ in range(steps):
        began = time.process_time_ns()
        with torch.no_grad():
            for _ in range(25):
                state = torch.randn(4, 64)
                if random.random() > 0.2:
                    int(network(state).sum(0).argmax())
        batch = torch.stack(random.sample(bank, 64)).view(-1, 64)
        optimizer.zero_grad()
        network(batch).square().mean().backward()
        optimizer.step()
        times.append(time.process_time_ns() - began)
    return times


def dqn(transitions: int, steps: int) -> list[int]:
    """Nanoseconds of each step of Q-learning on a random walk, with a full replay buffer."""
    network, target = (
        nn.Sequential(
            nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4)
        )
        for _ in range(2)
    )
    target.load_state_dict(network.state_dict())
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    moves = torch.randn(4, 32) / 8
    state = torch.zeros(32)
    buffer: list[tuple[Tensor, int, float, Tensor]] = []

    def act(greedy: float) -> None:
        nonlocal state
        action = random.randrange(4)
        if random.random() < greedy:
            with torch.no_grad():
                action = int(network(state).argmax())
        after = (state + moves[action]).clamp(-1, 1)
        reward = float(after[0])
        buffer.append((state, action, reward, after))
        state = torch.zeros(32) if abs(reward) == 1 else after

    for _ in range(transitions):
        act(greedy=0)
    times = []
    for number in range(steps):
        began = time.process_time_ns()
        for _ in range(4):
            act(greedy=0.8)
        states, actions, rewards, later = zip(*random.sample(buffer, 128), strict=True)
        with torch.no_grad():
            best = target(torch.stack(later)).max(1).values
            goal = torch.tensor(rewards) + 0.99 * best
        chosen = network(torch.stack(states)).gather(1, torch.tensor(actions)[:, None])
        loss = nn.functional.smooth_l1_loss(chosen[:, 0], goal)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if number % 10 == 0:
            target.load_state_dict(network.state_dict())
        times.append(time.process_time_ns() - began)
    return times


def step_of(program: Callable[[int], list[int]], steps: int, way: Way) -> tuple[float, int]:
    """Nanoseconds of the median step, and the session's peak in bytes."""
    torch.manual_seed(0)
    random.seed(0)
    with way() as session:
        times = program(steps)[SETTLED:]
        peak = session.stats().peak_bytes if session else 0
        if session and session.stats().evictions:
            raise RuntimeError("there was no room for all: raise the budget of this program")
    return statistics.median(times), peak


def compare(program: Callable[[int], list[int]], steps: int, turns: int) -> list[float]:
    """A step in a scope over one in measure(), over eager, and measure()'s over eager."""
    budget = 2 * step_of(program, SETTLED + 1, dtr_alloc.measure)[1]
    ways: list[Way] = [nullcontext, dtr_alloc.measure, partial(dtr_alloc.rematerialize, budget)]
    ratios = []
    for _ in range(turns):
        eager, measured, scope = (step_of(program, steps, way)[0] for way in ways)
        ratios.append((scope / measured, scope / eager, measured / eager))
    return [statistics.median(each) for each in zip(*ratios, strict=True)]


def main() -> int:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one turn of fewer steps and tensors")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    torch.set_num_threads(1)
    quick = options.quick
    programs = {
        f"kept, {count:,}": (partial(kept, count), 1.15, 7)
        for count in ((1000,) if quick else (100, 1000, 10_000, 30_000, 100_000))
    }
    programs["dqn"] = partial(dqn, 500 if quick else 20_000), 1.10, 21  # Its turns differ more.
    found = []
    for name, (program, limit, turns) in programs.items():
        steps, turns = (30, 1) if quick else (400, turns)
        over_measure, over_eager, measured = compare(program, steps, turns)
        found += [
            Measurement(f"{name}: over measure()", over_measure, "x", limit),
            Measurement(f"{name}: over eager", over_eager, "x"),
            Measurement(f"{name}: measure() over eager", measured, "x"),
        ]
    return report(found, options.out)


if __name__ == "__main__":
    sys.exit(main())
