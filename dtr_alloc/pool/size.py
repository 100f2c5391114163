"""Sizes as people write them: `"8GiB"`, `"1.5 GB"`, an int of bytes; and back: `"1.5 MiB"`.

Units with an i count by 1024, those without by 1000, as IEC 80000-13 has it. A bare number in a
string is refused: whoever writes `"8"` rarely means eight bytes.
"""

import operator
import re
from fractions import Fraction
from typing import SupportsIndex

from dtr_alloc import _core

__all__ = ["LARGEST_BUDGET", "format_size", "parse_size"]

LARGEST_BUDGET = _core.LARGEST_BUDGET
"""Bytes that a scope can have at most: half of the addresses of the largest arena (arena.h)."""

_PREFIXES = "KMGTP"
_UNITS = {"B": 1} | {
    prefix + unit: base**power
    for power, prefix in enumerate(_PREFIXES, start=1)
    for unit, base in (("B", 1000), ("IB", 1024))
}
_LONGEST = 100  # Characters, of what a person writes.
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([a-zA-Z]+)\s*", re.ASCII)


def parse_size(size: SupportsIndex | str, name: str = "budget", most: int = 2**63 - 1) -> int:
    """Returns the bytes that `size` says: an int of bytes, or a string of a number and a unit.

    Units are B, KB to PB and KiB to PiB, in any case. A fraction of a byte is dropped. `name` is
    what the error calls the argument.

    Raises:
        TypeError: `size` is neither an int nor a string (a bool is neither).
        ValueError: `size` is not written like a size, is less than one byte, or more than `most`.
    """
    remedy = 'write an int of bytes or a number with a unit, such as "8GiB"'
    if isinstance(size, str):
        shown = f'"{size}"' if len(size) <= _LONGEST else f'"{size[:_LONGEST]}..."'
        match = _SIZE.fullmatch(size) if len(size) <= _LONGEST else None
        factor = _UNITS.get(match[2].upper()) if match else None
        if match is None or factor is None:
            raise ValueError(f"{name} {shown} is not a size: {remedy}")
        count = int(Fraction(match[1]) * factor)
    elif isinstance(size, bool) or not hasattr(size, "__index__"):
        raise TypeError(f"{name} {size!r} is not a size: {remedy}")
    else:
        count = operator.index(size)
        small = abs(count) < 10**_LONGEST  # Python writes no integer of thousands of digits.
        shown = str(count) if small else f"of {count.bit_length()} bits"
    if count <= 0:
        raise ValueError(f"{name} {shown} is not above zero: {remedy}")
    if count >= 2**63:
        raise ValueError(f"{name} {shown} is more than any machine can address")
    if count > most:
        raise ValueError(f"{name} {shown} is above the largest possible, {format_size(most)}")
    return count


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
