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
    converted = _convert(fn)
    result_types: list[Type] = []  # gets the type of the user's result, whose sequences the graph returns as columns

    def type_and_tensors(result: Any) -> tuple[Type, list]:
        """The type of the graph's result and its tensors, in which sequences are columns."""
        type_, leaf_values = type_and_leaves(result, f"{describe(fn)} returns")
        result_types.append(type_)
        return in_columns(type_), result_tensors(unflatten(leaf_values, type_), type_)

    def body(arguments: list, seed: tf.Tensor) -> tuple[Type, list]:
        """Runs the user's function in the trace; adds a fix to errors of TensorFlow that have one."""
        try:
            return type_and_tensors(run(arguments))
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
            return converted()
        user_leaves = [as_user_sees(x, leaf) for x, (_, leaf) in zip(arguments, leaves(parameter), strict=True)]
        value = to_python(unflatten(user_leaves, parameter), parameter)
        if spread:
            return converted(*(value.values() if isinstance(value, dict) else value))
        return mapped_element(converted, value) if as_map else converted(value)

    traced = trace_leaves(body, parameter, describe=describe(fn))
    has_sequence = contains(result_types[-1], lambda t: isinstance(t, SequenceType))
    return attrs.evolve(traced, returns=result_types[-1]) if has_sequence else traced


def as_user_sees(value: tf.Tensor | IndexedSequence, type_: Type) -> tf.Tensor | SymbolicDataset:
    """A leaf for the user's function: a sequence as a `SymbolicDataset`, a tensor as it is."""
    if not isinstance(type_, SequenceType):
        return value
    return SymbolicDataset.of(value, type_.element, _convert)


def _convert(fn: Callable) -> Callable:
    """The function with its control flow converted for a graph; of a `tf.function` the Python function inside."""
    return convert_function(getattr(fn, "python_function", fn))


def _in_the_trace(call: Callable) -> Callable:
    """Makes the call of a `tf.function` that returns a sequence a part of the trace: graph functions return tensors.

    Args:
        call: TensorFlow's own.
    """

    def call_in_trace(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return call(self, *args, **kwargs)
        except TypeError as error:
            if f"return value of type {SymbolicDataset.__name__}" not in str(error):
                raise
            return _convert(self.python_function)(*args, **kwargs)

    return call_in_trace


private_api.replace_function_call(_in_the_trace)


def type_and_leaves(value: Any, origin: str) -> tuple[Type, list[tf.Tensor]]:
    """The type and the leaves of a Python value in a trace; a dataset becomes a `Sequence`.

    Args:
        origin: where the value comes from: the words before it in an error, such as `f` (train.py:3) returns.
    Raises:
        TracingError: the value is None, or a part of it is neither a tensor nor a container.
        InvalidValue: the containers nest too deep, or have too many parts.
    """
    check_nesting(value)
    return _type_and_leaves(value, origin)


def _type_and_leaves(value: Any, origin: str) -> tuple[Type, list[tf.Tensor]]:
    """Does the work of `type_and_leaves`, for a value whose nesting is checked."""
    if isinstance(value, SymbolicDataset | tf.data.Dataset):
        return _sequence(value, origin)
    if value is None:
        raise TracingError(f"{origin} None; a computation takes and returns values")
    container = elements_and_class(value)
    if container is not None:
        return _struct(*container, origin)
    if isinstance(value, tf.SparseTensor):
        return _struct([(n, getattr(value, n)) for n in ("indices", "values", "dense_shape")], tf.SparseTensor, origin)
    problem = not_dense(value)
    if problem is not None:
        raise TracingError(f"{origin} what is no tensor: {problem}")
    try:
        tensor = tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise TracingError(f"{origin} {brief(value)}, which is no tensor: {error}") from None
    return tensor_type(tensor), [tensor]


def _sequence(value: SymbolicDataset | tf.data.Dataset, origin: str) -> tuple[Type, list]:
    """The type of a sequence, and the sequence as the only leaf."""
    element = to_type(value.element_spec)
    problem = why_no_columns(element)
    if problem is not None:
        raise TracingError(f"{origin} a sequence, which goes out in columns: {problem}")
    if isinstance(value, SymbolicDataset):
        dataset = value.with_samples()
        sequence = Sequence(dataset.count, lambda i: unflatten(type_and_leaves(dataset.element(i), origin)[1], element))
    else:
        sequence = from_dataset(value, element)
    return SequenceType(element), [sequence]


def _struct(
    elements: Iterable[tuple[str | None, Any]], container: type | None, origin: str
) -> tuple[StructType, list[tf.Tensor]]:
    """The type and the leaves of a struct with these elements, by name, in a Python container of a class."""
    parts = [(name, *_type_and_leaves(element, origin)) for name, element in elements]
    return struct_type([(n, t) for n, t, _ in parts], container), [leaf for _, _, ls in parts for leaf in ls]
