"""Calls of computations that an event loop can wait for."""

import asyncio
import concurrent.futures
import contextvars
import functools

from fedcore import context
from fedcore.errors import TracingError
from fedcore.ir.active import active_builder
from fedcore.runtime.stopping import Stop, stopped_by, stops_from_elsewhere

MAX_CALLS = 8
"""How many awaited calls run at once; further ones wait for their turn."""


@functools.cache
def _pool() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="fedcore-call")


async def invoke_async(computation, *args, seed: int | None = None, **kwargs):
    """Calls a computation without holding up the event loop; the result is what a call gives.

    Every call runs in the context of the task that awaits it: its `fc.use` holds, and `last_report()` afterwards is
    that of the call. Cancelling the task, as `asyncio.wait_for` does at its deadline, ends the wait at once and the
    call soon after.

    Args:
        seed: of this call. Default: as for a call.
    Raises:
        TracingError: it stands inside a computation.
    Example:
        >>> totals = await asyncio.gather(*(fc.invoke_async(add_up, values) for values in cohorts))
    """
    if active_builder() is not None:
        raise TracingError(f"invoke_async stands inside a computation; call {computation.__name__} there")
    call = computation if seed is None else functools.partial(computation.invoke, seed=seed)

    stop = Stop()

    def run():
        with stopped_by(stop):
            return call(*args, **kwargs), context.last_report()

    # Inside of another such call it takes no thread of the pool, all of which may wait for calls of this kind.
    pool = None if stops_from_elsewhere() else _pool()
    own = contextvars.copy_context()
    if seed is None:
        own.run(context.number_this_call)
    try:
        result, report = await asyncio.get_running_loop().run_in_executor(pool, own.run, run)
    except asyncio.CancelledError:
        stop.cancel()
        raise
    context.note_report(report)
    return result
