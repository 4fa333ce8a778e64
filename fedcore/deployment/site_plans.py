"""Plans at a site: read from a server's bytes, checked, and as they run there."""

import functools
import threading

import attrs

from fedcore.compiler.passes.strip_locations import strip_locations
from fedcore.errors import InvalidValue
from fedcore.graphs.graphdef.rewrites.deterministic_order import with_deterministic_order
from fedcore.graphs.graphdef.validation.allow_list import check_graphs
from fedcore.graphs.graphdef.validation.isolated_import import check_in_child
from fedcore.ir import Module, Symbol, verify
from fedcore.ir.bundle import from_bytes
from fedcore.ir.reachable import named_by
from fedcore.ir.rewritten_graphs import with_rewritten_graphs
from fedcore.runtime.network.messages import MalformedMessage
from fedcore.runtime.network.plan_runner import ClientStageOf

_READING = threading.Lock()


def read_plan(data: bytes) -> Module:
    """The plan of a bundle from elsewhere: parsed and verified; a child process has imported what runs here.

    Raises:
        FedcoreError: it is no plan, or its graphs are refused.
    """
    with _READING:  # several sites of one process get equal plans at once
        return _read_plan(data)


@functools.lru_cache(maxsize=8)
def _read_plan(data: bytes) -> Module:
    plan = verify(from_bytes(data))
    if plan.stage != "planned":
        raise InvalidValue(f"a site runs plans; this module is {plan.stage}")
    stages = client_side(plan)
    if stages.graphs:
        check_in_child(stages, trusted=False)
        check_graphs(stages, trusted=False)
    return plan


def client_side(plan: Module) -> Module:
    """The functions and graphs of a plan's client stages, the only ones that a site runs."""
    stages = [op for op in plan.main.operations if op.kind in ("fold", "collect")]
    merges = [op for op in plan.main.operations if op.kind == "merge"]
    roots = {o.name for op in (*stages, *merges) for o in op.operands if isinstance(o, Symbol)}
    names = {name for root in roots for name in named_by(plan, root)}
    functions = tuple(f for f in plan.functions if f.name in names)
    return attrs.evolve(plan, functions=functions, graphs=tuple(g for g in plan.graphs if g.name in names))


def stage_of(plan: Module, operation: str) -> ClientStageOf:
    """The stage as it runs at a site."""
    try:
        return ClientStageOf.of(plan.fact("plan at a site", _plan_at_site), operation)
    except KeyError:
        raise MalformedMessage(f"the plan has no client stage {operation!r}") from None


def _plan_at_site(plan: Module) -> Module:
    """The plan without the lines of the program, which no digest covers, so that a server could tell each site others:
    they would be names of TensorFlow's operations. Its sums and variables have an order, which time would decide else.

    Decisions 0328 and 0329.
    """
    graphs = tuple(attrs.evolve(graph, sources={}) for graph in plan.graphs)
    without_lines = strip_locations(attrs.evolve(plan, graphs=graphs))
    return with_rewritten_graphs(without_lines, lambda _, data, __: with_deterministic_order(data))
