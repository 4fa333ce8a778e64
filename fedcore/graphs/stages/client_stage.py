"""A client stage of a plan as executables see it: its types, and its operations for one client.

Example: the stage `<partial, weights, batches> -> <partial, norm>` keeps a norm of each client. A call of three clients
returns `<partial, <norm, norm, norm>, bits, <>>`, and an executable of a stage without measured values `<>` for the
bits.
"""

import functools
from typing import Any, Self

import attrs
import tensorflow as tf

from fedcore.errors import FedcoreError
from fedcore.graphs.tensors.sizes import measured_bits, measured_leaves
from fedcore.graphs.tensors.specs import spec
from fedcore.graphs.tensors.tensor_seeds import tensor_seed
from fedcore.graphs.tensors.values import unflatten
from fedcore.intrinsics.sent_values import table_rows_of
from fedcore.ir.interpret import Interpreter
from fedcore.ir.module import Function, Module, Operation, Parameter, Symbol
from fedcore.types import StructType, TensorType, Type, leaves, tensor_leaves

NOTHING = StructType([])


@attrs.frozen
class ClientStage:
    """A client stage of a plan.

    Args:
        zero, join: names of the functions that make and merge partials; None if the stage has no partial.
        name: of the stage's function.
        broadcasts: number of the function's parameters that all clients share.
        keeps: the stage returns a value for each client, beside the partial.
        measured: names of values in the stage whose sizes are measured.
    """

    module: Module
    zero: str | None
    name: str
    join: str | None
    broadcasts: int
    keeps: bool = False
    measured: tuple[str, ...] = ()

    @classmethod
    def from_operation(cls, plan: Module, op: Operation, merge: Operation | None, broadcasts: int) -> Self:
        """The stage of a fold or a collect of a plan's main function.

        Args:
            op: the fold or the collect.
            merge: the operation that merges the fold's partials; None for a collect.
            broadcasts: number of the operands of `op` that are broadcasts.
        """
        *zero, stage = (o.name for o in op.operands if isinstance(o, Symbol))
        join = None if merge is None else merge.operands[0].name
        return cls(plan, zero[0] if zero else None, stage, join, broadcasts, bool(op.attributes.get("keeps")))

    @functools.cached_property
    def function(self) -> Function:
        return self.module.function(self.name)

    @property
    def is_compiled(self) -> bool:
        """Whether XLA compiles the stage's graphs."""
        return bool(self.function.attributes.get("xla"))

    @property
    def shared_parameters(self) -> tuple[Parameter, ...]:
        return self._argument_parameters[: self.broadcasts]

    @property
    def client_parameters(self) -> tuple[Parameter, ...]:
        return self._argument_parameters[self.broadcasts :]

    @property
    def _argument_parameters(self) -> tuple[Parameter, ...]:
        """The parameters without the partial: those that all clients share, then those of a client."""
        return self.function.parameters[0 if self.zero is None else 1 :]

    @property
    def shared_specs(self) -> list[tf.TensorSpec]:
        """Specs of the broadcasts."""
        return [spec(t) for p in self.shared_parameters for t in tensor_leaves(p.type)]

    @property
    def client_leaves(self) -> list[Type]:
        """The leaves of a client's arguments: tensors and sequences."""
        return [leaf for p in self.client_parameters for _, leaf in leaves(p.type)]

    @property
    def partial_type(self) -> Type:
        """Type of partials; the initial one may have a narrower one, as 0 rows for an unknown number of rows."""
        return NOTHING if self.zero is None else self.function.parameters[0].type

    @property
    def kept_type(self) -> Type | None:
        """Type of the value that the stage returns for each client."""
        type_ = self.function.result_type
        if self.zero is None:
            return type_
        if not self.keeps:
            return None
        if not isinstance(type_, StructType):
            raise FedcoreError(f"@{self.name} keeps a value per client, so it returns <partial,kept>, not {type_}")
        return type_.types[1]

    @functools.cached_property
    def table_rows(self) -> int:
        """Rows of the smallest table whose changed rows local training keeps; 0 if it keeps none."""
        return table_rows_of(self.function)

    @functools.cached_property
    def measured_count(self) -> int:
        """Number of measured leaves."""
        types = self.function.types()
        return sum(len(measured_leaves(types[name], self.table_rows)) for name in self.measured)

    def result_type(self, clients: int) -> StructType:
        """<partial, kept values, bits, factors>: the result of a call; a part is <> if the stage has none.

        `bits` is int64 [clients, measured leaves]: the sizes of the measured leaves. `factors` are those that a
        call which adds one client to a partial hands on to the next client of the block, beside the partial.
        """
        kept_struct = NOTHING if self.kept_type is None else StructType([(None, self.kept_type)] * clients)
        return self._result_type(kept_struct, clients, NOTHING)

    def stacked_result_type(self, clients: int | None, factors: Type = NOTHING) -> StructType:
        """`result_type`, with the tensors [clients, …] of each leaf in the place of the kept values.

        Args:
            clients: of the call; None if their number is not static.
        """
        kept_leaves = [] if self.kept_type is None else tensor_leaves(self.kept_type)
        stacked = StructType([(None, TensorType(t.dtype, (clients, *t.sizes))) for t in kept_leaves])
        return self._result_type(stacked, clients, factors)

    def _result_type(self, kept_values: Type, clients: int | None, factors: Type) -> StructType:
        bits = TensorType("int64", (clients, self.measured_count)) if self.measured_count else NOTHING
        return StructType([(None, t) for t in (self.partial_type, kept_values, bits, factors)])

    def unpack_broadcasts(self, tensors: list) -> list:
        """The values of the broadcasts, made of the first tensors of a list, which are removed from it."""
        return [unflatten([tensors.pop(0) for _ in leaves(p.type)], p.type) for p in self.shared_parameters]

    def bits(self, values: dict, types: dict[str, Type]) -> list[tf.Tensor]:
        """The sizes of the measured leaves, int64 scalars.

        Args:
            values, types: of the stage's names, for one client.
        """
        return [size for name in self.measured for size in measured_bits(values[name], types[name], self.table_rows)]

    def run_client(self, run: Interpreter, partial: Any, arguments: list, seed: tf.Tensor) -> tuple[Any, Any, list]:
        """(partial with the client, kept value, sizes of measured leaves in bits); None for what the stage has not.

        Args:
            run: computes operations, eagerly or in the graph that is built.
            partial: of the clients before; not read if the stage has none.
            arguments: the broadcasts, then the client's values.
            seed: of the client.
        """
        parameters = self.function.parameters
        partials = [] if self.zero is None else [partial]
        values = dict(zip([p.name for p in parameters], [*partials, *arguments], strict=True))
        types = {p.name: p.type for p in parameters}
        run.operations(self.function.operations, values, types, tensor_seed(seed))
        bits = self.bits(values, types)
        result = values[self.function.result.name]
        if self.zero is None:
            return None, result, bits
        return (*result, bits) if self.keeps else (result, None, bits)
