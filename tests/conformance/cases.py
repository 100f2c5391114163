"""Every case of PyTorch's own test databases: an operator, a module or an optimizer, at one type.

The databases come with torch (torch.testing._internal): 700 operators with inputs that reach their
corners, written by those who wrote the operators. Nobody could list these by hand. The cost: the
import takes seconds and sets flags for the process, so it happens when a case is asked for, not
when tests are collected. A case belongs to one of ten parts by a checksum of its name, which is the
same on every machine and stays when cases are added.
"""

import importlib
import random
import sys
import warnings
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

DATABASES = ("operators", "modules", "optimizers")
PARTS = 10
DTYPES = (
    torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.int64, torch.bool,
)  # fmt: skip
_INTERNAL = "torch.testing._internal."
# Lengths of dimensions in the operators' samples. As they are (20, 10, 5), nearly all tensors are
# below the 512 bytes from which on the runtime evicts; 17 * 17 numbers of two bytes are above.
_LENGTHS = {"L": (20, 24), "M": (10, 18), "S": (5, 17)}
# Two write down offsets into dimensions and tell the operator not to check them; the last one takes
# minutes to differentiate twice over longer dimensions.
_USUAL_LENGTHS = ("_segment_reduce.lengths", "_segment_reduce.offsets", "grid_sampler_3d")


@dataclass(frozen=True)
class Case:
    """One entry of a database (`info`, torch's own object) at one type."""

    database: str
    name: str
    dtype: torch.dtype
    info: Any

    def __str__(self) -> str:
        return f"{self.entry}/{str(self.dtype).removeprefix('torch.')}"

    @property
    def entry(self) -> str:
        return f"{self.database}/{self.name}"

    @property
    def may_be_longer(self) -> bool:
        return self.name not in _USUAL_LENGTHS

    @property
    def seed(self) -> int:
        return zlib.crc32(str(self).encode())

    @property
    def part(self) -> int:
        return self.seed % PARTS

    def pick(self, samples: list[Any], most: int | None) -> list[tuple[int, Any]]:
        """At most `most` of the samples with their places, the same ones in every run."""
        numbered = list(enumerate(samples))
        if most is None or len(numbered) <= most:
            return numbered
        return sorted(random.Random(self.seed).sample(numbered, most), key=lambda pair: pair[0])


def cases(database: str, part: int | None = None) -> list[Case]:
    """All cases of a database, or those of one part."""
    entries = {"operators": _operators, "modules": _modules, "optimizers": _optimizers}[database]
    found = [
        Case(database, name, dtype, info)
        for name, info, supported in entries()
        for dtype in DTYPES
        if dtype in supported
    ]
    return found if part is None else [case for case in found if case.part == part]


def database_module(name: str) -> ModuleType:
    with warnings.catch_warnings():
        # Decorators of torch.jit in there warn of their deprecation, for which nobody here can do
        # anything.
        warnings.simplefilter("ignore")
        return importlib.import_module(_INTERNAL + name)


# The entries of each: name, torch's own object, and types.


def _operators() -> Iterator[tuple[str, Any, Collection[torch.dtype]]]:
    for info in database_module("common_methods_invocations").op_db:
        name = info.name + (f".{info.variant_test_name}" if info.variant_test_name else "")
        yield name, info, info.supported_dtypes("cpu")


def _modules() -> Iterator[tuple[str, Any, Collection[torch.dtype]]]:
    for info in database_module("common_modules").module_db:
        yield info.name, info, info.supported_dtypes("cpu")


def _optimizers() -> Iterator[tuple[str, Any, Collection[torch.dtype]]]:
    for info in database_module("common_optimizers").optim_db:
        yield info.optim_cls.__name__, info, (torch.float32, torch.float64, torch.bfloat16)


@contextmanager
def longer_dimensions() -> Iterator[None]:
    """Inside, operators' samples are large enough to be evicted, where their authors wrote lengths
    by name."""
    changed: list[tuple[ModuleType, str, int]] = []
    for module in list(sys.modules.values()):
        name = getattr(module, "__name__", "")
        if not name.startswith((_INTERNAL + "opinfo", _INTERNAL + "common_methods_invocations")):
            continue
        for length, (usual, longer) in _LENGTHS.items():
            if module.__dict__.get(length) == usual:
                setattr(module, length, longer)
                changed.append((module, length, usual))
    try:
        yield
    finally:
        for module, length, usual in changed:
            setattr(module, length, usual)
