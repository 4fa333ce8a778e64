"""A log of the regions that become functions, and of what stage passes made of them."""

import contextlib
import contextvars
from collections.abc import Collection, Iterator, Sequence

import attrs

from fedcore.graphs.dataflow.graph import Region
from fedcore.graphs.dataflow.stage_passes import stage_pass_results


@attrs.frozen
class LoggedRegion:
    """A region that becomes a function.

    Args:
        function: name of the function.
        pass_: the stage pass that changed the region; None for the region as it was built.
    """

    function: str
    pass_: str | None
    region: Region


_log: contextvars.ContextVar[list[LoggedRegion] | None] = contextvars.ContextVar("fedcore_region_log", default=None)


@contextlib.contextmanager
def logged_regions() -> Iterator[list[LoggedRegion]]:
    """Yields a list of the regions that become functions inside: each as it was built, and after passes that change it.

    A function that is built twice is in the list twice; the later one is used.
    """
    log: list[LoggedRegion] = []
    token = _log.set(log)
    try:
        yield log
    finally:
        _log.reset(token)


def final_regions(log: Sequence[LoggedRegion]) -> dict[str, Region]:
    """The region of each function after all passes."""
    return {each.function: each.region for each in log}


def run_logged_passes(function: str, region: Region, without: Collection[str] = ()) -> Region:
    """The region after all stage passes but those of the given names, each noted in the log, if there is one."""
    log = _log.get()
    log = [] if log is None else log
    log.append(LoggedRegion(function, None, region))
    for each, result in stage_pass_results(region, without):
        if result is not region:
            log.append(LoggedRegion(function, each.name, result))
        region = result
    return region
