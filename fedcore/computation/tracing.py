"""The decorators that trace Python functions to computations."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

from fedcore.computation.computation import Computation, PolymorphicComputation
from fedcore.computation.own_functions import own_function_key
from fedcore.errors import TracingError, brief
from fedcore.intrinsics.rows import sequences_of
from fedcore.ir import Builder, Module, ModuleBuilder, Value, verify
from fedcore.ir.builder import function_converters
from fedcore.ir.function_parameters import function_name, parameter_names
from fedcore.ir.locations import describe, traced_location, user_location
from fedcore.ir.registry import declarations
from fedcore.ir.structural import call
from fedcore.lru_cache import LruCache
from fedcore.types import FederatedType, FunctionType, StructType, Type, contains, to_type

if TYPE_CHECKING:
    from fedcore.graphs.capture.graph_capture import TracedGraph
    from fedcore.ir.locations import Location

    _Traced = Computation | PolymorphicComputation


@overload
def federated_computation(type_: type, /, *types: Any) -> Callable[[Callable], Computation]: ...  # type: ignore[overload-overlap]
@overload
def federated_computation(fn: Callable[[], Any], /) -> Computation: ...
@overload
def federated_computation(fn: Callable, type_: Any, /, *types: Any) -> Computation: ...
@overload
def federated_computation(fn: Callable, /) -> PolymorphicComputation: ...  # type: ignore[overload-cannot-match]
@overload
def federated_computation(*types: Any) -> Callable[[Callable], Computation]: ...
def federated_computation(*args: Any) -> Any:
    """Traces a Python function over federated values, which calls intrinsics and computations.

    With types, `@fc.federated_computation(T, U)`, it gives a `Computation`. On a function without parameters it needs
    no types. Without types, on a function with parameters, it gives a `PolymorphicComputation`, which is traced for the
    types of each call.

    Raises:
        TracingError: the function has defaults, `*args` or keyword-only parameters, or returns None.
    Example:
        >>> @fc.federated_computation(fc.FederatedType('float32', fc.CLIENTS))
        ... def average(readings):
        ...     return fc.federated_mean(readings)
    """
    return _decorate(args, _trace_federated)


@overload
def tf_computation(type_: type, /, *types: Any) -> Callable[[Callable], Computation]: ...  # type: ignore[overload-overlap]
@overload
def tf_computation(fn: Callable[[], Any], /) -> Computation: ...
@overload
def tf_computation(fn: Callable, type_: Any, /, *types: Any) -> Computation: ...
@overload
def tf_computation(fn: Callable, /) -> PolymorphicComputation: ...  # type: ignore[overload-cannot-match]
@overload
def tf_computation(*types: Any) -> Callable[[Callable], Computation]: ...
def tf_computation(*args: Any) -> Any:
    """Traces a Python function over tensors to a graph; takes types as `federated_computation` does.

    Python control flow over tensors becomes part of the graph. Tensors that the function closes over become constants;
    variables that were created outside the function are refused.

    Example:
        >>> @fc.tf_computation('float32')
        ... def to_celsius(fahrenheit):
        ...     return (fahrenheit - 32.0) / 1.8
    """
    return _decorate(args, _trace_tensorflow)


def _decorate(args: tuple, trace: Callable) -> "_Traced | Callable[[Callable], _Traced]":
    """The computation of a function and types, or a decorator if `args` are types only.

    Args:
        trace: (function, names of its parameters, their types) -> `Computation`.
    """
    if args and _is_function(args[0]):
        fn, *types = args
        return _make_computation(fn, _given_types(types), trace, is_typed=bool(types))
    types = [to_type(t) for t in _given_types(args)]

    def decorator(fn: Callable) -> "_Traced":
        if not _is_function(fn):
            raise TracingError(f"{brief(fn)} is no function, of which a computation is made")
        return _make_computation(fn, types, trace, is_typed=bool(args))

    return decorator


def _given_types(args: Sequence) -> list:
    """The types of the parameters; None alone stands for no parameters."""
    return [] if len(args) == 1 and args[0] is None else list(args)


def _is_function(x: object) -> bool:
    """Whether x is a function, not something that stands for a type, as a class of numbers does."""
    return callable(x) and not isinstance(x, type)


def _make_computation(fn: Callable, types: list, trace: Callable, *, is_typed: bool) -> "_Traced":
    """Traces a function, or makes it polymorphic if it has parameters and `is_typed` is false.

    A struct that is the only type stands for the types of all parameters, if it has as many elements.
    """
    if isinstance(fn, Computation | PolymorphicComputation):
        raise TracingError(f"{fn!r} is a computation already")
    names = parameter_names(fn)
    types = [to_type(t) for t in types]
    if not types and names and not is_typed:
        return PolymorphicComputation(fn, lambda given: trace(fn, names, given))
    if len(types) == 1 and len(names) > 1 and isinstance(types[0], StructType) and len(types[0]) == len(names):
        types = list(types[0].types)
    return trace(fn, names, types)


def _check_arity(fn: Callable, names: list[str], types: list[Type]) -> None:
    """Raises TracingError unless there is one type for each parameter name."""
    if len(names) != len(types):
        raise TracingError(
            f"{describe(fn)} has {len(names)} parameter{'s' * (len(names) != 1)} ({', '.join(names) or 'none'}), "
            f"but {len(types)} {'type is' if len(types) == 1 else 'types are'} given"
        )


def _trace_federated(fn: Callable, names: list[str], types: list[Type]) -> Computation:
    """The computation of a function over federated values, from the names and types of its parameters."""
    _check_arity(fn, names, types)
    name = function_name(fn, "computation")
    module = ModuleBuilder("traced")
    module.reserve(name)
    builder = Builder(module, salt_prefix="")
    with builder:
        arguments = [builder.parameter(n, t) for n, t in zip(names, types, strict=True)]
        result = fn(*arguments)
        if result is None:
            raise TracingError(f"{describe(fn)} returns None; a computation returns a value")
        result = builder.value(result)
    module.release()
    builder.finish(name, result, location=traced_location(fn))
    return Computation(verify(module.build(), module.verified), name)


def _trace_tensorflow(fn: Callable, names: list[str], types: list[Type]) -> Computation:
    """The computation of a function over tensors, from the names and types of its parameters.

    Of fedcore's own functions, those with equal keys are traced once for each line of the user that calls for them.
    """
    python = getattr(fn, "python_function", fn)
    _check_arity(python, names, types)
    placed = [t for t in types if contains(t, lambda x: isinstance(x, FederatedType | FunctionType))]
    if placed:
        raise TracingError(f"{describe(python)} is a tf_computation, which takes tensors and structs, not {placed[0]}")
    name, location = function_name(python, "graph"), traced_location(python)

    def trace() -> Module:
        parameter = None
        if types:
            parameter = types[0] if len(types) == 1 else StructType(list(zip(names, types, strict=True)))
        from fedcore.graphs.frontend.function_tracing import trace_function  # it imports TensorFlow

        traced = trace_function(python, parameter, spread=len(types) > 1)
        return graph_module(traced, name, names, types, location)

    function_key = own_function_key(python)
    if function_key is None:
        return Computation(trace(), name)
    key = (function_key, *types, user_location(), declarations())  # nodes of the graph have the user's line
    return Computation(_own_modules.get(key, trace), name)


_own_modules: LruCache[tuple, Module] = LruCache(256)
"""The modules of fedcore's own functions, by their keys and the user's line."""


def graph_module(
    traced: "TracedGraph", name: str, names: list[str], types: list[Type], location: "Location | None"
) -> Module:
    """A module whose main function calls a single graph."""
    module = ModuleBuilder("traced")
    module.blobs[traced.digest] = traced.data
    symbol = module.add(traced.with_name(module.unique(name)))
    builder = Builder(module, locate=lambda: location, salt_prefix="")
    arguments = [builder.parameter(n, t) for n, t in zip(names, types, strict=True)]
    result = call.emit([builder.symbol(symbol), *arguments], builder=builder)
    if traced.returns is not None:
        result = sequences_of(builder, result, traced.returns)
    builder.finish(name, result, location=location)
    return module.build()


def _convert_tf_function(builder: Builder, fn: Callable, parameter_type: Type | None, name: str | None) -> Value | None:
    """Traces a `tf.function` that is passed as a function argument, as a `tf_computation`; None for other objects."""
    if not hasattr(fn, "python_function"):
        return None
    names = parameter_names(fn)
    types = [] if parameter_type is None else [parameter_type]
    if len(names) > 1 and isinstance(parameter_type, StructType):
        types = list(parameter_type.types)
    return _trace_tensorflow(fn, names, types).__fedcore_function__(builder, parameter_type)


function_converters.append(_convert_tf_function)
