"""A library that takes tensors by torch's table of C functions for DLPack, as tvm_ffi does, and
keeps the table's address from when it was loaded. In Python, so that it can be read."""

import ctypes
from typing import Any

import numpy as np
import torch
from torch import Tensor


class _View(ctypes.Structure):
    """DLTensor of dlpack.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint8 * 4),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Table(ctypes.Structure):
    """DLPackExchangeAPI of dlpack.h, 1.2 and 1.3. Python's lock is held in calls, and an error that
    one sets is raised."""

    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("before", ctypes.c_void_p),
        ("make", ctypes.c_void_p),
        ("managed", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)),
        ("adopt", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)),
        ("view", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(_View))),
        ("stream", ctypes.c_void_p),
    )


def _table() -> _Table | None:
    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return None
    open_capsule = ctypes.pythonapi.PyCapsule_GetPointer
    open_capsule.restype = ctypes.c_void_p
    open_capsule.argtypes = (ctypes.py_object, ctypes.c_char_p)
    return _Table.from_address(open_capsule(capsule, b"dlpack_exchange_api"))


TABLE = _table()
"""None where torch has none."""


def view(tensor: Tensor) -> np.ndarray[Any, Any]:
    """The memory of a tensor of contiguous floats, by the function for what is used at once."""
    assert TABLE is not None
    seen = _View()
    TABLE.view(tensor, seen)
    address = seen.data + seen.byte_offset
    return np.ctypeslib.as_array((ctypes.c_float * tensor.numel()).from_address(address))


def take(tensor: Tensor) -> Tensor:
    """A second tensor over the memory, by the functions for what is kept."""
    assert TABLE is not None
    kept, made = ctypes.c_void_p(), ctypes.py_object()
    TABLE.managed(tensor, ctypes.addressof(kept))
    TABLE.adopt(kept, ctypes.addressof(made))
    assert isinstance(made.value, Tensor)
    return made.value
