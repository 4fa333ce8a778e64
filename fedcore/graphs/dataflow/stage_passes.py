"""Registry of the passes on the regions of client stages, and the pipeline that each stage runs through.

A stage pass is a pure function from region to region; its keyword arguments are its options. One that changes nothing
returns its argument. Built-in passes run in the order of `DEFAULT_STAGE_PIPELINE`; a third party's run behind them, in
the order of their declarations, from when its module is imported. A pass is switched off by name: `plan{without=cse}`.
The passes of `GRAPH_PASSES` run on the bodies of graphs while a plan is made, or before graphs are batched or imported.

Decision 0236.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar

import attrs

from fedcore.errors import FedcoreError, brief
from fedcore.graphs.dataflow.graph import Region
from fedcore.ir.locations import naming_errors_of
from fedcore.ir.part_registry import Part, PartRegistry

DEFAULT_STAGE_PIPELINE = ("pack-accumulators", "hoist", "cse", "dce")
"""The built-in passes, in order. Pass `a-b` is in the module `passes.a_b`, which is imported when it is named."""

GRAPH_PASSES = ("hoist-relu-gradients", "round-products", "bfloat16-kernels")
"""Built-in passes that no stage's pipeline has, since graphs that are not batched need them too."""

Run = TypeVar("Run", bound=Callable[..., Region])


@attrs.frozen
class StagePass(Part):
    """A named pass on regions.

    Args:
        idempotent: a second run changes nothing.
        exact: results keep their bits.
        grows: the pass may add nodes.
    """

    idempotent: bool = True
    exact: bool = True
    grows: bool = False


_passes: PartRegistry[StagePass] = PartRegistry(
    "pass of client stages",
    "fedcore.graphs.dataflow.passes",
    (*DEFAULT_STAGE_PIPELINE, *GRAPH_PASSES),
    keeps_built_in=True,
    hint="\none of yours is declared when its module is imported: fedcore opt --load MODULE",
)
get_stage_pass = _passes.get
"""Name -> pass."""


def stage_pass(name: str, *, idempotent: bool = True, exact: bool = True, grows: bool = False) -> Callable[[Run], Run]:
    """Registers a pass on regions; `fedcore opt -p name{option=value}` runs it on the text of a region.

    A pass of that name that is registered again, as in a notebook's cell, replaces the earlier one.

    Args:
        idempotent, exact, grows: as in `StagePass`.
    Raises:
        FedcoreError: the name is malformed, or that of a built-in pass.
    """
    _passes.check_name(name)

    def register(fn: Run) -> Run:
        _passes.add(StagePass(name, fn, idempotent, exact, grows))
        return fn

    return register


def all_stage_passes(without: Collection[str] = ()) -> list[StagePass]:
    """The passes of a stage's pipeline, in order, without those of the given names."""
    return _passes.all((*GRAPH_PASSES, *without))


def stage_pass_registrations() -> int:
    """Number of registrations of third parties' passes. Executables of client stages are stale when it grows."""
    return _passes.registrations


def stage_pass_results(region: Region, without: Collection[str] = ()) -> Iterator[tuple[StagePass, Region]]:
    """Yields each pass with the region after it; a pass that changed nothing yields the same object.

    Args:
        without: names of passes that do not run.
    """
    for stage_pass_ in all_stage_passes(without):
        region = run_stage_pass(stage_pass_, region, {})
        yield stage_pass_, region


def run_stage_pass(stage_pass_: StagePass, region: Region, options: Mapping[str, Any]) -> Region:
    """The region after a pass.

    Raises:
        FedcoreError: it returns no region; or a third party's pass raises: the message names it with file and line.
    """
    with naming_errors_of(f"the stage pass {stage_pass_.name}", stage_pass_.run):
        result = stage_pass_.run(region, **options)
    if not isinstance(result, Region):
        raise FedcoreError(f"the stage pass {stage_pass_.name} returns {brief(result)}; it returns a region")
    return result
