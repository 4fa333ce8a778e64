"""`Value` and `Builder`: calling an operation on Values appends it to the function being built."""

import contextlib
import contextvars
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

import attrs
import numpy as np

from fedcore.errors import Location, TracingError
from fedcore.ir.module import (
    Constant,
    Function,
    Graph,
    Module,
    Operand,
    Operation,
    Parameter,
    Ref,
    Symbol,
)
from fedcore.types import (
    DType,
    FederatedType,
    FunctionType,
    StructType,
    TensorType,
    Type,
    as_dtype,
    contains,
    member_of,
)

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# The libraries that call back into user code while a function is traced.
_LIBRARIES = re.compile(r"[/\\](site-packages|dist-packages)[/\\]|^<")

_active: contextvars.ContextVar["Builder | None"] = contextvars.ContextVar("fedcore_builder", default=None)

# Turns callables that carry no protocol of ours (a tf.function, say) into function values:
# each takes (builder, callable, parameter type, name) and returns a Value, or None if it is not its kind.
function_converters: list[Callable] = []


def active_builder() -> "Builder | None":
    """The builder of the function that is being traced in this context, if any."""
    return _active.get()


@contextlib.contextmanager
def no_builder() -> Iterator[None]:
    """Inside, no function is being traced: the body of a graph takes part in nothing around it."""
    token = _active.set(None)
    try:
        yield
    finally:
        _active.reset(token)


def user_location() -> Location | None:
    """The file and line of the innermost frame that is the user's own."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_PACKAGE) and not _LIBRARIES.search(name):
            return Location(_relative(name), frame.f_lineno)
        frame = frame.f_back
    return None


def _relative(path: str) -> str:
    """The path as seen from the working directory, or the bare name of a file outside it."""
    relative = os.path.relpath(path)
    return os.path.basename(path) if relative.startswith("..") else relative.replace(os.sep, "/")


def is_placed(type_: Type) -> bool:
    return contains(type_, lambda t: isinstance(t, FederatedType))


@attrs.define(eq=False)
class Value:
    """A typed value of the computation being traced.

    Structs are taken apart by attribute, index, slice and iteration; functions are called;
    `+ - * /` stand for the `generic_*` intrinsics.
    """

    builder: "Builder" = attrs.field(repr=False)
    operand: Operand
    type: Type

    @property
    def type_signature(self) -> Type:
        return self.type

    def _struct(self) -> StructType:
        type_ = member_of(self.type)
        if not isinstance(type_, StructType):
            raise TracingError(f"a value of type {self.type} has no elements")
        return type_

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        type_ = member_of(self.type)
        if not isinstance(type_, StructType) or name not in type_.names:
            known = ", ".join(n for n in getattr(type_, "names", ()) if n)
            hint = f"; it has {known}" if known else ""
            raise AttributeError(f"a value of type {self.type} has no element {name!r}{hint}")
        return self._item(type_.names.index(name))

    def __getitem__(self, key):
        type_ = self._struct()
        if isinstance(key, str):
            return self.__getattr__(key)
        if isinstance(key, slice):
            picked = range(len(type_))[key]
            return self.builder.struct([(type_.names[i], self._item(i)) for i in picked])
        if not -len(type_) <= key < len(type_):
            raise IndexError(f"a value of type {self.type} has {len(type_)} elements")
        return self._item(key % len(type_))

    def __iter__(self):
        return (self._item(i) for i in range(len(self._struct())))

    def __len__(self):
        return len(self._struct())

    def _item(self, index: int) -> "Value":
        from fedcore.ir.structural import item

        return item.emit([self], index=index)

    def __call__(self, *args, **kwargs):
        from fedcore.ir.structural import call

        if not isinstance(self.type, FunctionType):
            raise TracingError(f"a value of type {self.type} is not a function")
        builder = active_builder() or self.builder
        names = self.type.parameter.names if isinstance(self.type.parameter, StructType) else ()
        unknown = [n for n in kwargs if n not in names]
        if unknown:
            raise TracingError(f"a function of type {self.type} has no parameter {unknown[0]!r}")
        ordered = [*args, *(kwargs[n] for n in names if n in kwargs)]
        return call.emit([self, *(builder.value(a) for a in ordered)])

    def __bool__(self):
        raise TracingError(
            f"a traced value of type {self.type} has no truth value: its bits are not known while the computation "
            "is traced. Put the condition inside a tf_computation (tf.cond, tf.where)"
        )

    def __add__(self, other):
        return _arithmetic("generic_plus", self, other)

    def __radd__(self, other):
        return _arithmetic("generic_plus", other, self)

    def __sub__(self, other):
        return _arithmetic("generic_minus", self, other)

    def __rsub__(self, other):
        return _arithmetic("generic_minus", other, self)

    def __mul__(self, other):
        return _arithmetic("generic_multiply", self, other)

    def __rmul__(self, other):
        return _arithmetic("generic_multiply", other, self)

    def __truediv__(self, other):
        return _arithmetic("generic_divide", self, other)

    def __rtruediv__(self, other):
        return _arithmetic("generic_divide", other, self)


def _arithmetic(kind: str, left, right) -> Value:
    """`left op right`, one of which may be a Python constant."""
    from fedcore.ir.operations import lookup

    op = lookup(kind)
    if isinstance(left, Value):
        return op(left, right)
    if kind in ("generic_plus", "generic_multiply"):
        return op(right, left)
    if isinstance(right.type, FederatedType):
        return lookup("federated_map")(lambda x: op(_filled(left, x.type), x), right)
    return op(_filled(left, right.type), right)


def _filled(constant, type_: Type):
    """The constant in every element of a value of the type: the left side says what comes out."""
    from fedcore.ir.operations import lookup

    if isinstance(type_, TensorType) and type_.shape == ():
        return constant
    builder = active_builder()
    if builder is None:
        raise TracingError("arithmetic on traced values stands outside a computation")
    return lookup("generic_plus")(builder.append("generic_zero", [], type_), constant)


class ModuleBuilder:
    """Collects the functions and graphs of one module under unique names; equal ones are kept once."""

    def __init__(self, stage: str = "traced"):
        self.stage = stage
        self.graphs: list[Graph] = []
        self.functions: list[Function] = []
        self.blobs: dict[str, bytes] = {}
        self._types: dict[str, FunctionType] = {}
        self._reserved: str | None = None
        self._by_content: dict[object, str] = {}
        self._drawing: set[str] = set()

    def reserve(self, name: str) -> None:
        """Keeps a name for the main function, which is added last."""
        self._reserved = name

    def release(self) -> None:
        """Gives the reserved name free: the main function comes now."""
        self._reserved = None

    def unique(self, name: str) -> str:
        stem = re.sub(r"[^A-Za-z0-9_]+", "", name) or "fn"
        candidate, n = stem, 0
        while candidate in self._types or candidate == self._reserved:
            n += 1
            candidate = f"{stem}_{n}"
        return candidate

    def add(self, node: Function | Graph) -> str:
        """Adds a function or graph and returns the name it got."""
        content = attrs.evolve(node, name="")
        if content in self._by_content:
            return self._by_content[content]
        name = self.unique(node.name)
        self._types[name] = node.type
        self._by_content[content] = name
        if _draws(node):
            self._drawing.add(name)
        if isinstance(node, Graph):
            self.graphs.append(attrs.evolve(node, name=name))
        else:
            self.functions.append(attrs.evolve(node, name=name))
        return name

    def link(self, module: Module) -> str:
        """Adds all symbols of another module; returns the name of its main function.

        A main that only calls a graph on its parameters is that graph.
        """
        renamed: dict[str, str] = {}
        self.blobs.update(module.blobs)
        graph = _only_graph(module)
        if graph is not None:
            return self.add(graph)
        for graph in module.graphs:
            renamed[graph.name] = self.add(graph)
        for function in module.functions:
            renamed[function.name] = self.add(rename_symbols(function, renamed))
        return renamed[module.main.name]

    def type_of(self, name: str) -> FunctionType:
        return self._types[name]

    def draws(self, name: str) -> bool:
        """Whether the symbol draws random numbers."""
        return name in self._drawing

    def build(self) -> Module:
        return Module(self.stage, tuple(self.graphs), tuple(self.functions), self.blobs)


def _draws(node: Function | Graph) -> bool:
    if isinstance(node, Graph):
        return bool(node.attributes.get("seeded"))
    return any("salt" in op.attributes for op in node.operations)


def _only_graph(module: Module) -> Graph | None:
    main = module.main
    if len(module.graphs) != 1 or len(main.operations) != 1 or main.operations[0].kind != "call":
        return None
    (op,) = main.operations
    passed_on = op.operands == (Symbol(module.graphs[0].name), *(Ref(p.name) for p in main.parameters))
    return module.graphs[0] if passed_on and main.result == Ref(op.name) else None


def rename_symbols(function: Function, names: dict[str, str]) -> Function:
    """The function with every `@symbol` replaced by what `names` says."""

    def renamed(operand):
        return Symbol(names.get(operand.name, operand.name)) if isinstance(operand, Symbol) else operand

    operations = tuple(
        attrs.evolve(op, operands=tuple(map(renamed, op.operands)))
        if any(isinstance(o, Symbol) for o in op.operands)
        else op
        for op in function.operations
    )
    return attrs.evolve(function, operations=operations, result=renamed(function.result))


class Builder:
    """Builds one function. Use as a context manager to make it the one that traced calls append to.

    Args:
        salted: what the salts of new operations start with, which draw random numbers or have a function that does;
            None gives no salts: a pass keeps those that are there.
    """

    def __init__(
        self,
        module: ModuleBuilder,
        *,
        outer: "Builder | None" = None,
        locate: Callable[[], Location | None] = user_location,
        salted: str | None = None,
    ):
        self.salted = salted
        self.module = module
        self.outer = outer
        self.locate = locate
        self.parameters: list[Parameter] = []
        self.captures: list[tuple[Value, Parameter]] = []
        self.operations: list[Operation] = []
        self._tokens: list[contextvars.Token] = []

    def __enter__(self):
        self._tokens.append(_active.set(self))
        return self

    def __exit__(self, *exc):
        _active.reset(self._tokens.pop())

    @contextlib.contextmanager
    def at(self, location: Location | None) -> Iterator[None]:
        """Every operation appended inside gets that location: what passes rewrite keeps the user's line."""
        before, self.locate = self.locate, lambda: location
        try:
            yield
        finally:
            self.locate = before

    def parameter(self, name: str, type_: Type) -> Value:
        self.parameters.append(Parameter(name, type_))
        return Value(self, Ref(name), type_)

    def append(self, kind: str, operands: Sequence[Value], type_: Type, attributes=None, *, draws=False) -> Value:
        """Appends an operation whose result type is already known.

        Args:
            draws: the operation draws random numbers, whatever its operands are.
        """
        own = tuple(self.own(v).operand for v in operands)  # may append literals, so it comes before the name
        name = str(len(self.operations))
        attributes = dict(attributes or {})
        salted = self.salted is not None and "salt" not in attributes
        if salted and (draws or any(map(self._may_draw, operands))):
            attributes["salt"] = f"{self.salted}{name}"
        self.operations.append(Operation(name, kind, own, type_, attributes, self.locate()))
        return Value(self, Ref(name), type_)

    def _may_draw(self, value: Value) -> bool:
        """Whether an operand is a function that draws random numbers, or one that is not known yet."""
        if not isinstance(value.type, FunctionType):
            return False
        if isinstance(value.operand, Symbol):
            return self.module.draws(value.operand.name)
        made = value.builder.operation(value)
        return made is None or "salt" in made.attributes

    def operation(self, value: Value) -> Operation | None:
        """The operation of this function that made the value; None for parameters and symbols."""
        if value.builder is not self or not isinstance(value.operand, Ref):
            return None
        return self._operation(value.operand)

    def _operation(self, ref: Ref) -> Operation | None:
        index = int(ref.name) if ref.name.isdigit() else len(self.operations)
        return self.operations[index] if index < len(self.operations) else None

    def type_of(self, ref: Ref) -> Type:
        """The type of a parameter or binding of this function."""
        made = self._operation(ref)
        return made.type if made is not None else next(p.type for p in self.parameters if p.name == ref.name)

    def symbol(self, name: str) -> Value:
        return Value(self, Symbol(name), self.module.type_of(name))

    def own(self, value: Value) -> Value:
        """`value` as seen in this function: values of an enclosing one are captured."""
        if value.builder is self or isinstance(value.operand, Symbol):
            return value
        for known, parameter in self.captures:
            if known.builder is value.builder and known.operand == value.operand:
                return Value(self, Ref(parameter.name), parameter.type)
        if is_placed(value.type):
            raise TracingError(
                f"a function captures a value of type {value.type}: placed values cannot travel inside a function. "
                "Pass it as an argument (federated_map takes a tuple of values)"
            )
        if self.outer is None:
            raise TracingError(f"a value of type {value.type} belongs to another computation; pass it as an argument")
        constant = self._constant_again(value)
        if constant is not None:
            return constant
        parameter = Parameter(f"capture_{len(self.captures)}", value.type)
        self.captures.append((value, parameter))
        return Value(self, Ref(parameter.name), parameter.type)

    def _constant_again(self, value: Value) -> Value | None:
        """A literal of an enclosing function is written again rather than captured."""
        op = value.builder.operation(value)
        if op is None or op.operands or op.kind not in ("literal", "generic_zero"):
            return None
        return self.append(op.kind, [], op.type, op.attributes)

    def finish(self, name: str, result: Value, *, placement=None, attributes=None, location=None) -> str:
        """Adds the function to the module; returns the name it got."""
        result = self.own(result)
        parameters = (*(p for _, p in self.captures), *self.parameters)
        function = Function(
            name,
            parameters,
            tuple(self.operations),
            result.operand,
            result.type,
            placement,
            attributes or {},
            location,
        )
        return self.module.add(function)

    def value(self, x, like: Type | None = None) -> Value:
        """A Value for a Value, a container of values, or a Python constant.

        Args:
            like: the type whose dtypes Python's numbers take, where those hold them.
        """
        if isinstance(x, Value):
            return x
        if isinstance(x, dict):
            return self._container(list(x.items()), type(x) if type(x) is not dict else None, like)
        if isinstance(x, tuple) and hasattr(x, "_fields"):
            return self._container([(n, getattr(x, n)) for n in x._fields], type(x), like)
        if attrs.has(type(x)):
            return self._container([(a.name, getattr(x, a.name)) for a in attrs.fields(type(x))], type(x), like)
        if isinstance(x, list | tuple):
            return self._container([(None, v) for v in x], list if isinstance(x, list) else None, like)
        if isinstance(like, StructType) and isinstance(x, int | float | complex):
            return self.struct([(n, self.value(x, t)) for n, t in like.items()])
        return self.constant(x, like if isinstance(like, TensorType) else None)

    def _container(self, pairs: list, container: type | None, like: Type | None) -> Value:
        likes = like.types if isinstance(like, StructType) and len(like) == len(pairs) else [None] * len(pairs)
        return self.struct([(n, self.value(v, t)) for (n, v), t in zip(pairs, likes, strict=True)], container)

    def struct(self, elements: Sequence[tuple[str | None, Value]], container: type | None = None) -> Value:
        from fedcore.ir.structural import struct_type

        type_ = struct_type([(n, v.type) for n, v in elements], container)
        return self.append("struct", [v for _, v in elements], type_)

    def constant(self, x, like: TensorType | None = None) -> Value:
        """A literal for a number, a string, or an array.

        Numbers of Python take the dtype of `like` if it holds them; else ints are int32, or int64 where they need it.
        """
        if callable(x):
            raise TracingError(f"a function ({x!r}) stands where a value of the computation is wanted")
        if isinstance(x, bool | int | float | complex) and not hasattr(x, "dtype"):
            return self.literal(x, TensorType(_dtype_of_number(x, like), ()))
        try:
            array = np.asarray(x)
            type_ = TensorType(type(x) if np.ndim(x) == 0 and not hasattr(x, "dtype") else array.dtype, array.shape)
        except Exception as error:
            raise TracingError(f"{x!r} is no value of a computation: {error}") from None
        return self.literal(x, type_)

    def literal(self, x, type_: TensorType) -> Value:
        return self.append("literal", [], type_, {"value": Constant.of(x, type_.dtype)})

    def function(self, fn, parameter_type: Type | None, name: str | None = None) -> Value:
        """A function value for a traced function, a computation, or a Python function to trace now."""
        if isinstance(fn, Value):
            return fn
        if hasattr(fn, "__fedcore_function__"):
            return fn.__fedcore_function__(self, parameter_type)
        for convert in function_converters:
            value = convert(self, fn, parameter_type, name)
            if value is not None:
                return value
        own_name: str = getattr(fn, "__name__", "fn")
        return self._trace(fn, parameter_type, name or own_name)

    def _trace(self, fn, parameter_type: Type | None, name: str) -> Value:
        from fedcore.ir.structural import bind

        inner = Builder(self.module, outer=self, locate=self.locate, salted=self.salted)
        with inner:
            args = declare_parameters(inner, fn, parameter_type)
            result = fn(*args)
            if result is None:
                raise TracingError(f"{describe(fn)} returns None; a function of a computation returns a value")
            symbol = inner.finish(name, inner.value(result), location=function_location(fn))
        function = Value(self, Symbol(symbol), self.module.type_of(symbol))
        if not inner.captures:
            return function
        return bind.emit([function, *(self.own(v) for v, _ in inner.captures)], builder=self)


def _dtype_of_number(x, like: TensorType | None):
    if like is not None and _holds(like.dtype, x):
        return like.dtype
    if not isinstance(x, int) or isinstance(x, bool):
        return type(x)
    for name in ("int32", "int64", "uint64"):
        if _holds(as_dtype(name), x):
            return name
    raise TracingError(f"{x} is no value of a computation: no integer dtype holds it")


def _holds(dtype: DType, x) -> bool:
    """Whether a number of Python's can be of the dtype; a float may be rounded to one."""
    if isinstance(x, bool):
        return dtype.name == "bool"
    if isinstance(x, int) and dtype.is_integer:
        limits = np.iinfo(dtype.numpy)
        return bool(limits.min <= x <= limits.max)
    return dtype.is_complex or (dtype.is_float and not isinstance(x, complex))


def declare_parameters(builder: Builder, fn, parameter_type: Type | None) -> list[Value]:
    """Declares the parameters of `fn` in `builder`: a struct is spread over several."""
    if parameter_type is None:
        return []
    names = [
        p.name
        for p in inspect.signature(fn).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if len(names) == 1:
        return [builder.parameter(names[0], parameter_type)]
    if not isinstance(parameter_type, StructType) or len(parameter_type) != len(names):
        raise TracingError(
            f"{describe(fn)} takes {len(names)} parameters ({', '.join(names)}), but is given {parameter_type}"
        )
    return [builder.parameter(n, t) for n, t in zip(names, parameter_type.types, strict=True)]


def function_location(fn) -> Location | None:
    code = getattr(inspect.unwrap(fn), "__code__", None)
    if code is None or code.co_filename.startswith(_PACKAGE):
        return None
    return Location(_relative(code.co_filename), code.co_firstlineno)


def describe(fn) -> str:
    """The user's name of a function with its file and line."""
    name = getattr(fn, "__name__", repr(fn))
    location = function_location(fn)
    return f"`{name}`" if location is None else f"`{name}` ({location})"
