"""The nodes of the IR: one immutable `Module` of flat functions and graphs.

Nothing nests: an operation's operands are names of bindings, of parameters, or of symbols. A module with
100,000 operations is a tuple of 100,000 small objects, so printing, parsing and every pass are loops.
"""

import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import attrs
import numpy as np
from numpy.typing import ArrayLike

from fedcore.errors import FedcoreError, Location
from fedcore.html_display import HtmlDisplay
from fedcore.types import FunctionType, Placement, StructType, Type, leaves
from fedcore.types.dtypes import as_dtype

Fact = TypeVar("Fact")

STAGES = ("traced", "lowered", "planned")
TEXT_VERSION = 1

_NUMBER = re.compile(r"_\d+\b")
"""The number by which Keras tells layers of one class, in `dense_2`."""


@attrs.frozen
class Ref:
    """A binding or a parameter of the same function, `%name`."""

    name: str

    def __str__(self) -> str:
        return f"%{self.name}"


@attrs.frozen
class Symbol:
    """A function or a graph of the module, `@name`."""

    name: str

    def __str__(self) -> str:
        return f"@{self.name}"


Operand = Ref | Symbol


_HASHED_BYTES = 256  # of a constant's data: to hash megabytes would take long


@attrs.frozen(eq=False)
class Constant:
    """A tensor in the program, compared bitwise, so that NaN equals itself."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview | tuple[bytes, ...]

    # Computed lazily.
    _digest: str | None = attrs.field(default=None, init=False, repr=False)
    _array: np.ndarray | None = attrs.field(default=None, init=False, repr=False)

    @classmethod
    def of(cls, value: ArrayLike, dtype: object) -> "Constant":
        """The constant for a numpy-like `value` in the dtype; strings are stored as bytes."""
        dtype = as_dtype(dtype)
        if dtype.name == "str":
            array = np.asarray(value, dtype=object)
            flat = (x.encode() if isinstance(x, str) else bytes(memoryview(x)) for x in array.ravel().tolist())
            return cls("str", array.shape, tuple(flat))
        array = np.asarray(value).astype(dtype.numpy, copy=False)
        return cls(dtype.name, array.shape, array.tobytes())

    @classmethod
    def view(cls, array: np.ndarray) -> "Constant":
        """The constant of an array of numbers that never changes; it shares the array's memory."""
        array = np.asarray(array, order="C")
        array.setflags(write=False)
        data = array.reshape(-1).view(np.uint8).data if array.size else b""
        constant = cls(as_dtype(array.dtype).name, array.shape, data)
        object.__setattr__(constant, "_array", array)
        return constant

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Constant):
            return NotImplemented
        if self is other or self.data is other.data:
            return (self.dtype, self.shape) == (other.dtype, other.shape)
        if (self.dtype, self.shape, len(self.data)) != (other.dtype, other.shape, len(other.data)):
            return False
        if isinstance(self.data, memoryview) or isinstance(other.data, memoryview):
            own, others = (np.frombuffer(c.data, np.uint8) for c in (self, other))  # type: ignore[arg-type]
            return np.array_equal(own, others)
        return self.data == other.data

    def __hash__(self) -> int:
        part = self.data if isinstance(self.data, tuple) else bytes(self.data[:_HASHED_BYTES])
        return hash((self.dtype, self.shape, part))

    def is_whole(self) -> bool:
        """Whether the number of bytes (of strings, for `str`) matches the shape."""
        size = 1 if self.dtype == "str" else as_dtype(self.dtype).numpy.itemsize
        return isinstance(self.data, tuple) == (self.dtype == "str") and len(self.data) == math.prod(self.shape) * size

    def digest(self) -> str:
        """SHA-256 of the bytes; of the strings, one after another."""
        if self._digest is None:
            data = b"".join(self.data) if isinstance(self.data, tuple) else self.data
            object.__setattr__(self, "_digest", digest_of(data))
        assert self._digest is not None
        return self._digest

    def to_numpy(self) -> np.ndarray:
        """A read-only array; of a `view` that array itself."""
        if self._array is not None:
            return self._array
        if isinstance(self.data, tuple):
            array = np.empty(len(self.data), dtype=object)
            array[:] = self.data
            return array.reshape(self.shape)
        return np.frombuffer(self.data, dtype=as_dtype(self.dtype).numpy).reshape(self.shape)


@attrs.frozen
class Blob:
    """Reference by digest to bytes that are stored beside the text."""

    digest: str

    def __str__(self) -> str:
        return f"sha256:{self.digest}"


def digest_of(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


Attributes = Mapping[str, Any]
_NO_ATTRIBUTES: Attributes = MappingProxyType({})


def _freeze(attributes: Attributes) -> Attributes:
    return MappingProxyType(dict(attributes)) if attributes else _NO_ATTRIBUTES


_attributes: Any = attrs.field(factory=dict, converter=_freeze, hash=False)
_location: Any = attrs.field(default=None, eq=False, repr=False)


@attrs.frozen
class Operation:
    """`%name = kind(operands) : type {attributes}   loc("file":line)`."""

    name: str
    kind: str
    operands: tuple[Operand, ...]
    type: Type
    attributes: Attributes = _attributes
    location: Location | None = _location

    def __str__(self) -> str:
        """The line of the text."""
        from fedcore.ir.printer import print_operation

        return print_operation(self)


@attrs.frozen
class Parameter:
    name: str
    type: Type


@attrs.frozen
class Function:
    """A straight line of operations. With a `placement` it is a stage of a plan."""

    name: str
    parameters: tuple[Parameter, ...]
    operations: tuple[Operation, ...]
    result: Operand
    result_type: Type
    placement: Placement | None = None
    attributes: Attributes = _attributes
    location: Location | None = _location

    @property
    def type(self) -> FunctionType:
        return FunctionType(parameter_type(self.parameters), self.result_type)

    @property
    def result_location(self) -> Location | None:
        """The line of the operation whose result the function returns, or else the function's own."""
        return next((op.location for op in self.operations if op.name == self.result.name), self.location)

    def types(self) -> dict[str, Type]:
        """The type of every parameter and binding, by name."""
        types = {p.name: p.type for p in self.parameters}
        types.update((op.name, op.type) for op in self.operations)
        return types


def parameter_type(parameters: tuple[Parameter, ...]) -> Type | None:
    """None for no parameters, the type of a single one, a struct of several by name."""
    if not parameters:
        return None
    if len(parameters) == 1:
        return parameters[0].type
    return StructType([(p.name, p.type) for p in parameters])


NodeKey = tuple[str, str]
"""A node of a graph: the library function that it is in, "" for `main`, and its name there."""


@attrs.frozen
class NodeSource:
    """The user's code that a node of a graph comes from.

    Args:
        name: the node's name in the function that the user wrote, such as `sequential/dense/MatMul`.
        location: the user's line; None if there is none.
    """

    name: str
    location: Location | None

    @property
    def shown_library(self) -> Location | None:
        """The library's line, unless the name has a scope, such as that of a layer, which tells more."""
        return None if self.location is None or "/" in self.name else self.location.library

    def __str__(self) -> str:
        if self.location is None:
            return self.name
        library = self.shown_library
        return f"{self.location} {'' if library is None else f'in {library} '}{self.name}"


@attrs.frozen
class Graph:
    """A TensorFlow function library, stored as a blob under the digest of its canonical bytes.

    Its main takes the leaves of the parameter type in order and returns the result's leaves.

    Args:
        sources: the user's code of each node; of a result `ret0` that of the operation that computes it. They are not
            compared and not in the text.
        prints: the canonical bytes of a graph with the same arguments that prints what the user's code prints, with
            `fc.debug.print`. None if it prints nothing. Not compared, and neither in the text nor in files.
    """

    name: str
    type: FunctionType
    digest: str
    attributes: Attributes = _attributes
    sources: Mapping[NodeKey, NodeSource] = attrs.field(factory=dict, eq=False, repr=False)
    prints: bytes | None = attrs.field(default=None, eq=False, repr=False)

    def rewritten(self, digest: str, names: Mapping[NodeKey, NodeKey]) -> "Graph":
        """The graph after a rewrite of its nodes.

        Args:
            names: for each node that is still there, its new name.
        """
        results = {("", f"ret{i}") for i, _ in enumerate(leaves(self.type.result))}
        new_names = {**names, **{node: node for node in results}}
        sources = {new: self.sources[node] for node, new in new_names.items() if node in self.sources}
        return attrs.evolve(self, digest=digest, sources=sources)


@attrs.frozen(eq=False)
class Verified:
    """Result of the verification of symbols.

    Args:
        types: the types of the symbols by name.
        type_work: the number of parts of types that were compared.
        declarations: the number of declared operations at that time; another declaration makes the result stale.
    """

    types: Mapping[str, FunctionType]
    type_work: int
    declarations: int

    def join(self, other: "Verified") -> "Verified":
        """The result for the symbols of both."""
        return Verified(
            {**self.types, **other.types},
            self.type_work + other.type_work,
            min(self.declarations, other.declarations),
        )


def _freeze_blobs(blobs: Mapping[str, bytes]) -> Mapping[str, bytes]:
    return MappingProxyType(dict(blobs))


@attrs.frozen
class Module(HtmlDisplay):
    """Functions and graphs; the last function is the main function.

    Guarantees:
      - Immutable; equality ignores locations and compares graphs by digest.
      - `parse(str(module)) == module`.
      - Pickles; the copy is equal, with the same digest.

    Args:
        blobs: digest -> bytes of the graphs.
        element_names: names, for people, of the elements of lists: `lstm/kernel`, … by the list's name, `trainable`.
    """

    stage: str = attrs.field(validator=attrs.validators.in_(STAGES))
    graphs: tuple[Graph, ...]
    functions: tuple[Function, ...]
    blobs: Mapping[str, bytes] = attrs.field(factory=dict, eq=False, repr=False, converter=_freeze_blobs)
    element_names: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict, eq=False, repr=False)

    # Computed lazily.
    _digest: str | None = attrs.field(default=None, init=False, eq=False, repr=False)
    _symbols: Mapping[str, "Function | Graph"] | None = attrs.field(default=None, init=False, eq=False, repr=False)
    _facts: dict[str, Any] = attrs.field(factory=dict, init=False, eq=False, repr=False)

    def __reduce__(self) -> tuple[Callable, tuple[bytes]]:
        """Pickles as the bytes of a bundle."""
        from fedcore.ir.bundle import from_bytes, to_bytes

        return from_bytes, (to_bytes(self),)

    @property
    def main(self) -> Function:
        return self.functions[-1]

    def __getitem__(self, name: str) -> Function | Graph:
        return self.symbols()[name]

    @property
    def verified(self) -> "Verified | None":
        """Result of `verify`; None if it did not check the module."""
        return self._facts.get("verified")

    def symbols(self) -> Mapping[str, Function | Graph]:
        if self._symbols is None:
            nodes: tuple[Function | Graph, ...] = (*self.graphs, *self.functions)
            object.__setattr__(self, "_symbols", MappingProxyType({node.name: node for node in nodes}))
        assert self._symbols is not None
        return self._symbols

    def fact(self, name: str, compute: Callable[["Module"], Fact]) -> Fact:
        """The result of `compute(self)`, cached under the name."""
        if name not in self._facts:
            self._facts[name] = compute(self)
        return self._facts[name]

    def function(self, name: str) -> Function:
        """The function of that name.

        Raises:
            FedcoreError: nothing has the name, or a graph has it.
        """
        node = self.symbols().get(name)
        if not isinstance(node, Function):
            raise FedcoreError(f"@{name} is no function of the module" + (", but a graph" if node else ""))
        return node

    def graph(self, name: str) -> Graph:
        """The graph of that name.

        Raises:
            FedcoreError: nothing has the name, or a function has it.
        """
        node = self.symbols().get(name)
        if not isinstance(node, Graph):
            raise FedcoreError(f"@{name} is no graph of the module" + (", but a function" if node else ""))
        return node

    def stages(self) -> Iterator[Function]:
        return (f for f in self.functions if f.placement is not None)

    def blob(self, digest: str) -> bytes:
        if digest not in self.blobs:
            raise FedcoreError(
                f"sha256:{digest} is named by the module but its bytes are not there; load the bundle, not the text"
            )
        return self.blobs[digest]

    def __str__(self) -> str:
        from fedcore.ir.printer import print_module

        return print_module(self)

    def digest(self) -> str:
        """SHA-256 of the text without locations, with large literals written as digests."""
        if self._digest is not None:
            return self._digest
        from fedcore.ir.bundle import with_external_arrays
        from fedcore.ir.printer import print_module

        digest = digest_of(print_module(with_external_arrays(self)[0], locations=False).encode())
        object.__setattr__(self, "_digest", digest)
        return digest

    def source_digest(self) -> str:
        """SHA-256 of the program, its locations, its prints and its names of elements.

        Equal programs at different lines of the user differ in it.
        """
        return self.fact("source digest", lambda module: module._digest_with(str))

    def plan_key(self) -> str:
        """`source_digest` without the numbers in names of elements.

        Keras calls the same layer of a second model `dense_2`. `with_element_names` gives a plan its module's names.
        """
        return self.fact("plan key", lambda module: module._digest_with(lambda names: _NUMBER.sub("", names)))

    def _digest_with(self, edit_names: Callable[[str], str]) -> str:
        """`source_digest`, where `edit_names` edits the text of all names of elements first."""
        locations = [at for f in self.functions for at in (f.location, *(op.location for op in f.operations))]
        lines = [f"{at.file}:{at.line}" if at else "" for at in locations]
        prints = [digest_of(graph.prints) for graph in self.graphs if graph.prints is not None]
        names = [edit_names(str(sorted(self.element_names.items())))] if self.element_names else []
        return digest_of("\n".join([self.digest(), *lines, *prints, *names]).encode(errors="replace"))

    def with_element_names(self, names: Mapping[str, tuple[str, ...]]) -> "Module":
        """The module with these names of elements; itself if it has them."""
        if names == self.element_names:
            return self
        named = attrs.evolve(self, element_names=names)
        object.__setattr__(named, "_digest", self._digest)
        return named
