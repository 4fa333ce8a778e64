"""Errors for arguments that are no dataset of a client: they describe the argument and suggest a conversion."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from fedcore.data.client_dataset import ClientDataset
from fedcore.errors import FedcoreError, TypeMismatch
from fedcore.types import SequenceType, StructType, TensorType, Type, explain, fits, map_tensors, tensor_leaves, to_type


def is_table(value: object) -> bool:
    """Whether the value is a DataFrame of pandas or a similar library."""
    return hasattr(value, "columns") and hasattr(value, "to_numpy") and hasattr(value, "__getitem__")


def is_array(value: object) -> bool:
    """Whether the value is a numpy array or a tensor with rows."""
    return isinstance(value, np.ndarray | tf.Tensor) and len(value.shape) > 0


def are_columns(value: object, type_: SequenceType) -> bool:
    """Whether the value is a collection of columns (one array for each leaf of an element), not of elements."""
    if isinstance(value, Mapping) or is_table(value):
        return True
    if not isinstance(type_.element, StructType):
        return False
    return is_array(value) or (isinstance(value, list | tuple) and bool(value) and all(map(is_array, value)))


def no_dataset(value: object, type_: SequenceType, path: str) -> TypeMismatch:
    """The error for an argument that is no dataset, such as arrays."""
    have, arrays = _as_columns(value)
    if have is None:  # not even columns
        return TypeMismatch(
            f"{path} is {_describe(value)}, but a sequence of type {type_} is wanted: a dataset or a list of elements"
        )
    title = f"{path} is {_describe(value)}, and no dataset"
    columns = f"{path}.to_numpy()" if is_table(value) and is_array(arrays) else path
    columns = f"dict({path})" if isinstance(arrays, Mapping) and is_table(value) else columns
    call = f"fc.data.ClientDataset.from_columns({columns})"
    message = explain(title, SequenceType(have), type_, found=[])
    if fits(have, type_.element):
        return TypeMismatch(f"{message}\n  fix: {call}")
    if fits(type_of_batches(have), type_.element):
        return TypeMismatch(f"{message}\n  fix: {call}.batch(n)")
    message = explain(title, SequenceType(type_of_batches(have)), type_)
    return TypeMismatch(
        f"{message}\n  {call} makes a dataset of its rows; .map() and .batch(n) convert them to that type"
    )


def no_fit(have: Type, want: SequenceType, path: str) -> TypeMismatch:
    """The error for a dataset with elements of another type."""
    text = explain(f"{path} does not fit", SequenceType(have), want)
    return _with_fixes(text, have, want, f"{path} is not batched: put .batch(n) after it", path)


def no_fit_of_clients(have: Type, want: SequenceType, name: str, taker: str) -> TypeMismatch | None:
    """The error for client data that a process does not take; None for those that it takes.

    Args:
        have: the type of an element.
        name: of the argument.
        taker: the user's name of the process.
    """
    if fits(have, want.element):
        return None
    title = f"{name} does not fit the model of {taker}"
    text = explain(title, SequenceType(have), want, have_label=name, want_label="model")
    batch = f"{name} is not batched: {name}.preprocess(lambda dataset: dataset.batch(n))"
    return _with_fixes(text, have, want, batch, name)


def _with_fixes(text: str, have: Type, want: SequenceType, batch: str, path: str) -> TypeMismatch:
    """The error with the fix that the types show, if there is one.

    Args:
        text: the message without a fix.
        have: the type of an element.
        batch: the fix where batches of the elements would fit.
        path: the argument.
    """
    cast = "tf.cast in a .map() of the data; or give the model their type: from_keras_model(…, input_spec=)"
    batches = type_of_batches(have)
    fixes = []
    if fits(batches, want.element):
        fixes = [batch]
    elif _may_be_batch(have) and fits(_row(have), want.element):
        fixes = [f"{path} is batched: leave .batch(n) out, or put .unbatch() after it"]
    elif _lacks_shapes(have, want.element):
        fixes = ["tf.ensure_shape in a .map() of the data, behind what does not tell its shape, as tf.numpy_function"]
    elif _is_castable(have, want.element):
        fixes = [cast]
    elif _is_castable(batches, want.element):
        fixes = [batch, cast]
    return TypeMismatch("\n  fix: ".join([text, *fixes]))


def type_of_batches(type_: Type) -> Type:
    """The type of batches of elements."""
    return map_tensors(lambda t: TensorType(t.dtype, None if t.shape is None else (None, *t.shape)), type_)


def _is_castable(have: Type, want: Type) -> bool:
    """Whether elements differ from the wanted ones in the dtypes of numbers only."""
    dtypes = [t.dtype for t in tensor_leaves(want)]
    if len(dtypes) != len(tensor_leaves(have)) or any(t.dtype.name == "str" for t in tensor_leaves(have)):
        return False
    remaining = iter(dtypes)
    return fits(map_tensors(lambda t: TensorType(next(remaining), t.shape), have), want) and not any(
        dtype.name == "str" for dtype in dtypes
    )


def _lacks_shapes(have: Type, want: Type) -> bool:
    """Whether elements differ from the wanted ones in shapes of unknown rank only."""
    if len(tensor_leaves(have)) != len(tensor_leaves(want)):
        return False
    shapes = [
        w.shape if h.shape is None else h.shape for h, w in zip(tensor_leaves(have), tensor_leaves(want), strict=True)
    ]
    remaining = iter(shapes)
    return fits(map_tensors(lambda t: TensorType(t.dtype, next(remaining)), have), want)


def _may_be_batch(type_: Type) -> bool:
    """Whether each tensor of an element has a first axis."""
    return all(t.shape for t in tensor_leaves(type_))


def _row(type_: Type) -> Type:
    """The type of an element of batches; see `type_of_batches`."""
    return map_tensors(lambda t: TensorType(t.dtype, (t.shape or (None,))[1:]), type_)


def _as_columns(value: Any) -> tuple[Type | None, object]:
    """The type of a row, and the arrays; (None, None) if the value is not a collection of columns."""
    forms = [dict(value.items()), value.to_numpy()] if is_table(value) else [value]
    if not (is_table(value) or isinstance(value, Mapping | list | tuple) or is_array(value)):
        return None, None
    for arrays in forms:
        try:
            return ClientDataset.from_columns(arrays).element_type, arrays
        except (FedcoreError, ValueError, TypeError):
            continue
    return None, None


def _describe(value: Any) -> str:
    """The value in a few words, for a message."""
    if is_table(value):
        return f"a {type(value).__name__} of {len(value):,} rows"
    if isinstance(value, Mapping):
        return "a dict of arrays" if value and all(map(is_array, value.values())) else f"a {type(value).__name__}"
    if is_array(value):
        return f"an array of type {to_type(value)}"
    if isinstance(value, list | tuple):
        kind = "an (X, y) pair" if len(value) == 2 else f"a {type(value).__name__}"
        return f"{kind} of arrays"
    text = repr(value)
    return text if len(text) <= 80 and "\n" not in text else f"of the Python type {type(value).__name__}"
