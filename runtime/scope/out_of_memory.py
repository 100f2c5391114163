"""What our `torch.OutOfMemoryError`s tell a program, as attributes of the error.

C++ raises these errors, also from autograd and from threads, and makes their text
(live/machine/out_of_memory.cpp). The class is torch's, and nothing of ours runs between the raise
and the program's `except`. So the attributes are properties of the class, which read the text when
they are asked. Torch's own errors have none of our sentences, so there each is None.
"""

from __future__ import annotations

import re

import torch

from dtr_alloc.pool.size import parse_size

_SIZE = r"([\d.]+ ?(?:[KM]i)?B|\d+ bytes)"
_NEEDED = re.compile(rf"(?:Raise the budget|resize it) to at least {_SIZE}")
_SIMULATED = re.compile(rf"; by a simulation of .*, {_SIZE} do")
_OPERATOR = re.compile(r"^  operator: (.+)$", re.MULTILINE)


def needed(error: torch.OutOfMemoryError) -> int | None:
    """Bytes of the least budget that would have served the request that failed; None where no
    budget does, and for an error of torch's own."""
    found = _NEEDED.search(str(error))
    return parse_size(found[1].replace("bytes", "B")) if found else None


def suggested_budget(error: torch.OutOfMemoryError) -> int | None:
    """Bytes of the budget to try next: the one in which all would run, by the simulation that the
    text names, or else `needed`, and then a later request may need more."""
    found = _SIMULATED.search(str(error))
    return parse_size(found[1]) if found else needed(error)


def operator(error: torch.OutOfMemoryError) -> str | None:
    """The name of the operator that asked, such as ``aten::mm``; None where none did."""
    found = _OPERATOR.search(str(error))
    return found[1] if found else None


def install() -> None:
    """Gives torch's class the attributes."""
    for read in (needed, suggested_budget, operator):
        setattr(torch.OutOfMemoryError, read.__name__, property(read))
