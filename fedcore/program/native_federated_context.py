"""A federated context over a runtime of this machine."""

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fedcore import context
from fedcore.computation import Computation, invoke_async
from fedcore.errors import InvalidValue
from fedcore.graphs.tensors.values import container, elements_of
from fedcore.ir import Module
from fedcore.program.federated_context import FederatedContext, contains_only_server_placed_data
from fedcore.program.value_reference import MaterializableValueReference, materialize_value
from fedcore.types import FederatedType, StructType, Type

if TYPE_CHECKING:
    from fedcore.runtime.reports.report import Report


class NativeValueReference(MaterializableValueReference):
    """A reference to a part of the result of a task.

    Args:
        task: computes the result.
        type_signature: the type of the part.
        part: selects the part from the result. Default: all of it.
    """

    def __init__(
        self, task: asyncio.Task, type_signature: Type, part: Callable[[Any], Any] = lambda result: result
    ) -> None:
        self._task = task
        self._type_signature = type_signature
        self._part = part

    @property
    def type_signature(self) -> Type:
        return self._type_signature

    async def get_value(self) -> Any:
        return self._part(await self._task)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NativeValueReference):
            return NotImplemented
        return self is other or (self._task is other._task and self._part == other._part)

    def __hash__(self) -> int:
        return hash((id(self._task), self._part))


class NativeFederatedContext(FederatedContext):
    """Calls computations in tasks of the running event loop, on a runtime.

    Installed by `fc.set_runtime` or `fc.use`. A call returns at once: a structure like the result, with a
    `MaterializableValueReference` for each tensor. References may be arguments of further calls.

    Args:
        context: the runtime that computes.
    Example:
        >>> @fc.federated_computation(fc.FederatedType("int32", fc.CLIENTS))
        ... def total(xs):
        ...     return fc.federated_sum(xs)
        >>> async def program():
        ...     with fc.use(fc.program.NativeFederatedContext(fc.runtime.local())):
        ...         return await fc.program.materialize_value(total([1, 2]))
        >>> asyncio.run(program())
        np.int32(3)
    """

    compiles = False  # the runtime below compiles
    defers = True
    plan_options: Mapping[str, object] = MappingProxyType({})

    def __init__(self, context: context.Runtime) -> None:
        self._runtime = context

    @property
    def default_num_clients(self) -> int | None:
        return getattr(self._runtime, "default_num_clients", 0)

    def invoke(self, comp: Computation, arg: Any) -> Any:
        with context.use(self):
            return comp() if arg is None else comp(arg)

    def run(self, module: Module, arguments: list, report: "Report") -> Any:
        """Starts a call in a task of the running event loop; see `fc.runtime.Runtime`.

        Returns:
            The structure of the result, with a `NativeValueReference` to the task for each part that is no struct.
        Raises:
            InvalidValue: no event loop is running, or the result is not the server's.
        """
        result = module.main.type.result
        if not contains_only_server_placed_data(result):
            raise InvalidValue(
                f"{module.main.name} is called in a program, but its result is no server value: {result}"
            )
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise InvalidValue(
                f"{module.main.name} is called in a NativeFederatedContext, but no event loop is running\n"
                "  fix: call it in an async function, and this by asyncio.run"
            ) from None
        task = loop.create_task(self._call(module, arguments, report.seed))
        return _references(task, result)

    async def _call(self, module: Module, arguments: list, seed: int) -> Any:
        arguments = [await materialize_value(argument) for argument in arguments]
        with context.use(self._runtime):
            return await invoke_async(Computation(module), *arguments, seed=seed)

    def close(self) -> None:
        self._runtime.close()


def _references(task: asyncio.Task, type_: Type, part: Callable[[Any], Any] = lambda result: result) -> Any:
    """A structure of references to a task's result, one for each part that is no struct.

    Args:
        type_: the type of what `part` selects.
        part: selects from the task's result. Default: all of it.
    """
    if isinstance(type_, FederatedType):
        return _references(task, type_.member, part)
    if not isinstance(type_, StructType):
        return NativeValueReference(task, type_, part)

    def element(index: int) -> Callable[[Any], Any]:
        return lambda result: elements_of(part(result), type_)[index]

    return container([_references(task, t, element(i)) for i, t in enumerate(type_.types)], type_)
