"""Sizes as people write them: `"8GiB"`, `"1.5 GB"`, a number of bytes; and back: `"1.5 MiB"`.

Units with an i count by 1024, those without by 1000, as IEC 80000-13 has it; a letter alone counts
by 1024, as Slurm, Docker and ulimit have it. A bare number in a string is refused: whoever writes
`"8"` rarely means eight bytes. A share is written `"60%"` and in no other way, so that `0.6` cannot
be a share here and bytes there.
"""

import math
import numbers
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import SupportsFloat, SupportsIndex, TypeAlias

from dtr_alloc import _core

__all__ = [
    "LARGEST_BUDGET",
    "Share",
    "Size",
    "format_size",
    "parse_budget",
    "parse_size",
    "short_size",
]

Size: TypeAlias = SupportsIndex | SupportsFloat | str

LARGEST_BUDGET = _core.LARGEST_BUDGET
"""Bytes that a scope can have at most: half of the addresses of the largest arena (arena.h)."""

_PREFIXES = "KMGTP"
_UNITS = {"B": 1} | {
    prefix + unit: base**power
    for power, prefix in enumerate(_PREFIXES, start=1)
    for unit, base in (("B", 1000), ("IB", 1024), ("", 1024))
}
_LONGEST = 100  # Characters, of what a person writes.
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([a-zA-Z]+)\s*", re.ASCII)
_NUMBER = re.compile(r"[0-9]*\.?[0-9]+", re.ASCII)
_SHARE = re.compile(r"\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*%\s*", re.ASCII)


@dataclass(frozen=True)
class Share:
    """A budget of so much of the activation peak, and of what must stay besides: gradients, the
    state of optimizers, constants. With `whole` it is a share of the whole peak, as the paper has
    it: for studies, and not to be written as a text."""

    fraction: float
    whole: bool = False

    def of(self, peak: int, stays: int) -> int:
        """Bytes, for a program that holds `peak` at most, of which `stays` must stay."""
        stays = 0 if self.whole else min(stays, peak)
        return int(self.fraction * (peak - stays)) + stays

    def __str__(self) -> str:
        return f"{100 * self.fraction:g}%"


def parse_budget(budget: Size | Share, most: int = 2**63 - 1) -> "int | Share":
    """Returns the share that `budget` is, such as "60%", or its bytes, as `parse_size` does.

    Example:
        >>> parse_budget("60%"), parse_budget("2G"), parse_budget(0.6 * 4001)
        (Share(fraction=0.6, whole=False), 2147483648, 2400)
    """
    if isinstance(budget, Share):
        return budget
    match = _SHARE.fullmatch(budget) if isinstance(budget, str) else None
    if match is None:
        return parse_size(budget, most=most)
    if not float(match[1]):
        raise ValueError(f'budget "{budget}" is not above zero: write a share such as "60%"')
    return Share(float(match[1]) / 100)


def parse_size(size: Size, name: str = "budget", most: int = 2**63 - 1) -> int:
    """Returns the bytes that `size` says: a number of bytes, or a string of a number and a unit.

    Units are B, KB to PB, KiB to PiB and K to P, in any case. A fraction of a byte is dropped.
    `name` is what the error calls the argument.

    Raises:
        TypeError: `size` is neither a number nor a string (a bool is neither).
        ValueError: `size` is not written like a size, is less than one byte, or more than `most`.
    """
    remedy = 'write a number of bytes, or one with a unit, such as "8GiB"'
    if isinstance(size, str):
        shown = f'"{size}"' if len(size) <= _LONGEST else f'"{size[:_LONGEST]}..."'
        match = _SIZE.fullmatch(size) if len(size) <= _LONGEST else None
        factor = _UNITS.get(match[2].upper()) if match else None
        if match is None or factor is None:
            remedy = 'write a number with a unit, such as "8GiB"'
            if _SHARE.fullmatch(size):
                remedy = f"a share cannot be told here: {remedy}"
            elif _NUMBER.fullmatch(size) and float(size) > 0:
                number = float(size)
                other = f'bytes as "{size}B"'
                if number <= 100:
                    other = f'a share as "{number * (100 if number <= 1 else 1):g}%"'
                remedy += f", or {other}"
            raise ValueError(f"{name} {shown} is not a size: {remedy}")
        count = int(Fraction(match[1]) * factor)
    elif isinstance(size, bool) or not (
        hasattr(size, "__index__") or isinstance(size, numbers.Real)
    ):
        raise TypeError(f"{name} {size!r} is not a size: {remedy}")
    elif hasattr(size, "__index__"):
        count = size.__index__()
        small = abs(count) < 10**_LONGEST  # Python writes no integer of thousands of digits.
        shown = str(count) if small else f"of {count.bit_length()} bits"
    else:
        shown, value = str(size), float(size)
        if not math.isfinite(value):
            raise ValueError(f"{name} {shown} is not a size: {remedy}")
        if 0 < value <= 1:
            share = f"{100 * value:g}%"
            raise ValueError(f'{name} {shown} is a byte at most: a share is written "{share}"')
        count = int(value)
    if count <= 0:
        raise ValueError(f"{name} {shown} is not above zero: {remedy}")
    if count >= 2**63:
        raise ValueError(f"{name} {shown} is more than any machine can address")
    if count > most:
        raise ValueError(f"{name} {shown} is above the largest possible, {format_size(most)}")
    return count


def short_size(size: int) -> str:
    """Returns a text of a size that is easy to remember, at least `size`, and 1 % more at most
    where that is 1 KiB or more: "33.9MiB"."""
    unit, name = (1 << 20, "MiB") if size >= 1 << 20 else (1 << 10, "KiB")
    digits = 100 if size < 10 * unit else 10 if size < 100 * unit else 1
    return f"{math.ceil(size * digits / unit) / digits:.10g}{name}"


def format_size(size: int) -> str:
    """Returns `size` in the largest binary unit that it fills, with two decimals at most."""
    value = float(size)
    unit = "B"
    for prefix in _PREFIXES:
        if abs(round(value, 2)) < 1024:
            break
        value /= 1024
        unit = f"{prefix}iB"
    return f"{value:.2f}".rstrip("0").rstrip(".") + f" {unit}"
