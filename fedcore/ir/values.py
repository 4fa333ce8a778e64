"""`Value`: placeholder for data in the body of a traced function."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from fedcore.errors import TracingError, shorten
from fedcore.ir.active import active_builder
from fedcore.ir.module import Operand
from fedcore.ir.registry import lookup
from fedcore.types import FederatedType, FunctionType, StructType, TensorType, Type, contains, member_of

if TYPE_CHECKING:
    from fedcore.ir.builder import Builder


def is_placed(type_: Type) -> bool:
    return contains(type_, lambda t: isinstance(t, FederatedType))


class Value:
    """A typed value of the computation being traced.

    Structs support attributes, indices, slices and iteration; functions can be called; `+ - * /` apply the
    `generic_*` intrinsics. Comparisons are refused: two placeholders would be unequal in every run.
    """

    # No attrs class: `tf.nest` would take its attributes for tensors.
    __slots__ = ("__weakref__", "builder", "operand", "type")
    __array_priority__ = 1000  # numpy leaves `array + value` to the value
    __hash__ = object.__hash__

    def __init__(self, builder: "Builder", operand: Operand, type: Type) -> None:
        self.builder = builder
        self.operand = operand
        self.type = type

    def __repr__(self) -> str:
        return f"Value({self.operand}: {shorten(str(self.type))})"

    @property
    def type_signature(self) -> Type:
        return self.type

    def _struct_type(self) -> StructType:
        """The type of a struct, or of the members of a placed one.

        Raises:
            TracingError: the value is no struct.
        """
        type_ = member_of(self.type)
        if not isinstance(type_, StructType):
            raise TracingError(f"a value of type {self.type} has no elements")
        return type_

    def __getattr__(self, name: str) -> "Value":
        if name.startswith("__"):
            raise AttributeError(name)
        type_ = member_of(self.type)
        if not isinstance(type_, StructType) or name not in type_.names:
            element_names = ", ".join(n for n in getattr(type_, "names", ()) if n)
            hint = f"; it has {element_names}" if element_names else ""
            raise AttributeError(f"a value of type {self.type} has no element {name!r}{hint}")
        return self._item(type_.names.index(name))

    def __getitem__(self, key: int | str | slice) -> "Value":
        type_ = self._struct_type()
        if isinstance(key, str):
            return self.__getattr__(key)
        if isinstance(key, slice):
            indices = range(len(type_))[key]
            return self.builder.struct([(type_.names[i], self._item(i)) for i in indices])
        if not -len(type_) <= key < len(type_):
            raise IndexError(f"a value of type {self.type} has {len(type_)} elements")
        return self._item(range(len(type_))[key])  # an int, also for an integer of numpy

    def __iter__(self) -> Iterator["Value"]:
        return (self._item(i) for i in range(len(self._struct_type())))

    def __len__(self) -> int:
        return len(self._struct_type())

    def _item(self, index: int) -> "Value":
        from fedcore.ir.structural import item

        return item.emit([self], index=index)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        from fedcore.ir.structural import call

        if not isinstance(self.type, FunctionType):
            raise TracingError(
                f"a value of type {self.type} is not a function; nor is it a tensor, where tf.Variable or the like "
                "calls it: put that inside a tf_computation"
            )
        builder = active_builder() or self.builder
        names = self.type.parameter.names if isinstance(self.type.parameter, StructType) else ()
        unknown = [n for n in kwargs if n not in names]
        if unknown:
            raise TracingError(f"a function of type {self.type} has no parameter {unknown[0]!r}")
        ordered = [*args, *(kwargs[n] for n in names if n in kwargs)]
        return call.emit([self, *(builder.value(a) for a in ordered)])

    def __bool__(self) -> NoReturn:
        raise TracingError(
            f"a traced value of type {self.type} has no truth value: its bits are not known while the computation "
            "is traced. Put the condition inside a tf_computation (tf.cond, tf.where)"
        )

    def __array__(self, dtype: object = None, copy: object = None) -> NoReturn:  # tf.constant looks for it too
        raise self._tensor_error()

    def __tf_tensor__(self, dtype: object = None, name: object = None) -> NoReturn:
        raise self._tensor_error()

    def __tf_tracing_type__(self, context: object) -> NoReturn:
        raise self._tensor_error()

    def _tensor_error(self) -> TracingError:
        return TracingError(
            f"a function of TensorFlow or numpy is given a traced value of type {self.type}, which is no tensor. Put "
            "it inside a tf_computation, and apply that: fc.federated_map(fc.tf_computation(fn), value)"
        )

    def _comparison_error(self, sign: str, fix: str) -> TracingError:
        return TracingError(
            f"Python's {sign} compares a traced value of type {self.type} while the computation is traced, not its "
            f"numbers when it runs: {fix}"
        )

    def __eq__(self, other: object) -> NoReturn:
        raise self._comparison_error("==", "fc.equal(a, b) does")

    def __ne__(self, other: object) -> NoReturn:
        raise self._comparison_error("!=", "fc.equal(a, b) does")

    def __lt__(self, other: object) -> NoReturn:
        raise self._comparison_error("<", "fc.less(a, b) does")

    def __gt__(self, other: object) -> NoReturn:
        raise self._comparison_error(">", "fc.less(b, a) does")

    def __le__(self, other: object) -> NoReturn:
        raise self._comparison_error("<=", "put the comparison inside a tf_computation")

    def __ge__(self, other: object) -> NoReturn:
        raise self._comparison_error(">=", "put the comparison inside a tf_computation")

    def __add__(self, other: object) -> "Value":
        return _arithmetic("generic_plus", self, other)

    def __radd__(self, other: object) -> "Value":
        return _arithmetic("generic_plus", other, self)

    def __sub__(self, other: object) -> "Value":
        return _arithmetic("generic_minus", self, other)

    def __rsub__(self, other: object) -> "Value":
        return _arithmetic("generic_minus", other, self)

    def __mul__(self, other: object) -> "Value":
        return _arithmetic("generic_multiply", self, other)

    def __rmul__(self, other: object) -> "Value":
        return _arithmetic("generic_multiply", other, self)

    def __truediv__(self, other: object) -> "Value":
        return _arithmetic("generic_divide", self, other)

    def __rtruediv__(self, other: object) -> "Value":
        return _arithmetic("generic_divide", other, self)


def _arithmetic(kind: str, left: object, right: object) -> Value:
    """`left op right`; one operand may be a Python constant."""
    op = lookup(kind)
    if isinstance(left, Value):
        return op(left, right)
    if kind in ("generic_plus", "generic_multiply"):
        return op(right, left)
    assert isinstance(right, Value)
    if isinstance(right.type, FederatedType):
        return lookup("federated_map")(lambda x: op(_fill(left, x.type), x), right)
    return op(_fill(left, right.type), right)


def _fill(constant: object, type_: Type) -> object:
    """A value of the type with the constant in every element: the left operand decides the type of the result."""
    if isinstance(type_, TensorType) and type_.shape == ():
        return constant
    builder = active_builder()
    if builder is None:
        raise TracingError("arithmetic on traced values stands outside a computation")
    return lookup("generic_plus")(builder.append("generic_zero", [], type_), constant)
