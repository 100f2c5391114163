"""Two training programs on one budget, which goes to and fro between them.

    python examples/two_programs_one_budget.py [alternations] [pool | torch]

Each program is a process of its own. A broker, here the parent process, sends each its budget. A
thread of the program calls `session.resize`, which returns when the new budget holds, and answers.
Only then does the other program get more. So the two never hold more than the total together, and
both train on without a pause. A smaller budget costs time, and no bit of a result. The second
argument is whose memory the tensors are in (docs/torch_memory.md).
"""

import argparse
import hashlib
import json
import multiprocessing
import threading
import time
from multiprocessing.connection import Connection
from typing import Any, Literal

import torch
from torch import nn

import dtr_alloc
from dtr_alloc import Session

MIB = 1 << 20
MUCH, LITTLE = 28 * MIB, 16 * MIB  # A step needs 35 without a budget, 13 at least.
SEED_OF = {"first": 0, "second": 1}


class Program:
    def __init__(self, seed: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        layers = [part for _ in range(12) for part in (nn.Linear(256, 256), nn.GELU())]
        self.model = nn.Sequential(*layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def step(self, number: int) -> None:
        batch = torch.linspace(0, 1 + number, 1024 * 256).view(1024, 256)
        self.model(batch).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def result(self) -> str:
        """Of all parameters, to the bit."""
        together = torch.cat([p.detach().flatten() for p in self.model.parameters()])
        return hashlib.sha256(together.numpy().tobytes()).hexdigest()


def obey(broker: Connection, session: Session, over: threading.Event) -> None:
    """Follows the broker until it has nothing more to say; a thread of the program."""
    try:
        while budget := broker.recv():
            before = session.stats()
            session.resize(budget)
            session.reset_peak()
            broker.send((before.peak_bytes, before.budget_bytes))
    finally:
        over.set()


def train(seed: int, memory: Literal["pool", "torch"], broker: Connection) -> None:
    """The program: steps until the broker says that it is over, then tells what came of it."""
    program, over, steps = Program(seed), threading.Event(), 0
    with dtr_alloc.rematerialize(MUCH, memory=memory) as session:
        session.resize(LITTLE)
        broker.send("ready")
        thread = threading.Thread(target=obey, args=(broker, session, over), daemon=True)
        thread.start()
        while not over.is_set():
            program.step(steps)
            steps += 1
        thread.join()
        stats = session.stats()
    broker.send({"steps": steps, "result": program.result(), "again": stats.rematerializations})


def main(alternations: int = 20, memory: Literal["pool", "torch"] = "pool") -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    ends = {name: context.Pipe() for name in SEED_OF}
    programs = [
        context.Process(target=train, args=(seed, memory, ends[name][1]), daemon=True)
        for name, seed in SEED_OF.items()
    ]
    for program in programs:
        program.start()
    for _, there in ends.values():
        there.close()  # So that the end of a program is the end of its messages.
    brokers = [here for here, _ in ends.values()]
    assert [broker.recv() for broker in brokers] == ["ready", "ready"]
    kept = True
    for n in range(alternations):
        gives, takes = brokers[n % 2], brokers[1 - n % 2]
        for broker, budget in (gives, LITTLE), (takes, MUCH):
            broker.send(budget)
            peak, of = broker.recv()
            kept = kept and peak <= of
        time.sleep(0.05)  # Meanwhile they train.
    for broker in brokers:
        broker.send(0)
    done = dict(zip(SEED_OF, (broker.recv() for broker in brokers), strict=True))
    for program in programs:
        program.join()
    identical = True
    for name, seed in SEED_OF.items():  # By plain torch.
        alone = Program(seed)
        for number in range(done[name]["steps"]):
            alone.step(number)
        identical = identical and alone.result() == done[name]["result"]
    return {
        "identical": identical,
        "kept": kept,
        "total_bytes": MUCH + LITTLE,
        "alternations": alternations,
        "steps": {name: end["steps"] for name, end in done.items()},
        "rematerializations": sum(end["again"] for end in done.values()),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("alternations", nargs="?", type=int, default=20)
    parser.add_argument("memory", nargs="?", choices=["pool", "torch"], default="pool")
    given = parser.parse_args()
    if given.alternations < 1:
        parser.error(f"alternations {given.alternations} is less than 1")
    print(json.dumps(main(**vars(given))))
