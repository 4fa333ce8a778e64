"""Awaited calls of computations, in a federated context or on a runtime."""

from typing import Any

from fedcore import context
from fedcore.computation import Computation, invoke_async
from fedcore.program import FederatedContext, materialize_value


async def call_async(computation: Computation, *arguments: Any) -> Any:
    """The result of a call, with its values; other tasks run meanwhile."""
    if isinstance(context.current_runtime(), FederatedContext):
        return await materialize_value(computation(*arguments))
    return await invoke_async(computation, *arguments)
