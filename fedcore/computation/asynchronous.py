"""Awaitable calls of computations."""

import asyncio
import concurrent.futures
import contextvars
import functools
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, TypeVar

from fedcore.errors import TracingError
from fedcore.ir.active import active_builder

if TYPE_CHECKING:
    from fedcore.runtime.reports.report import Report

Result = TypeVar("Result")

MAX_CALLS = 8
"""Number of awaited calls that run at once; further calls are queued."""


@functools.cache
def _pool() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="fedcore-call")


async def invoke_async(computation: Any, *args: Any, seed: int | None = None, **kwargs: Any) -> Any:
    """Calls a computation without blocking the event loop, and returns the call's result.

    The call runs in the context of the task that awaits it: the task's `fc.use` holds, and `last_report()` afterwards
    is the call's report. Cancelling the task, as `asyncio.wait_for` does at its deadline, ends the wait at once and the
    call soon after.

    Args:
        seed: the seed of the call. Default: as for a call without `invoke_async`.
    Raises:
        TracingError: it is used inside a computation.
    Example:
        >>> totals = await asyncio.gather(*(fc.invoke_async(add_up, values) for values in cohorts))
    """
    if active_builder() is not None:
        raise TracingError(f"invoke_async is used inside a computation; call {computation.__name__} there")
    call = computation if seed is None else functools.partial(computation.invoke, seed=seed)
    from fedcore import context  # it imports TensorFlow, which tracing a federated computation does without
    from fedcore.runtime.stopping import Stop, stopped_by, stops_from_elsewhere

    stop = Stop()

    def run() -> tuple[Any, "Report | None"]:
        with stopped_by(stop):
            return call(*args, **kwargs), context.last_report()

    # A call within an awaited call takes no thread of the pool: all of these threads may be waiting for such calls.
    pool = None if stops_from_elsewhere() else _pool()
    call_context = contextvars.copy_context()
    if seed is None:
        call_context.run(context.number_this_call)
    try:
        result, report = await asyncio.get_running_loop().run_in_executor(pool, call_context.run, run)
    except asyncio.CancelledError:
        stop.cancel()
        raise
    context.note_report(report)
    return result


def run_awaitable(awaitable: Awaitable[Result]) -> Result:
    """The result of an awaitable, also where an event loop runs, as it does in a notebook.

    The thread's own event loop stays as it is; `asyncio.run` would leave it unset.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            return pool.submit(_run_in_own_loop, awaitable).result()
    return _run_in_own_loop(awaitable)  # not in the handler: errors would be shown as consequences of its error


def _run_in_own_loop(awaitable: Awaitable[Result]) -> Result:
    """The result of an awaitable in a new event loop, which is closed at the end as `asyncio.run` closes its own."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(awaitable)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
