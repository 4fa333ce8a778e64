"""Traces a user's Python function, with arguments and results in Python containers, to a graph."""

from collections.abc import Callable, Iterable
from typing import Any

import attrs
import tensorflow as tf

from fedcore.errors import TracingError, brief
from fedcore.graphs import private_api
from fedcore.graphs.capture.graph_capture import TracedGraph, trace_leaves
from fedcore.graphs.frontend.control_flow import convert_function
from fedcore.graphs.graphdef.form.sequence_operands import IndexedSequence
from fedcore.graphs.sequences.layout import Sequence
from fedcore.graphs.sequences.sequence_results import from_dataset, result_tensors
from fedcore.graphs.sequences.symbolic_dataset import SymbolicDataset, mapped_element
from fedcore.graphs.tensors.specs import tensor_type
from fedcore.graphs.tensors.values import to_python, unflatten
from fedcore.intrinsics.rows import in_columns, why_no_columns
from fedcore.ir.locations import describe
from fedcore.ir.structural import struct_type
from fedcore.types import (
    SequenceType,
    StructType,
    Type,
    check_nesting,
    contains,
    elements_and_class,
    leaves,
    not_dense,
    to_type,
)


def trace_function(fn: Callable, parameter: Type | None, *, spread: bool = False, as_map: bool = False) -> TracedGraph:
    """The graph of `fn` for one type of parameter.

    Args:
        fn: takes tensors in the containers that the type names, and returns tensors and sequences in containers.
        spread: the elements of the parameter, a struct, are passed as separate arguments.
        as_map: `fn` is called as a map of `tf.data` calls its function: a struct without names is passed as separate
            arguments, and the result becomes an element (`mapped_element`).
    Raises:
        TracingError: fn returns None, uses resources of this process, or has a constant of 2 GiB or more.
    """
    called = _convert(fn)
    returned: list[Type] = []

    def out(result: Any) -> tuple[Type, list]:
        """The type of the graph's result and its tensors, in which sequences are columns."""
        type_, leaf_values = type_and_leaves(result, fn)
        returned.append(type_)
        return in_columns(type_), result_tensors(unflatten(leaf_values, type_), type_)

    def body(arguments: list, seed: tf.Tensor) -> tuple[Type, list]:
        """Runs the user's function in the trace; adds a fix to errors of TensorFlow that have one."""
        try:
            return out(run(arguments))
        except TypeError as error:
            if SymbolicDataset.__name__ not in str(error):
                raise
            raise TracingError(
                f"{describe(fn)} gives a sequence of its parameter to a function that takes a tf.data.Dataset only: "
                f"give it .real() of the sequence. ({error})"
            ) from None
        except ValueError as error:
            if "larger than 2GB" not in str(error):
                raise
            raise TracingError(
                f"{describe(fn)} has a constant of 2 GiB or more, and a graph has less: its code is one message\n"
                "  fix: give the array as an argument; to clients, fc.federated_broadcast(fc.federated_value(array, "
                "fc.SERVER)) sends it once, as it does frozen weights of a model"
            ) from None

    def run(arguments: list) -> Any:
        """The result of the user's function, called with the leaves of the parameter in their containers."""
        if parameter is None:
            return called()
        user_leaves = [as_user_sees(x, leaf) for x, (_, leaf) in zip(arguments, leaves(parameter), strict=True)]
        value = to_python(unflatten(user_leaves, parameter), parameter)
        if spread:
            return called(*(value.values() if isinstance(value, dict) else value))
        return mapped_element(called, value) if as_map else called(value)

    traced = trace_leaves(body, parameter, describe=describe(fn))
    has_sequence = contains(returned[-1], lambda t: isinstance(t, SequenceType))
    return attrs.evolve(traced, returns=returned[-1]) if has_sequence else traced


def as_user_sees(value: tf.Tensor | IndexedSequence, type_: Type) -> tf.Tensor | SymbolicDataset:
    """A leaf for the user's function: a sequence as a `SymbolicDataset`, a tensor as it is."""
    if not isinstance(type_, SequenceType):
        return value
    return SymbolicDataset.of(value, type_.element, _convert)


def _convert(fn: Callable) -> Callable:
    """The function with its control flow converted for a graph; of a `tf.function` the Python function inside."""
    return convert_function(getattr(fn, "python_function", fn))


def _in_the_trace(call: Callable) -> Callable:
    """Runs a `tf.function` that returns a sequence as a part of the trace: a graph function returns tensors only."""

    def call_in_trace(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return call(self, *args, **kwargs)
        except TypeError as error:
            if f"return value of type {SymbolicDataset.__name__}" not in str(error):
                raise
            return _convert(self.python_function)(*args, **kwargs)

    return call_in_trace


private_api.replace_function_call(_in_the_trace)


def type_and_leaves(value: Any, fn: Callable) -> tuple[Type, list[tf.Tensor]]:
    """The type and the leaves of a function's result; a dataset becomes a `Sequence`.

    Args:
        fn: the function, for errors.
    Raises:
        TracingError: the result is None, or a part of it is neither a tensor nor a container.
        InvalidValue: the containers nest too deep, or have too many parts.
    """
    check_nesting(value)
    return _type_and_leaves(value, fn)


def _type_and_leaves(value: Any, fn: Callable) -> tuple[Type, list[tf.Tensor]]:
    if isinstance(value, SymbolicDataset | tf.data.Dataset):
        return _sequence(value, fn)
    if value is None:
        raise TracingError(f"{describe(fn)} returns None; a computation returns a value")
    container = elements_and_class(value)
    if container is not None:
        return _struct(*container, fn)
    if isinstance(value, tf.SparseTensor):
        return _struct([(n, getattr(value, n)) for n in ("indices", "values", "dense_shape")], tf.SparseTensor, fn)
    problem = not_dense(value)
    if problem is not None:
        raise TracingError(f"{describe(fn)} returns what is no tensor: {problem}")
    try:
        tensor = tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise TracingError(f"{describe(fn)} returns {brief(value)}, which is no tensor: {error}") from None
    return tensor_type(tensor), [tensor]


def _sequence(value: SymbolicDataset | tf.data.Dataset, fn: Callable) -> tuple[Type, list]:
    """The type of a sequence that a function returns, and the sequence as the only leaf."""
    element = to_type(value.element_spec)
    problem = why_no_columns(element)
    if problem is not None:
        raise TracingError(f"{describe(fn)} returns a sequence, which goes out in columns: {problem}")
    if isinstance(value, SymbolicDataset):
        dataset = value.with_samples()
        sequence = Sequence(dataset.count, lambda i: unflatten(type_and_leaves(dataset.element(i), fn)[1], element))
    else:
        sequence = from_dataset(value, element)
    return SequenceType(element), [sequence]


def _struct(
    pairs: Iterable[tuple[str | None, Any]], container: type | None, fn: Callable
) -> tuple[StructType, list[tf.Tensor]]:
    parts = [(name, *_type_and_leaves(part, fn)) for name, part in pairs]
    return struct_type([(n, t) for n, t, _ in parts], container), [leaf for _, _, ls in parts for leaf in ls]
