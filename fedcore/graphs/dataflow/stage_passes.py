"""Registry of the passes on the regions of client stages, and the pipeline that each stage runs through.

A stage pass is a pure function from region to region; its keyword arguments are its options. One that changes nothing
returns its argument. Built-in passes run in the order of `DEFAULT_STAGE_PIPELINE`; a third party's run behind them, in
the order of their declarations, from when its module is imported. A pass is switched off by name: `plan{without=cse}`.

Decision 0236.
"""

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar

import attrs

from fedcore.errors import FedcoreError, brief
from fedcore.graphs.dataflow.graph import Region
from fedcore.ir.first_use import import_safely
from fedcore.ir.locations import naming_errors_of
from fedcore.ir.registry import note_declaration

DEFAULT_STAGE_PIPELINE = ("pack-accumulators", "hoist", "cse", "dce")
"""The built-in passes, in order. Pass `a-b` is in the module `passes.a_b`, which is imported when it is named."""

_NAME = re.compile(r"[A-Za-z0-9_\-]+")
_BUILT_IN = "fedcore.graphs.dataflow.passes."

_registry: dict[str, "StagePass"] = {}
_registrations = 0

Run = TypeVar("Run", bound=Callable[..., Region])


@attrs.frozen
class StagePass:
    """A named pass on regions.

    Args:
        run: from region to region.
        idempotent: a second run changes nothing.
        exact: results keep their bits.
        grows: the pass may add nodes.
    """

    name: str
    run: Callable[..., Region]
    idempotent: bool = True
    exact: bool = True
    grows: bool = False

    @property
    def summary(self) -> str:
        """The first line of the docstring of the pass."""
        return (self.run.__doc__ or "").strip().split("\n")[0]

    def options(self) -> dict[str, object]:
        """Name of each option of the pass -> its default."""
        parameters = list(inspect.signature(self.run).parameters.values())[1:]
        return {p.name: p.default for p in parameters}


def stage_pass(name: str, *, idempotent: bool = True, exact: bool = True, grows: bool = False) -> Callable[[Run], Run]:
    """Registers a pass on regions; `fedcore opt -p name{option=value}` runs it on the text of a region.

    A pass of that name that is registered again, as in a notebook's cell, replaces the earlier one.

    Args:
        idempotent, exact, grows: as in `StagePass`.
    Raises:
        FedcoreError: the name is malformed, or that of a built-in pass.
    """
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise FedcoreError(f"a pass cannot be called {brief(name)}: pipelines name passes by letters, digits, _ and -")

    def register(fn: Run) -> Run:
        """Puts the function into the registry; a third party may not take the name of a built-in pass.

        Third parties' passes are counted, since executables that were built before are then stale.
        """
        global _registrations
        is_built_in = fn.__module__.startswith(_BUILT_IN)
        if name in DEFAULT_STAGE_PIPELINE and not is_built_in:
            raise FedcoreError(f"a pass of client stages is called {name!r} already: {_BUILT_IN}{_module_name(name)}")
        _registry[name] = StagePass(name, fn, idempotent, exact, grows)
        if not is_built_in:
            _registrations += 1
            note_declaration(name)
        return fn

    return register


def stage_pass_registrations() -> int:
    """Number of registrations of third parties' passes. Executables of client stages are stale when it grows."""
    return _registrations


def get_stage_pass(name: str) -> StagePass:
    """The pass of a name; a built-in one is imported first.

    Raises:
        FedcoreError: no stage pass has the name; the message lists the names that there are.
    """
    if name in DEFAULT_STAGE_PIPELINE:
        import_safely(f"{_BUILT_IN}{_module_name(name)}")
    if name not in _registry:
        names = ", ".join(dict.fromkeys((*DEFAULT_STAGE_PIPELINE, *_registry)))
        hint = "one of yours is declared when its module is imported: fedcore opt --load MODULE"
        raise FedcoreError(f"no pass of client stages is called {name!r}; there are {names}\n{hint}")
    return _registry[name]


def _module_name(name: str) -> str:
    """The module of a built-in pass: pass `a-b` is in `a_b`."""
    return name.replace("-", "_")


def all_stage_passes() -> list[StagePass]:
    """The passes that client stages run through, in order."""
    return [get_stage_pass(name) for name in dict.fromkeys((*DEFAULT_STAGE_PIPELINE, *_registry))]


def stage_pass_results(region: Region, without: Collection[str] = ()) -> Iterator[tuple[StagePass, Region]]:
    """Yields each pass with the region after it; a pass that changed nothing yields the same object.

    Args:
        without: names of passes that do not run.
    """
    for stage_pass_ in all_stage_passes():
        if stage_pass_.name not in without:
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


def run_stage_passes(region: Region, without: Collection[str] = ()) -> Region:
    """The region after all passes but those of the given names."""
    results = [region, *(result for _, result in stage_pass_results(region, without))]
    return results[-1]
