"""Runs a case's programs eagerly and in the runtime's hardest modes, and compares bit for bit.

Eager runs three times, over memory that holds something else each time: what differs between runs
from one seed cannot be compared with anything.
What a program raises is a result too, and must be the same kind of error after the same results.
A sample that eager refuses at once must be refused alike, and is counted apart: it checks little.
Each program has a scope of its own, so that a failure names a sample and leaves no trace.
"""

import random
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import dtr_alloc
from tests.conformance.cases import Case
from tests.conformance.programs import Program, programs
from tests.conformance.skips import (
    EAGER_DIFFERS,
    SKIPS,
    VERIFY_SKIPS,
    WITHOUT_ELEMENTS,
    reason_to_skip_sample,
)
from tests.support.exactness import MODES, bits, same, scope

_SEED = 0


@dataclass
class Tally:
    """Counts over cases. `checks` are samples times modes; `samples_refused`, which eager refuses
    and the runtime refused alike, are not among them."""

    cases: int = 0
    samples: int = 0
    samples_refused: int = 0
    samples_evicted: int = 0
    checks: int = 0
    identical: int = 0
    evictions: int = 0
    rematerializations: int = 0
    skipped_cases: Counter[str] = field(default_factory=Counter)
    skipped_samples: Counter[str] = field(default_factory=Counter)
    skipped_checks: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def compare(case: Case, tally: Tally, most: int | None = None) -> None:
    """Compares at most `most` samples of a case in every mode, and adds to the tally."""
    tally.cases += 1
    if case.entry in SKIPS:
        tally.skipped_cases[SKIPS[case.entry]] += 1
        return
    with warnings.catch_warnings():
        # The databases call what is deprecated and pass what is doubtful on purpose.
        warnings.simplefilter("ignore")
        for sample, program in programs(case, most):
            _compare_sample(case, sample, program, tally)


def _compare_sample(case: Case, sample: str, program: Program, tally: Tally) -> None:
    reason = reason_to_skip_sample(str(case), sample)
    if reason:
        tally.skipped_samples[reason] += 1
        return
    elements = case.entry not in WITHOUT_ELEMENTS
    expected = _run(program, elements, by_hand=False)
    refused = len(expected) == 2 and expected[0].kind == "raises"
    for byte in (255, 1):
        _litter(byte)
        if _difference(expected, _run(program, elements, by_hand=False)):
            tally.skipped_samples[EAGER_DIFFERS] += 1
            return
    tally.samples_refused += refused
    tally.samples += not refused
    for mode, instruments in MODES.items():
        if mode == "verify" and case.entry in VERIFY_SKIPS:
            tally.skipped_checks[VERIFY_SKIPS[case.entry]] += not refused
            continue
        tally.checks += not refused
        try:
            with scope(None, **instruments) as session:
                found = _run(program, elements, by_hand=mode == "recorded")
                session.check()
            records = session.stats().records
            different = _difference(expected, found)
            if not different and records:
                different = f"{records} records outlive the scope"
        except Exception as error:
            different = f"the scope raises {_told(error)}"
        stats = session.stats()
        tally.evictions += stats.evictions
        tally.rematerializations += stats.rematerializations
        if not refused:
            tally.samples_evicted += mode == "evict_always" and stats.evictions > 0
        if different:
            tally.failures.append(f"{case} {sample}, {mode}: {different}")
        else:
            tally.identical += not refused


def _litter(byte: int) -> None:
    """Fills the memory that the next run gets (255: with NaN), to show who reads it unwritten."""
    for size in range(3, 18):
        _ = [torch.full((1 << size,), byte, dtype=torch.uint8) for _ in range(4)]


@dataclass
class _Result:
    kind: str
    content: Any


def _run(program: Program, elements: bool, by_hand: bool) -> list[_Result]:
    torch.manual_seed(_SEED)
    random.seed(_SEED)
    np.random.seed(_SEED)

    def pause(tree: object) -> None:
        for leaf in tree_leaves(tree):
            if by_hand and isinstance(leaf, Tensor):
                dtr_alloc.evict(leaf)

    results: list[_Result] = []
    try:
        for result in program(pause):
            for leaf in tree_leaves(result):
                results.extend(_seen(leaf, elements))
    except Exception as error:
        results.append(_Result("raises", (type(error).__name__, _told(error))))
    results.append(_Result("tensor", bits(torch.get_rng_state())))
    return results


def _told(error: Exception) -> str:
    text = str(error).splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"


def _seen(leaf: object, elements: bool) -> Iterator[_Result]:
    """What can be seen of a result. A tensor of another layout is shown by its dense tensors."""
    if not isinstance(leaf, Tensor):
        yield _Result("object", repr(leaf))
        return
    tensor = leaf.detach()
    if tensor.is_nested:
        for part in tensor.unbind():
            yield from _seen(part, elements)
    elif tensor.is_quantized:
        yield from _seen(tensor.int_repr(), elements)
    elif tensor.layout != torch.strided:
        yield from _seen(tensor.to_dense(), elements)
    else:
        yield _Result("strides", (tensor.stride(), str(tensor.device), leaf.requires_grad))
        if elements:
            yield _Result("tensor", bits(tensor))
        else:
            yield _Result("shape", (tensor.dtype, tuple(tensor.shape)))


def _difference(expected: list[_Result], found: list[_Result]) -> str:
    """What is different, or nothing."""
    for index, (one, other) in enumerate(zip(expected, found, strict=False)):
        if one.kind == other.kind == "tensor":
            alike = same(one.content, other.content)
        elif one.kind == other.kind == "raises":
            alike = one.content[0] == other.content[0]
        else:
            alike = one == other
        if not alike:
            return f"result {index} differs: {_short(one)}, with the runtime {_short(other)}"
    if len(expected) != len(found):
        return f"{len(expected)} results, with the runtime {len(found)}"
    return ""


def _short(result: _Result) -> str:
    if result.kind == "tensor":
        dtype, shape, _ = result.content
        return f"{dtype} {list(shape)}"
    return f"{result.kind} {result.content}"
