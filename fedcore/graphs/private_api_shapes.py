"""Calls TensorFlow's shape functions through its C API; a part of `private_api`.

`TFE_InferShapes` runs the shape function of an operation on the shapes of its operands, and on the values of those that
are known. It adds nothing to a graph, and runs no kernel.
"""

import ctypes
import functools
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.eager import context

Shape = tuple[int, ...] | None
"""The sizes of a tensor, -1 for an unknown one; None for an unknown rank."""


class _ShapeAndType(ctypes.Structure):
    _fields_ = [("num_dims", ctypes.c_int), ("dims", ctypes.POINTER(ctypes.c_int64)), ("dtype", ctypes.c_int)]


class _ShapeAndTypeList(ctypes.Structure):
    _fields_ = [("num_items", ctypes.c_int), ("items", ctypes.POINTER(_ShapeAndType))]


_Shapes = ctypes.POINTER(_ShapeAndTypeList)
_RESULTS = {  # by C function the type of its result; c_void_p is a pointer to an object of TensorFlow
    "TFE_NewOp": ctypes.c_void_p,
    "TF_NewStatus": ctypes.c_void_p,
    "TF_GetCode": ctypes.c_int,
    "TF_Message": ctypes.c_char_p,
    "TF_AllocateTensor": ctypes.c_void_p,
    "TF_TensorData": ctypes.c_void_p,
    "TF_NewShapeAndTypeList": _Shapes,
    "TFE_OpSetAttrValueProto": None,
    "TFE_InferShapes": None,
    "TFE_DeleteOp": None,
    "TF_DeleteStatus": None,
    "TF_DeleteTensor": None,
    "TF_DeleteShapeAndTypeList": None,
    "TF_ShapeAndTypeListSetShape": None,
    "TF_ShapeAndTypeListSetUnknownShape": None,
}


@functools.cache
def _library() -> ctypes.CDLL:
    """The functions of TensorFlow's C API; those of the framework are visible through the library that links it.

    Raises:
        AttributeError: this TensorFlow lacks the library or one of the functions.
    """
    directory = Path(tf.__file__).parent
    paths = sorted(directory.glob("libtensorflow_cc.*2*"))
    if not paths:
        raise AttributeError(f"{directory} has no libtensorflow_cc")
    library = ctypes.CDLL(str(paths[0]))
    for name, result in _RESULTS.items():
        getattr(library, name).restype = result
    return library


def _check(status: ctypes.c_void_p) -> None:
    """Raises a ValueError with TensorFlow's message if a TF_Status says that a call failed."""
    library = _library()
    if library.TF_GetCode(status):
        raise ValueError(library.TF_Message(status).decode(errors="replace"))


class _Operation:
    """An operation with attributes and without operands, as TensorFlow's eager runtime makes it."""

    def __init__(self, op: str, attributes: Sequence[tuple[str, bytes]]) -> None:
        library = _library()
        self._status = ctypes.c_void_p(library.TF_NewStatus())
        weakref.finalize(self, library.TF_DeleteStatus, self._status).atexit = False
        get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
        get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        eager_context = context.context()
        eager_context.ensure_initialized()
        handle = ctypes.c_void_p(get_pointer(eager_context._handle, None))
        self._operation = ctypes.c_void_p(library.TFE_NewOp(handle, op.encode(), self._status))
        _check(self._status)
        weakref.finalize(self, library.TFE_DeleteOp, self._operation).atexit = False
        for name, value in attributes:
            library.TFE_OpSetAttrValueProto(
                self._operation, name.encode(), value, ctypes.c_size_t(len(value)), self._status
            )
            _check(self._status)
        self._lock = threading.Lock()

    def infer(self, shapes: Sequence[Shape], values: Sequence[np.ndarray | None]) -> list[Shape]:
        """The shapes of the results; see `private_api.infer_shapes`."""
        library = _library()
        input_shapes = library.TF_NewShapeAndTypeList(ctypes.c_int(len(shapes)))
        tensors = (ctypes.c_void_p * max(1, len(values)))(*map(_tensor, values))
        results = _Shapes()
        try:
            for i, shape in enumerate(shapes):
                if shape is None:
                    library.TF_ShapeAndTypeListSetUnknownShape(input_shapes, ctypes.c_int(i))
                else:
                    sizes = (ctypes.c_int64 * max(1, len(shape)))(*shape)
                    library.TF_ShapeAndTypeListSetShape(input_shapes, ctypes.c_int(i), sizes, ctypes.c_int(len(shape)))
            with self._lock:
                library.TFE_InferShapes(
                    self._operation, input_shapes, tensors, None, None, ctypes.byref(results), None, self._status
                )
                _check(self._status)
            items = [results.contents.items[i] for i in range(results.contents.num_items)]
            return [None if s.num_dims < 0 else tuple(s.dims[: s.num_dims]) for s in items]
        finally:
            library.TF_DeleteShapeAndTypeList(input_shapes)
            if results:
                library.TF_DeleteShapeAndTypeList(results)
            for tensor in tensors:
                if tensor:
                    library.TF_DeleteTensor(ctypes.c_void_p(tensor))


def _tensor(value: np.ndarray | None) -> int | None:
    """The address of a new TF_Tensor with the numbers, which the caller deletes; None of None."""
    if value is None:
        return None
    library = _library()
    value = np.asarray(value, order="C")
    sizes = (ctypes.c_int64 * max(1, value.ndim))(*value.shape)
    dtype = ctypes.c_int(tf.as_dtype(value.dtype).as_datatype_enum)
    tensor = library.TF_AllocateTensor(dtype, sizes, ctypes.c_int(value.ndim), ctypes.c_size_t(value.nbytes))
    ctypes.memmove(library.TF_TensorData(ctypes.c_void_p(tensor)), value.ctypes.data, value.nbytes)
    return tensor


@functools.lru_cache(4096)
def _operation(op: str, attributes: tuple[tuple[str, bytes], ...]) -> _Operation:
    return _Operation(op, attributes)


def inferred_shapes(
    op: str,
    attributes: tuple[tuple[str, bytes], ...],
    shapes: Sequence[Shape],
    values: Sequence[np.ndarray | None],
) -> list[Shape]:
    """See `private_api.infer_shapes`."""
    return _operation(op, attributes).infer(shapes, values)


def encode_attribute(value: Any, kind: str) -> bytes:
    """The serialized AttrValue of an attribute.

    Args:
        kind: the attribute's type in the operation's definition, such as `int`, `type` or `list(shape)`.
    """
    return _proto(value, kind).SerializeToString()


def _proto(value: Any, kind: str) -> attr_value_pb2.AttrValue:
    """The AttrValue of an attribute; a list is joined of the AttrValues of its parts."""
    if kind.startswith("list("):
        parts = [_proto(v, kind[5:-1]) for v in value]
        result = attr_value_pb2.AttrValue()
        result.list.SetInParent()
        for part in parts:
            field = part.WhichOneof("value")
            target = getattr(result.list, field)
            if field in ("tensor", "shape", "func"):
                target.add().CopyFrom(getattr(part, field))
            else:
                target.append(getattr(part, field))
        return result
    if kind == "type":
        return attr_value_pb2.AttrValue(type=tf.as_dtype(value).as_datatype_enum)
    if kind == "shape":
        return attr_value_pb2.AttrValue(shape=tf.TensorShape(value).as_proto())
    if kind == "string":
        return attr_value_pb2.AttrValue(s=value.encode() if isinstance(value, str) else value)
    field = {"int": "i", "float": "f", "bool": "b", "tensor": "tensor", "func": "func"}[kind]
    return attr_value_pb2.AttrValue(**{field: value})
