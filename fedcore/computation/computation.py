"""`Computation`: a traced function with a type, which is called like a Python function."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import attrs
import numpy as np

from fedcore.errors import FedcoreError, TracingError, TypeMismatch, brief
from fedcore.html_display import HtmlDisplay
from fedcore.ir import Builder, Module, Symbol, Value
from fedcore.ir.active import active_builder
from fedcore.ir.first_use import import_safely
from fedcore.ir.function_parameters import function_name
from fedcore.ir.locations import user_location
from fedcore.ir.module import STAGES, Parameter
from fedcore.ir.one_placement import broadcast_of, placements_of
from fedcore.ir.structural import struct_type
from fedcore.ir.values import is_placed
from fedcore.types import (
    FunctionType,
    StructType,
    Type,
    check_nesting,
    contains,
    elements_and_class,
    explain,
    fits,
    member_of,
    strip_placement,
    to_type,
)


class Computation(HtmlDisplay):
    """A traced computation.

    Guarantees:
      - Immutable.
      - A call from Python runs on the installed runtime. A call while another computation is traced becomes a part of
        the other computation.
      - Pickles, also to another process: the copy is equal and has an equal digest.
      - Two computations are equal if their programs are equal; locations do not count.
    """

    def __init__(self, module: Module, python_name: str | None = None) -> None:
        self.module = module
        self.__name__ = python_name or module.main.name

    @property
    def type_signature(self) -> FunctionType:
        return self.module.main.type

    @functools.cached_property
    def digest(self) -> str:
        """Digest of the program: equal programs have equal digests, in every process."""
        return self.module.digest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Computation) or type(other) is not type(self):
            return NotImplemented
        return self.module == other.module

    def __hash__(self) -> int:
        return hash(self.digest)

    def __reduce__(self) -> tuple:
        return type(self), (self.module, self.__name__)

    def __repr__(self) -> str:
        return f"<computation {self.__name__} : {self.type_signature}>"

    def with_element_names(self, names: Mapping[str, Sequence[str]]) -> Self:
        """The computation with names, for people, of the elements of lists in its arguments and results.

        Reports and tables show `weights.trainable/lstm/kernel` in the place of `weights.trainable[1]`. The program, its
        text and its digest stay.

        Args:
            names: name of a list -> the names of its elements. A list has the name of the parameter or of the struct's
                element that it is, at any depth; lists of equal names get equal names of elements.
        Example:
            >>> @fc.federated_computation(fc.types.at_clients({'weights': ['float32', 'float32']}))
            ... def total(update):
            ...     return fc.federated_sum(update)
            >>> named = total.with_element_names({'weights': ['kernel', 'bias']})
            >>> result = named([{'weights': [1.0, 2.0]}])
            >>> [crossing.tensor for crossing in fc.context.last_report().crossings]
            ['update.weights/kernel', 'update.weights/bias']
            >>> named == total
            True
        """
        tuples = {key: tuple(map(str, elements)) for key, elements in names.items()}
        return type(self)(attrs.evolve(self.module, element_names=tuples), self.__name__)

    def to_text(self, stage: str = "traced") -> str:
        """The text of the IR at a stage of compilation: `traced`, `lowered` or `planned`."""
        return str(self.to_module(stage))

    def to_module(self, stage: str = "traced") -> Module:
        """The module at a stage of compilation.

        Raises:
            FedcoreError: the computation was read from a file with a module of a later stage.
        """
        if stage not in STAGES:
            raise FedcoreError(f"{brief(stage)} is no stage; there are {', '.join(STAGES[:-1])} and {STAGES[-1]}")
        if STAGES.index(stage) < STAGES.index(self.module.stage):
            raise FedcoreError(f"{self.__name__} is {self.module.stage}: it holds no {stage} module")
        if stage == self.module.stage:
            return self.module
        from fedcore import context  # it imports TensorFlow, which tracing a federated computation does without

        return context.plan_of(self.module) if stage == "planned" else context.lower(self.module)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        builder = active_builder()
        if builder is not None:
            return self._in_trace(builder, args, kwargs)
        calls = import_safely("fedcore.graphs.frontend.calls_in_graphs")  # with TensorFlow, which a trace does without
        if calls.inside_graph() and not is_placed(self.type_signature):
            return calls.call_in_graph(self.to_module("lowered"), self.__name__, self._arguments(args, kwargs))
        return self._run(args, kwargs, None)

    def invoke(self, /, *args: Any, seed: int | None = None, **kwargs: Any) -> Any:
        """Calls the computation from Python.

        Args:
            seed: of the random operations of this call. Default: the next seed of `fc.use`; without one, a drawn seed,
                which the report has. An argument for a parameter of the computation that is named `seed` is given by
                position.
        """
        return self._run(args, kwargs, seed)

    @functools.cached_property
    def _function_parameters(self) -> list[Parameter]:
        """The parameters whose types contain a function type."""
        return [p for p in self.module.main.parameters if contains(p.type, lambda t: isinstance(t, FunctionType))]

    @functools.cached_property
    def _signature(self) -> inspect.Signature:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return inspect.Signature([inspect.Parameter(p.name, kind) for p in self.module.main.parameters])

    def _run(self, args: tuple, kwargs: dict, seed: int | None) -> Any:
        """Calls the computation on the runtime in use; without a seed, the context gives one."""
        for parameter in self._function_parameters:
            raise TypeMismatch(
                f"{self.__name__}: `{parameter.name}` is a function {parameter.type}, which cannot be given from "
                "Python: call this in another computation and give it there"
            )
        context = import_safely("fedcore.context")
        arguments = self._arguments(args, kwargs)
        try:
            return context.invoke(self.module, arguments, seed=seed)
        except TypeMismatch as error:
            fix = self._forgotten_state(arguments)
            if fix is None:
                raise
            raise TypeMismatch(f"{error}\n  fix: {fix}") from None

    def _arguments(self, args: tuple, kwargs: dict) -> list:
        """The arguments in the order of the parameters. A single tuple or list may hold all arguments."""
        parameters = self.module.main.parameters
        try:
            return _bind(self.__name__, self._signature, args, kwargs)
        except TypeMismatch:
            packed = len(args) == 1 and len(parameters) > 1 and not kwargs and isinstance(args[0], tuple | list)
            if packed and len(args[0]) == len(parameters):
                return list(args[0])
            raise

    def _forgotten_state(self, arguments: list) -> str | None:
        """The fix if the whole result of a process's `next` was given where its element `state` is wanted."""
        for argument, parameter in zip(arguments, self.module.main.parameters, strict=True):
            type_ = member_of(parameter.type)
            if not isinstance(type_, StructType) or "state" in type_.names:
                continue
            has_state = "state" in argument if isinstance(argument, Mapping) else hasattr(argument, "state")
            if has_state and not isinstance(argument, Value):
                return (
                    f"`{parameter.name}` takes the element `state` of the given result: "
                    f"write {self.__name__}(output.state, …)"
                )
        return None

    def __fedcore_function__(self, builder: Builder, parameter_type: Type | None) -> Value:
        """This computation as a function value of the computation that is being traced."""
        if self.module.stage != "traced":
            raise TracingError(f"{self.__name__} is {self.module.stage}: call it from Python, not in a computation")
        name = builder.module.link(self.module)
        return Value(builder, Symbol(name), builder.module.type_of(name))

    def _in_trace(self, builder: Builder, args: tuple, kwargs: dict) -> Value:
        """Calls this computation in the computation that `builder` traces."""
        function = self.__fedcore_function__(builder, None)
        pairs = zip(self._arguments(args, kwargs), self.module.main.parameters, strict=True)
        values = [_argument(builder, a, p.type) for a, p in pairs]
        try:
            return function(*values)
        except TypeMismatch:
            raise TypeMismatch(self._mismatch(values)) from None

    def _mismatch(self, values: list[Value]) -> str:
        """The text of the error for values that do not fit; with a fix if a `federated_map` of this takes them."""
        parameter = self.type_signature.parameter
        have = values[0].type if len(values) == 1 else StructType([(None, v.type) for v in values])
        if parameter is None:
            return f"{self.__name__} takes no argument, but is given {have}"
        fix, value = None, "value"
        if len(placements_of(have)) > 1:
            value = f"({', '.join(map(broadcast_of, values))})"
        if not is_placed(parameter) and fits(strip_placement(have), parameter):
            fix = f"fc.federated_map({self.__name__}, {value}) applies it at the value's placement"
        return explain(
            f"{self.__name__}: the argument does not fit", have, parameter, location=user_location(), fix=fix
        )


def _bind(name: str, signature: inspect.Signature, args: tuple, kwargs: dict) -> list:
    """The arguments of a call in the order of the parameters."""
    try:
        return list(signature.bind(*args, **kwargs).arguments.values())
    except TypeError as error:
        takes = ", ".join(signature.parameters) or "no argument"
        count = f"{len(args) + len(kwargs)} argument{'s' * (len(args) + len(kwargs) != 1)}"
        raise TypeMismatch(f"{name} takes {takes}, but is called with {count}: {error}") from None


def _argument(builder: Builder, argument: object, type_: Type) -> Value:
    """The value of an argument in the computation that is being traced; a function value for a function parameter."""
    if isinstance(type_, FunctionType) and callable(argument):
        return builder.function(argument, type_.parameter)
    return builder.value(argument, member_of(type_))


class PolymorphicComputation(HtmlDisplay):
    """A computation whose parameter types come from the arguments of a call; traced once for each tuple of types."""

    def __init__(self, fn: Callable, trace: Callable[[list[Type]], Computation]) -> None:
        self._trace = trace
        self._traced: dict[tuple[Type, ...], Computation] = {}
        self.__name__ = function_name(fn, "computation")
        self.__doc__ = fn.__doc__
        self._signature = inspect.signature(getattr(fn, "python_function", fn))
        self._arity = len(self._signature.parameters)

    def __repr__(self) -> str:
        return f"<polymorphic computation {self.__name__}>"

    def for_types(self, types: list[Type]) -> Computation:
        """The computation for parameters of these types."""
        key = tuple(types)
        if key not in self._traced:
            self._traced[key] = self._trace(list(types))
        return self._traced[key]

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        arguments = _bind(self.__name__, self._signature, args, kwargs)
        builder = active_builder()
        if builder is not None:
            values = [builder.value(a) for a in arguments]
            return self.for_types([v.type for v in values])(*values)
        return self._for_arguments(arguments)(*arguments)

    def invoke(self, /, *args: Any, seed: int | None = None, **kwargs: Any) -> Any:
        """Calls the computation from Python.

        Args:
            seed: of the random operations of this call. Default: the next seed of `fc.use`; without one, a drawn seed,
                which the report has. An argument for a parameter of the computation that is named `seed` is given by
                position.
        """
        arguments = _bind(self.__name__, self._signature, args, kwargs)
        return self._for_arguments(arguments).invoke(*arguments, seed=seed)

    def _for_arguments(self, arguments: list) -> Computation:
        """The computation for the types of a call's arguments."""
        try:
            check_nesting(arguments)
            types = [type_of(a) for a in arguments]
        except TypeMismatch as error:
            raise TypeMismatch(f"{self.__name__} cannot tell the type of its argument: {error}; declare it") from None
        return self.for_types(types)

    def fn_for_argument_type(self, arg_type: Any, unpack: bool | None = None) -> Computation:
        """The computation for an argument of a type; of several parameters it is a struct of their types.

        Args:
            arg_type: a type, or what `fc.to_type` makes one of; None where there are no parameters.
            unpack: of TFF, which it tells whether a struct stands for several parameters; changes nothing.
        Raises:
            TracingError: the type is none for the parameters.
        Example:
            >>> add = fc.tf_computation(lambda x, y: x + y)
            >>> print(add.fn_for_argument_type([np.int32, np.int32]).type_signature)
            (<x=int32,y=int32> -> int32)
        """
        return self._for_parameter(None if arg_type is None else to_type(arg_type))

    def _for_parameter(self, parameter_type: Type | None) -> Computation:
        """The computation for the parameter type of a function; of several parameters it is a struct of their types."""
        if self._arity == 1 or parameter_type is None:
            return self.for_types([] if parameter_type is None else [parameter_type])
        if isinstance(parameter_type, StructType) and len(parameter_type) == self._arity:
            return self.for_types(list(parameter_type.types))
        raise TracingError(f"{self.__name__} takes {self._arity} parameters, but is given {parameter_type}")

    def __fedcore_function__(self, builder: Builder, parameter_type: Type | None) -> Value:
        return self._for_parameter(parameter_type).__fedcore_function__(builder, parameter_type)


def type_of(value: object) -> Type:
    """The type of a value that is an argument of a call: a Python number, an array, a data set, or a container.

    Raises:
        TypeMismatch: no type has such values.
    """
    container = elements_and_class(value)
    if container is not None:
        elements, cls = container
        return struct_type([(name, type_of(element)) for name, element in elements], cls)
    if hasattr(value, "element_spec") or hasattr(value, "dtype"):
        return to_type(value)
    if isinstance(value, bool | int | float | complex | str | bytes):
        return to_type(type(value))
    array = np.asarray(value)
    if array.dtype == object and not all(isinstance(x, str | bytes) for x in array.ravel().tolist()):
        raise TypeMismatch(f"{brief(value)} stands for no type")
    return to_type(array)
