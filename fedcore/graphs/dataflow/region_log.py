"""A log of the regions that become functions, and of what stage passes made of them.

Dumps and recordings open a log (`logged_regions`) and build a stage; each function that is built then adds its region.
"""

import contextlib
import contextvars
from collections.abc import Collection, Sequence

import attrs

from fedcore.context_values import set_inside
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


def logged_regions() -> contextlib.AbstractContextManager[list[LoggedRegion]]:
    """Context that logs the regions which become functions: as they were built, and after each pass that changes them.

    Yields the list of them. A function that is built twice is in the list twice; the later one is used.
    """
    return set_inside(_log, [])


def final_regions(log: Sequence[LoggedRegion]) -> dict[str, Region]:
    """The region of each function after all passes."""
    return {entry.function: entry.region for entry in log}


def run_logged_passes(function: str, region: Region, without: Collection[str] = ()) -> Region:
    """The region after all stage passes; each change is noted in the log, if there is one.

    Args:
        function: name of the function that the region becomes.
        without: names of passes that do not run.
    """
    open_log = _log.get()
    log = [] if open_log is None else open_log
    log.append(LoggedRegion(function, None, region))
    for stage_pass, result in stage_pass_results(region, without):
        if result is not region:
            log.append(LoggedRegion(function, stage_pass.name, result))
        region = result
    return region
