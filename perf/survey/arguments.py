"""Arguments for operators that no test of torch's calls, from their schemas; and by hand, for what
no schema tells.

Each argument without a default gets a value by its type, and by its name where that says that a
tensor holds indices, a mask or lengths. Tensors have a few shapes in turn, numbers a few values.
The table KNOWN is for operators that need more: packed weights, arguments that belong together.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

Arguments = tuple[tuple[Any, ...], dict[str, Any]]

_SHAPES = ((1000, 1000), (1_000_000,), (4, 25, 100, 100), (100, 100, 100), (4, 10, 10, 50, 50), ())
_NUMBERS = (1, 0, 2)
_INDEX_NAMES = (
    "index",
    "indices",
    "indexes",
    "offsets",
    "lengths",
    "batch_sizes",
    "sizes",
    "seqlens",
)
_MASK_NAMES = ("mask", "condition", "found_inf")


def from_schema(schema: Any) -> Iterator[Arguments]:
    """Guesses, to be tried in turn."""
    for kind in (torch.float32, torch.int64, torch.bool):
        for shape in _SHAPES if kind == torch.float32 else _SHAPES[:2]:
            for number in _NUMBERS:
                try:
                    yield _guess(schema, kind, shape, number)
                except LookupError:
                    return


def _guess(schema: Any, kind: torch.dtype, shape: tuple[int, ...], number: int) -> Arguments:
    args, kwargs = [], {}
    for a in schema.arguments:
        if a.has_default_value() and not (a.kwarg_only and a.alias_info):
            if not a.kwarg_only:
                args.append(a.default_value)
            continue
        x = _value(str(a.type), a.name, kind, shape, number)
        if a.kwarg_only:
            kwargs[a.name] = x
        else:
            args.append(x)
    return tuple(args), kwargs


def _value(type_: str, name: str, kind: torch.dtype, shape: tuple[int, ...], number: int) -> Any:
    plain = type_.removeprefix("Optional[").removesuffix("]") if type_.startswith("Opt") else type_
    match plain:
        case "Tensor":
            return _tensor(name, kind, shape)
        case "List[Tensor]" | "List[Optional[Tensor]]":
            return [_tensor(name, kind, shape) for _ in range(2)]
        case "int":
            return torch.float32 if name == "dtype" else number
        case "List[int]":
            return [number] * max(1, len(shape)) if name == "size" else [number]
        case "float" | "number":
            return 0.5
        case "List[float]" | "List[number]":
            return [0.5, 0.5]
        case "bool":
            return number == 1
        case "List[bool]":
            return [True, True, True]
        case "str":
            return "none"
        case "Device":
            return torch.device("cpu")
    if type_.startswith("Opt"):
        return None
    raise LookupError(type_)


@cache
def _tensor(name: str, kind: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    if any(word in name for word in _MASK_NAMES) or kind == torch.bool:
        return torch.randint(2, shape, generator=generator) > 0
    if any(word in name for word in _INDEX_NAMES):
        return torch.randint(0, 5, shape[:1], generator=generator)
    if name in ("scale", "scales"):
        return torch.ones(shape[:1])
    if name in ("zero_point", "zero_points"):
        return torch.zeros(shape[:1], dtype=torch.int64)
    if kind == torch.int64:
        return torch.randint(0, 5, shape, generator=generator)
    return torch.rand(shape, generator=generator) + 0.1


def _known() -> dict[str, list[Arguments]]:
    generator = torch.Generator().manual_seed(0)

    def rand(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator)

    n = 8_300
    steps = torch.cat([torch.full((n - 5,), 2), torch.full((5,), 1)])
    items = int(steps.sum())
    return {
        "aten::_pack_padded_sequence": [((rand(n, 2, 3), torch.tensor([n, n - 5]), False), {})],
        "aten::_pad_packed_sequence": [((rand(items, 3), steps, False, 0.0, n), {})],
        "aten::_pack_padded_sequence_backward": [((rand(items, 3), [n, 2, 3], steps, False), {})],
        "aten::choose_qparams_optimized": [((rand(64, 64), 4096, 200, 0.16, 8), {})],
    }


KNOWN = _known()
