"""The questions to a tool that runs blocks again, and how an answer is found, for every library.

A question is a thing in the block that a second run could change. For each, the library's program
trains a small network twice without the tool, which must be equal to the bit, and once with it. So
that no answer is empty, the tool must train a network in which nothing is asked, and a question
must change what the network computes. Only numpy is needed, which every library here has.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

WIDTH, ROWS, BLOCKS = 32, 512, 3
QUESTIONS = {
    "random": "draws from the global random numbers: noise, and dropout",
    "noise": "draws noise alone, where `random` is dropout alone",
    "generator": "draws from a generator of its own",
    "statistics": "batch norm counts each forward pass once",
    "buffer": "counts a buffer up and multiplies by it",
    "write": "writes its input, which needs a gradient",
    "write_constant": "writes an input that needs no gradient",
    "write_later": "its input is written after it ran, before the backward pass",
    "autocast": "the forward pass is in CPU autocast to bfloat16",
    "func": "torch.func.grad of the network",
}
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass
class Run:
    """What two steps came to."""

    losses: list[Array] = field(default_factory=list)
    gradients: list[Array] = field(default_factory=list)
    generators: list[Array] = field(default_factory=list)
    """The states of all generators after each step."""
    buffers: list[Array] = field(default_factory=list)
    """What the blocks count up, after each step."""
    mean: Array | None = None
    """The first block's running mean after the first step; it was 0 and takes a tenth of each."""
    calls: int = 0
    """How many blocks were run, the first time or again; other things that run again count too."""
    warnings: set[str] = field(default_factory=set)


Train = Callable[[str, bool], Run]
"""Trains for a question, with the tool or without."""


def near(one: Sequence[Array], other: Sequence[Array]) -> str:
    """Whether arrays are equal to the bit, or else but for rounding."""
    if len(one) != len(other):
        return "wrong"
    pairs = [*zip(one, other, strict=True)]
    if all(a.tobytes() == b.tobytes() for a, b in pairs):
        return "restored"
    rounded = (np.allclose(a, b, rtol=0, atol=1e-5 * np.abs(a).max()) for a, b in pairs)
    return "rounded" if all(rounded) else "wrong"


def compared(one: Run, other: Run) -> dict[str, str]:
    """The same of each part of two runs."""
    parts = ("losses", "gradients", "generators", "buffers")
    return {part: near(getattr(one, part), getattr(other, part)) for part in parts}


def counted(plain: Run, run: Run) -> str:
    """How often batch statistics took the first batch: 0.1 m, and then 0.9 of it and 0.1 m more."""
    assert plain.mean is not None
    assert run.mean is not None
    shares = {"once": 1.0, "twice": 1.9}
    took = (
        np.allclose(run.mean, one * plain.mean, rtol=1e-4, atol=1e-7) for one in shares.values()
    )
    return next((word for word, so in zip(shares, took, strict=True) if so), "wrong")


def tried(train: Train, question: str, with_tool: bool) -> Run | str:
    """The run, or the error that it ended in."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            run = train(question, with_tool)
        except Exception as error:
            return " ".join(f"{type(error).__name__}: {error}".split())[:110]
    run.warnings = {" ".join(str(one.message).split())[:110] for one in warned}
    return run


def trained(train: Train, question: str, with_tool: bool = False) -> Run:
    run = tried(train, question, with_tool)
    assert isinstance(run, Run), f"{question}: {run}"
    return run


def answer(train: Train, question: str) -> dict[str, Any]:
    """The answer to a question, and what it rests on."""
    nothing = trained(train, "")
    if question == "write_later":  # What would have been, had nothing been written.
        if isinstance(tried(train, question, False), Run):
            return {"answer": "-", "why": "the library lets this write pass"}
        plain = nothing
    else:
        plain = trained(train, question)
        twin = compared(plain, trained(train, question))
        assert {*twin.values()} == {"restored"}, f"{question}: {twin} without the tool"
        changed = question == "statistics" or "wrong" in compared(plain, nothing).values()
        assert changed, f"{question}: changes nothing"
    run = tried(train, question, True)
    if isinstance(run, str):
        return {"answer": "error", "error": run}
    found = compared(plain, run)
    word = next(one for one in ("wrong", "rounded", "restored") if one in found.values())
    return {
        "answer": counted(plain, run) if question == "statistics" else word,
        "differs": [part for part, so in found.items() if so != "restored"],
        "again": run.calls - plain.calls,
        "warnings": sorted(run.warnings - plain.warnings),
    }


def report(train: Train, questions: Iterable[str]) -> None:
    """Prints the answers as one line of JSON, the last of what the program prints."""
    trained(train, "", with_tool=True)  # A mistake of ours is no error of the tool.
    print(json.dumps({question: answer(train, question) for question in questions}))
