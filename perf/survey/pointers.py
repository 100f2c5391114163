"""By which ways does a tensor's memory leave torch, or is it written, without an operator? And does
a scope see each?

Each way is tried on four tensors: a parameter, an input, a tensor that the scope made, and one that
it made and evicted. Before, recipes read the tensor; the way reads it or writes it; then what the
recipes made is evicted, and read again. Right is what eager shows with the same way. A cell says
`exact` where all bytes are eager's, and whether the tensor can be evicted afterwards, as a
parameter and an input never can; `other bits`; or the error.

    python perf/survey/pointers.py --out perf/results/survey/pointers.txt
"""

# mypy: allow-untyped-calls, disable-error-code="attr-defined"
# Torch has no types for many of these.

import argparse
import copy
import ctypes
import io
import pickle
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

sys.path.append(str(Path(__file__).parents[1] / "support"))
sys.path.append(str(Path(__file__).parents[2] / "tests/support"))

from measurement import origin

import dtr_alloc

ITEMS = 1 << 10
KINDS = ("parameter", "input", "made", "evicted")

Way = Callable[[Tensor, Any], Any]
"""Reads or writes the tensor. Given what was taken before the scope, too; returns what it read."""


# ---- How memory is written once it is there


def _write(array: Any) -> None:
    array[:] = 7


def _write_at(address: int) -> None:
    assert address
    _write(np.ctypeslib.as_array((ctypes.c_float * ITEMS).from_address(address)))


def _bytes(storage: Any) -> bytes:
    return bytes(storage.tolist())


def _read_at(address: int) -> bytes:
    return ctypes.string_at(address, 4 * ITEMS)


def _from_file(storage: torch.UntypedStorage) -> None:
    with tempfile.NamedTemporaryFile() as file:
        torch.full((4 * ITEMS,), 1, dtype=torch.uint8).untyped_storage()._write_file(
            file, True, True, 1
        )
        file.seek(0)
        storage._set_from_file(file, 0, True, 1)


def _to_file(storage: torch.UntypedStorage) -> bytes:
    with tempfile.NamedTemporaryFile() as file:
        storage._write_file(file, False, True, 1)
        file.seek(0)
        return file.read()


def _saved(tensor: Tensor) -> bytes:
    buffer = io.BytesIO()
    torch.save(tensor, buffer)
    buffer.seek(0)
    return pickle.dumps(torch.load(buffer).tolist())


def _rebuilt(reduced: Any) -> Any:
    return reduced[0](*reduced[1])


def _written(tensor: Tensor, write: Callable[[Tensor], object]) -> Tensor:
    write(tensor)
    return tensor


class _Module(nn.Module):
    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self.register_buffer("held", tensor)

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(self.held, Tensor)
        return x + self.held


def _scripted(tensor: Tensor) -> bytes:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(_Module(tensor)), buffer)
    buffer.seek(0)
    return pickle.dumps(next(torch.jit.load(buffer).buffers()).tolist())


def _swapped(tensor: Tensor) -> Tensor:
    other = torch.zeros(ITEMS)
    torch.utils.swap_tensors(tensor, other)
    other.numpy()[:] = 7
    return other


def _exchanged(tensor: Tensor, kept: bool) -> None:
    from exchange_table import take, view  # type: ignore[import-not-found]

    _write(take(tensor).numpy() if kept else view(tensor))


def _by_tvm_ffi(tensor: Tensor) -> None:
    import tvm_ffi

    _write(np.from_dlpack(tvm_ffi.from_dlpack(tensor)))


# ---- The ways

BASE: Any = torch._C.TensorBase

TENSOR: dict[str, Way] = {
    "numpy": lambda t, _: _write(t.numpy()),
    "__array__": lambda t, _: _write(np.asarray(t)),
    "__array__ of a list": lambda t, _: np.array([t, t]).tobytes(),
    "data_ptr": lambda t, _: _write_at(t.data_ptr()),
    "const_data_ptr": lambda t, _: _read_at(t.const_data_ptr()),
    "mutable_data_ptr": lambda t, _: _write_at(t.mutable_data_ptr()),
    "untyped_storage": lambda t, _: _write_at(t.untyped_storage().data_ptr()),
    "storage": lambda t, _: _write_at(t.storage().data_ptr()),
    "_typed_storage": lambda t, _: _write_at(t._typed_storage()._data_ptr()),
    "__dlpack__": lambda t, _: _write(np.from_dlpack(t)),
    "__reduce_ex__": lambda t, _: pickle.loads(pickle.dumps(t)),
    "_reduce_ex_internal": lambda t, _: _rebuilt(t._reduce_ex_internal(2)),
    "__deepcopy__": lambda t, _: copy.deepcopy(t),
    "__setstate__": lambda t, _: pickle.loads(pickle.dumps(t)).clone(),
    "share_memory_": lambda t, _: _write(t.share_memory_().numpy()),
    "is_shared": lambda t, _: t.is_shared(),
    "tolist": lambda t, _: pickle.dumps(t.tolist()),
    "apply_": lambda t, _: _written(t, lambda x: x.apply_(lambda v: v + 1)),
    "map_": lambda t, other: _written(t, lambda x: x.map_(x, lambda v, w: v + w)),
    "map2_": lambda t, other: _written(t, lambda x: x.map2_(x, x, lambda v, w, u: v + w + u)),
    "new": lambda t, _: t.new(t.untyped_storage())[:9].clone(),
    "data": lambda t, _: _written(t.data, lambda x: x.mul_(2)),
    "data = another": lambda t, _: setattr(t, "data", torch.ones(ITEMS)),
    "set_ to its storage": lambda t, _: torch.empty(0).set_(t.untyped_storage()).mul_(2),
    "set_ to another's": lambda t, _: t.set_(torch.ones(ITEMS).untyped_storage()),
    "as_subclass": lambda t, _: _write(t.as_subclass(nn.Parameter).detach().numpy()),
    "__dlpack_c_exchange_api__, a view": lambda t, _: _exchanged(t, kept=False),
    "__dlpack_c_exchange_api__, kept": lambda t, _: _exchanged(t, kept=True),
}

STORAGE: dict[str, Callable[[Any], Any]] = {
    "data_ptr": lambda s: _write_at(s.data_ptr()),
    "fill_": lambda s: s.fill_(1) and None,
    "copy_": lambda s: s.copy_(torch.UntypedStorage(s.nbytes()).fill_(1)) and None,
    "__setitem__": lambda s: s.__setitem__(5, 1),
    "__setitem__ of a slice": lambda s: s.__setitem__(slice(0, 400), 1),
    "__getitem__": lambda s: (s[5], _bytes(s[:8])),
    "__iter__": lambda s: bytes(x for x, _ in zip(s, range(99), strict=False)),
    "tolist": _bytes,
    "clone": lambda s: _bytes(s.clone()),
    "__copy__": lambda s: _bytes(copy.copy(s)),
    "__deepcopy__": lambda s: _bytes(copy.deepcopy(s)),
    "float": lambda s: s.float().tolist()[:9],
    "type": lambda s: s.type(),
    "to": lambda s: _bytes(s.to(device="cpu")),
    "cpu": lambda s: _bytes(s.cpu()),
    "byteswap": lambda s: s.byteswap(torch.float32),
    "_write_file": _to_file,
    "_set_from_file": _from_file,
    "share_memory_": lambda s: _write_at(s.share_memory_().data_ptr()),
    "_share_fd_cpu_": lambda s: len(s._share_fd_cpu_()),
    "_share_filename_cpu_": lambda s: len(s._share_filename_cpu_()),
    "is_shared": lambda s: s.is_shared(),
    "is_pinned": lambda s: s.is_pinned(),
    "resize_": lambda s: s.resize_(8 * ITEMS).resize_(4 * ITEMS) and None,
    "new": lambda s: s.new().nbytes(),
    "_swap_data_ptr_": lambda s: s._swap_data_ptr_(torch.UntypedStorage(s.nbytes()).fill_(1)),
    "_weak_ref": lambda s: s._free_weak_ref(s._weak_ref()),
}

FUNCTIONS: dict[str, Way] = {
    "numpy.from_dlpack": lambda t, _: _write(np.from_dlpack(t)),
    "torch.from_dlpack": lambda t, _: torch.from_dlpack(t).mul_(2),
    "torch.to_dlpack": lambda t, _: torch.from_dlpack(torch.to_dlpack(t)).mul_(2),
    "torch.utils.dlpack.to_dlpack": lambda t, _: torch.from_dlpack(
        torch.utils.dlpack.to_dlpack(t)
    ).mul_(2),
    "torch._C._to_dlpack": lambda t, _: torch.from_dlpack(torch._C._to_dlpack(t)).mul_(2),
    "torch._C._to_dlpack_versioned": lambda t, _: torch.from_dlpack(
        torch._C._to_dlpack_versioned(t)
    ).mul_(2),
    "tvm_ffi.from_dlpack": lambda t, _: _by_tvm_ffi(t),
    "torch.save": lambda t, _: _saved(t),
    "torch.jit.save": lambda t, _: _scripted(t),
    "copy.copy": lambda t, _: _written(copy.copy(t), lambda x: x.mul_(2)),
    "copy.deepcopy": lambda t, _: copy.deepcopy(t),
    "pickle": lambda t, _: pickle.loads(pickle.dumps(t)),
    "torch.multiprocessing": lambda t, _: len(ForkingPickler.dumps(t)),
    "torch.utils.swap_tensors": lambda t, _: _swapped(t),
    "torch.tensor of a list": lambda t, _: torch.tensor([t[0], t[1]]),
    "torch.asarray": lambda t, _: torch.asarray(t).mul_(2),
    "print": lambda t, _: repr(t),
    "memoryview": lambda t, _: memoryview(t),  # type: ignore[arg-type]
    "torch.frombuffer": lambda t, _: torch.frombuffer(t, dtype=torch.float32),
}

# Past the methods of torch.Tensor, which are those that are watched.
BELOW: dict[str, Way] = {
    "numpy": lambda t, _: _write(BASE.numpy(t)),
    "data_ptr": lambda t, _: _write_at(BASE.data_ptr(t)),
    "untyped_storage": lambda t, _: _write_at(BASE.untyped_storage(t).data_ptr()),
    "tolist": lambda t, _: pickle.dumps(BASE.tolist(t)),
    "apply_": lambda t, _: BASE.apply_(t, lambda v: v + 1) is None,
}

# What was taken of a parameter or an input before the scope began, and is used in it.
BEFORE: dict[str, tuple[Callable[[Tensor], Any], Way]] = {
    "a NumPy array is written": (lambda t: t.numpy(), lambda t, array: _write(array)),
    "an address is written": (lambda t: t.data_ptr(), lambda t, address: _write_at(address)),
    **{
        f"UntypedStorage.{name}": (
            lambda t: t.untyped_storage(),
            lambda t, storage, use=use: use(storage),  # type: ignore[misc]
        )
        for name, use in STORAGE.items()
    },
}


def _nothing(_: Tensor) -> None:
    return None


def ways() -> Iterator[tuple[str, Callable[[Tensor], Any], Way, tuple[str, ...]]]:
    """Each with what is taken before the scope, and the tensors to try it on."""
    for name, way in TENSOR.items():
        yield f"Tensor.{name}", _nothing, way, KINDS
    for name, use in STORAGE.items():
        yield (
            f"UntypedStorage.{name}",
            _nothing,
            lambda t, _, use=use: use(t.untyped_storage()),  # type: ignore[misc]
            KINDS,
        )
    for name, way in FUNCTIONS.items():
        yield name, _nothing, way, KINDS
    for name, way in BELOW.items():
        yield f"torch._C.TensorBase.{name}", _nothing, way, KINDS
    for name, (take, way) in BEFORE.items():
        yield f"from before the scope, {name}", take, way, KINDS[:2]


# ---- What is none of them

# Methods that are operators by another name, or call some; and those that tell of a tensor, or of
# memory that it will have, and show none.
OTHERS_OF_TENSOR = """
H T __annotations__ __array_priority__ __array_wrap__ __bool__ __complex__
__cuda_array_interface__ __delitem__ __dict__ __dlpack_device__ __float__ __iadd__ __idiv__
__ifloordiv__ __imod__ __imul__ __index__ __int__ __invert__ __ipow__ __isub__ __iter__
__itruediv__ __long__ __mod__ __module__ __pos__ __radd__ __rdiv__ __reversed__ __rfloordiv__
__rlshift__ __rmatmul__ __rmod__ __rmul__ __ror__ __rpow__ __rrshift__ __rtruediv__ __rxor__
__setitem__ __slotnames__ __torch_dispatch__ __torch_function__ __truediv__ __weakref__
_backward_hooks _base _cdata _clear_non_serializable_cached_data _dtensor__new__ _fix_weakref
_grad_fn _has_grad_dtype_override _has_symbolic_sizes_strides _is_view _make_subclass
_make_wrapper_subclass _post_accumulate_grad_hooks _python_dispatch _rev_view_func_unsafe
_update_names _use_count _view_func _view_func_unsafe align_as align_to bfloat16 bool byte cdouble
cfloat char cholesky dim_order double dtype eig float grad_dtype grad_fn half has_names int ipu
is_cpu is_cuda is_ipu is_maia is_meta is_mkldnn is_mps is_mtia is_nested is_quantized is_sparse
is_sparse_csr is_vulkan is_xla is_xpu itemsize layout long lstsq lu module_load mtia name names
nbytes ndim ndimension nelement new_tensor qr refine_names register_hook
register_post_accumulate_grad_hook reinforce rename rename_ shape short solve storage_type symeig
to_sparse_coo type unique volatile xpu
""".split()  # noqa: SIM905

# Those that make a storage, or say something of it; and those for a device's storages.
OTHERS_OF_STORAGE = """
__annotations__ __delitem__ __dict__ __len__ __module__ __slotnames__ __weakref__ _byteswap _cdata
_checkpoint_offset _expired _fake_device _fix_weakref _free_weak_ref _get_filename _get_shared_fd
_new_shared _new_shared_cuda _new_shared_fd_cpu _new_shared_filename_cpu _new_using_fd_cpu
_new_using_filename_cpu _new_with_file _new_with_weak_ptr _release_ipc_counter
_release_ipc_counter_cuda _resize_with_addr_ _set_cdata _share_cuda_ _shared_decref _shared_incref
_to bfloat16 bool byte char complex_double complex_float cuda device double element_size filename
float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz from_buffer from_file get_device half
hpu int is_cuda is_hpu is_sparse is_sparse_csr long mps nbytes pin_memory resizable short size
untyped
""".split()  # noqa: SIM905


def unknown() -> list[str]:
    """Methods that nobody has looked at: neither operators, nor ways, nor among the others."""
    schemas = torch._C._jit_get_all_schemas()
    operators = {one.name.removeprefix("aten::") for one in schemas}

    def is_operator(name: str) -> bool:
        return not operators.isdisjoint({name, f"{name}_", name.rstrip("_"), name.strip("_")})

    found = []
    looked_at = (
        (torch.Tensor, {*TENSOR, *OTHERS_OF_TENSOR}),
        (torch.UntypedStorage, {*STORAGE, *OTHERS_OF_STORAGE}),
    )
    for owner, ways_and_others in looked_at:
        known = {name.split(",")[0].split(" ")[0] for name in ways_and_others} | {*dir(object)}
        for name in sorted({*dir(owner)} - known):
            if owner is torch.UntypedStorage or not is_operator(name):
                found.append(f"{owner.__name__}.{name}")
    return found


# ---- Trying one


def _shown(thing: object) -> object:
    return thing.detach().clone().numpy().tobytes() if isinstance(thing, Tensor) else thing


def _outcome(take: Callable[[Tensor], Any], way: Way, kind: str, scope: Any) -> tuple[Any, str]:
    """What the program shows, and what became of the tensor."""
    torch.manual_seed(0)
    outside = torch.rand(ITEMS)
    taken = take(outside)
    with scope, torch.no_grad():
        t = outside if kind in KINDS[:2] else outside.sin()
        if kind == "parameter":
            t = nn.Parameter(t)
        t = t.detach()
        read = [t * 2, t * 3, t.cos()]
        if kind == "evicted":
            dtr_alloc.evict(t)
        seen = way(t, taken)
        for one in read:
            dtr_alloc.evict(one)
        evictable = kind not in KINDS[:2] and dtr_alloc.evict(t)
        shown = [_shown(one) for one in (seen, t, *read, t.tan())]
        del seen, read, t, taken
    return shown, "can be evicted" if evictable else "stays"


def cell(take: Callable[[Tensor], Any], way: Way, kind: str) -> str:
    """What became of one tensor."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            right, _ = _outcome(take, way, kind, nullcontext())
        except Exception as error:  # Whatever torch says of what it does not have.
            return f"eager: {type(error).__name__}"
        try:
            found, became = _outcome(take, way, kind, dtr_alloc.rematerialize("64MiB"))
        except Exception as error:
            return f"{type(error).__name__}: {str(error).splitlines()[0][:23]}"
    return f"exact, {became}" if found == right else "other bits"


def table(rows: dict[str, list[str]]) -> str:
    """One line a way."""
    width = max(map(len, rows))
    lines = [f"{'':{width}}  " + "  ".join(f"{kind:<24}" for kind in KINDS)]
    lines += [
        f"{name:{width}}  " + "  ".join(f"{c:<24}" for c in row) for name, row in rows.items()
    ]
    return "\n".join(line.rstrip() for line in lines)


def survey() -> dict[str, list[str]]:
    """All ways, with a cell for each kind of tensor."""
    return {name: [cell(take, way, kind) for kind in kinds] for name, take, way, kinds in ways()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    text = f"{origin()}\n\n{table(survey())}\n"
    text += f"\nnot looked at: {', '.join(unknown()) or 'none'}\n"
    print(text, end="")
    if asked.out:
        asked.out.write_text(text)


if __name__ == "__main__":
    main()
