"""The largest batch that trains in a fixed memory, one way, by doubling and then halving the rest.

How a search ended belongs to its result. A batch that did not fit is one thing; time that was up is
another, and then the largest batch seen so far is no largest batch. So every attempt is told with
how it ended, and the file is written after each. A batch fits if three steps of it run, in the mode
of speed.py; between attempts all memory is given back.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from large_models import LARGE_MODELS, Model
from measurement import write_json
from speed import Training, timed, to_device, train_as_people_do
from ways import WAYS, Memory, how

STEPS = 3
Attempt = Callable[[int], str]


def search(attempt: Attempt, first: int, most: int, late: Callable[[], bool]) -> dict[str, Any]:
    """`attempt` says how a batch ended, in one word, "fits" if it did.

    Returns:
        `largest`, to a sixteenth of itself, and how the search ended: `found`, `limit of the
        search`, or `time was up`, where `largest` is None and `at_least` is what did fit.
    """
    good, bad, step = 0, None, first
    ended = "found"
    while bad is None or bad - good > max(1, good // 16):
        if late():
            ended = "time was up"
            break
        if attempt(step) == "fits":
            good = step
            if step >= most:
                ended = "limit of the search"
                break
        else:
            bad = step
        step = min(2 * good, most) if bad is None else (good + bad) // 2
        if step == 0:
            break
    return {"largest": good if ended == "found" else None, "at_least": good, "ended": ended}


class Search:
    """Attempts of one way in one process."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.model: Model = LARGE_MODELS[arguments.model]
        self.memory = Memory(arguments.way, arguments.device, arguments.memory)
        self.attempts: list[dict[str, Any]] = []

    def attempt(self, batch: int) -> str:
        self._note(f"at batch {batch}")
        row: dict[str, Any] = {"batch": batch}
        try:
            self._train(batch, row)
            row["ended"] = "fits"
        except torch.OutOfMemoryError as error:
            row["ended"], row["error"] = how(error), str(error)[:500]
        row |= self.memory.figures()
        self.memory.clear()
        self.attempts.append(row)
        self._note(f"after batch {batch}")
        print(row, flush=True)
        return str(row["ended"])

    def _train(self, batch: int, row: dict[str, Any]) -> None:
        device = self.arguments.device
        training = Training(self.model, self.arguments.way, device)
        data = to_device(self.model.data(batch), device)

        def step() -> None:
            training.step(data)
            self.memory.check()

        seconds = timed(step, STEPS, self.memory.cuda)
        row["per_second"] = batch * self.model.items / seconds[-1]
        row["unit"] = self.model.unit

    def _note(self, reached: str) -> None:
        fits = [row["batch"] for row in self.attempts if row["ended"] == "fits"]
        found = {"largest": None, "at_least": max(fits, default=0), "ended": "time was up"}
        write_json(self.arguments.out, found | {"attempts": self.attempts, "unfinished": reached})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=list(LARGE_MODELS), required=True)
    parser.add_argument("--way", choices=WAYS, default="stock")
    parser.add_argument("--memory", type=int, required=True, help="bytes")
    parser.add_argument("--first", type=int, default=4)
    parser.add_argument("--most", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=130, help="begin no attempt after that")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    train_as_people_do()
    end = time.monotonic() + arguments.seconds
    looking = Search(arguments)
    found = search(looking.attempt, arguments.first, arguments.most, lambda: time.monotonic() > end)
    write_json(arguments.out, found | {"attempts": looking.attempts})


if __name__ == "__main__":
    main()
