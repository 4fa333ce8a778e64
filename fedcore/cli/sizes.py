"""Bytes of a plan's parts: of the server's state, of what a client holds, and of what crosses."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import attrs

from fedcore.intrinsics.crossings import crossings
from fedcore.ir import Function, Module
from fedcore.types import SequenceType, TensorType, Type, is_static, leaves, member_of

if TYPE_CHECKING:
    from fedcore.graphs.dataflow.graph import Node, Region

_NAMES = 2  # names of a path that tell parts apart, as in `global_model_weights.trainable`


@attrs.frozen
class Size:
    """The size of one part.

    Args:
        where: "state" (of the server), "client" (what a client holds beside its data), "constant" (of a graph),
            "receives" or "sends".
        name: of the part in the user's names.
        tensors: their number.
        entries: of all tensors.
        size_bytes: of all tensors; None where types leave a size open, as of what an encoder packs: the recording of a
            call has its bits, as it has those of tables that cross in rows.
    """

    where: str
    name: str
    tensors: int
    entries: int | None
    size_bytes: int | None


def sizes(plan: Module) -> list[Size]:
    """The sizes of the parts of a plan, for one client."""
    state = [p for p in plan.main.parameters if str(getattr(p.type, "placement", "")) == "SERVER"]
    table = [size for p in state for size in _parts("state", p.name, p.type)]
    for stage in plan.stages():
        if str(stage.placement) == "CLIENTS" and "strategy" in stage.attributes:
            table += _client_values(stage)
    table += _constants(plan)
    for kind, where in (("broadcast", "receives"), ("merge", "sends")):
        groups: dict[str, list[Type]] = {}
        for crossing in crossings(plan):
            if crossing.kind == kind:
                groups.setdefault(_part_name(crossing.tensor), []).append(crossing.type)
        table += [_size(where, name, types) for name, types in groups.items()]
    return table


def _client_values(stage: Function) -> Iterator[Size]:
    """The sizes of the values of a client stage: of each parameter but the client's data, and of the result."""
    for parameter in stage.parameters:
        types = [leaf for _, leaf in leaves(parameter.type)]
        if types and not any(isinstance(leaf, SequenceType) for leaf in types):
            yield _size("client", f"@{stage.name} {parameter.name}", types)
    yield _size("client", f"@{stage.name} result", [leaf for _, leaf in leaves(stage.result_type)])


def _constants(plan: Module) -> Iterator[Size]:
    """Constants with more than one entry, of the graphs whose bytes the plan has."""
    for graph in plan.graphs:
        if graph.digest not in plan.blobs:
            continue
        from fedcore.graphs.graphdef.graph_text import graph_regions  # it imports TensorFlow

        regions = graph_regions(graph, plan.blob(graph.digest)).values()
        nodes = [node for region in regions for node in _nodes(region) if node.op == "Const"]
        tensors = [node.outputs[0] for node in nodes if node.outputs[0].shape.num_elements() != 1]
        if tensors:
            yield _size("constant", f"@{graph.name}", [TensorType(t.dtype.name, t.shape.as_list()) for t in tensors])


def _nodes(region: "Region") -> Iterator["Node"]:
    """The nodes of a region and of the regions in them, such as bodies of loops."""
    for node in region.nodes:
        yield node
        for inner in node.regions:
            yield from _nodes(inner)


def _parts(where: str, name: str, type_: Type) -> Iterator[Size]:
    """The sizes of the parts of a value of this name, such as `state.global_model_weights.trainable`."""
    groups: dict[str, list[Type]] = {}
    for path, leaf in leaves(member_of(type_)):
        groups.setdefault(_part_name(f"{name}.{path}" if path else name, _NAMES + 1), []).append(leaf)
    for group, types in groups.items():
        yield _size(where, group, types)


def _part_name(path: str, names: int = _NAMES) -> str:
    """The first names of a tensor's path, without indices and what follows a `/`. Tensors of one name are a part."""
    if " at " in path:  # an operation with its line, such as `truediv at train.py:34`
        return path
    path = path.partition("/")[0]
    return ".".join(part.partition("[")[0] for part in path.split(".")[:names])


def _size(where: str, name: str, types: list[Type]) -> Size:
    """The size of the tensors of these types together, as one part."""
    tensors = [type_ for type_ in types if isinstance(type_, TensorType)]
    counts = [math.prod(type_.shape) if is_static(type_.shape) else None for type_ in tensors]
    bits = [type_.size_bits for type_ in tensors]
    is_open = len(tensors) < len(types) or None in counts
    return Size(
        where,
        name,
        len(types),
        None if is_open else sum(filter(None, counts)),
        None if is_open or None in bits else -(-sum(filter(None, bits)) // 8),  # rounded up to bytes
    )


def print_sizes(plan: Module) -> str:
    """The sizes as comments behind a plan's text."""
    lines = ["// sizes in bytes, of one client where it is one's\n"]
    table = sizes(plan)
    width = max((len(size.name) for size in table), default=0)
    for size in table:
        entries = "?" if size.entries is None else f"{size.entries:,}"
        size_bytes = "by call" if size.size_bytes is None else f"{size.size_bytes:,}"
        lines.append(f"//   {size.where:<9}{size.name:<{width}}  {entries:>14} entries {size_bytes:>14} bytes\n")
    return "".join(lines)
