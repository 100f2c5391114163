"""Arguments for operators that no test of torch's calls, from their schemas; and by hand, for what
no schema tells.

Each argument without a default gets a value by its type, and by its name where that says that a
tensor holds indices, a mask or lengths. Tensors have a few shapes in turn, numbers a few values.
The table of known() is for operators that need more: packed weights, arguments that belong
together.
"""

from collections.abc import Iterator
from contextlib import suppress
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
        case "float":
            return 0.5
        case "number":
            return 0.5 if kind == torch.float32 else 2
        case "List[float]" | "List[number]":
            return [0.5, 0.5]
        case "bool":
            return number == 1
        case "List[bool]":
            return [True, True, True]
        case "str":
            words = {"rounding_mode": "floor", "ord": "fro", "reduce": "add"}
            return words.get(name, "none")
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


@cache
def known() -> dict[str, list[Arguments]]:
    """By hand. To be called in a child: it computes."""
    generator = torch.Generator().manual_seed(0)

    def rand(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator)

    n = 8_300
    steps = torch.cat([torch.full((n - 5,), 2), torch.full((5,), 1)])
    items = int(steps.sum())

    def lstm() -> Arguments:
        weights = [rand(80, 10), rand(80, 20), rand(80), rand(80)]
        packed = (rand(1000, 10), torch.full((100,), 10), [rand(1, 10, 20), rand(1, 10, 20)])
        return ((*packed, weights, True, 1, 0.0, False, False), {})

    def recurrent(gates: int) -> Arguments:
        weights = [rand(gates * 20, 10), rand(gates * 20, 20), rand(gates * 20), rand(gates * 20)]
        packed = (rand(1000, 10), torch.full((100,), 10), rand(1, 10, 20))
        return ((*packed, weights, True, 1, 0.0, False, False), {})

    def fp16() -> list[Arguments]:
        weight = torch.ops.aten.fbgemm_pack_gemm_matrix_fp16(rand(64, 64))
        return [((rand(64, 64), weight, rand(64)), {})]

    def int8() -> list[Arguments]:
        weight, offsets, scale, zero = torch.ops.aten.fbgemm_linear_quantize_weight(rand(64, 64))
        packed = torch.ops.aten.fbgemm_pack_quantized_matrix(weight)
        return [((rand(64, 64), weight, packed, offsets, scale, zero, rand(64)), {})]

    log_probs = rand(6, n, 4).log_softmax(2)
    targets = torch.randint(1, 4, (n, 2), generator=generator)
    lengths = (torch.full((n,), 6), torch.full((n,), 2))
    image, kernel = rand(4, 8, 64, 64), rand(8, 8, 3, 3)
    volume, kernel3 = rand(2, 8, 16, 16, 16), rand(8, 8, 3, 3, 3)
    whole = torch.randint(-100, 100, (64, 64), generator=generator).to(torch.int8)
    scales, zeros = rand(64), torch.zeros(64, dtype=torch.int64)
    found: dict[str, list[Arguments]] = {
        "aten::ctc_loss.Tensor": [((log_probs, targets, *lengths), {})],
        "aten::_ctc_loss.Tensor": [((log_probs, targets, *lengths), {})],
        "aten::batch_norm_update_stats": [((image, rand(8), rand(8), 0.1), {})],
        "aten::lstm.data": [lstm()],
        "aten::gru.data": [recurrent(3)],
        "aten::rnn_tanh.data": [recurrent(1)],
        "aten::rnn_relu.data": [recurrent(1)],
        "aten::fbgemm_pack_quantized_matrix": [((whole,), {})],
        "aten::fbgemm_pack_quantized_matrix.KN": [((whole, 64, 64), {})],
        "aten::thnn_conv2d": [((image, kernel, [3, 3]), {})],
        "aten::_slow_conv2d_forward": [((image, kernel, [3, 3], None, [1, 1], [0, 0]), {})],
        "aten::slow_conv3d": [((volume, kernel3, [3, 3, 3]), {})],
        "aten::slow_conv3d_forward": [
            ((volume, kernel3, [3, 3, 3], None, [1, 1, 1], [0, 0, 0]), {})
        ],
        "aten::slow_conv_dilated2d": [((image, kernel, [3, 3]), {})],
        "aten::slow_conv_dilated3d": [((volume, kernel3, [3, 3, 3]), {})],
        "aten::slow_conv_transpose2d": [((image, kernel, [3, 3]), {})],
        "aten::slow_conv_transpose3d": [((volume, kernel3, [3, 3, 3]), {})],
        "aten::mkldnn_convolution": [((image, kernel, None, [0, 0], [1, 1], [1, 1], 1), {})],
        "aten::_convolution_mode": [((image, kernel, None, [1, 1], "same", [1, 1], 1), {})],
        "aten::quantize_per_tensor": [((image, 0.1, 10, torch.quint8), {})],
        "aten::quantize_per_tensor_dynamic": [((image, torch.quint8, False), {})],
        "aten::quantize_per_channel": [((rand(64, 64), scales, zeros, 0, torch.quint8), {})],
        "aten::fake_quantize_per_channel_affine": [
            ((rand(64, 64), scales, zeros.to(torch.int32), 0, 0, 255), {})
        ],
        "aten::_pack_padded_sequence": [((rand(n, 2, 3), torch.tensor([n, n - 5]), False), {})],
        "aten::_pad_packed_sequence": [((rand(items, 3), steps, False, 0.0, n), {})],
        "aten::_pack_padded_sequence_backward": [((rand(items, 3), [n, 2, 3], steps, False), {})],
        "aten::choose_qparams_optimized": [((rand(64, 64), 4096, 200, 0.16, 8), {})],
    }
    # A torch without these libraries has no such operators to call.
    for operator, arguments in (
        ("aten::fbgemm_linear_fp16_weight", fp16),
        ("aten::fbgemm_linear_fp16_weight_fp32_activation", fp16),
        ("aten::fbgemm_linear_int8_weight", int8),
        ("aten::fbgemm_linear_int8_weight_fp32_activation", int8),
    ):
        with suppress(RuntimeError):
            found[operator] = arguments()
    return found
