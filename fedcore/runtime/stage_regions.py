"""The regions of a plan's vectorised client stages, for clients that are assumed.

A region depends on the schedule of a call: on the layouts of the clients' data, padded rows, equal or unequal steps.
The assumed clients have equally many batches of equally many rows, in order, and random values.
"""

from collections.abc import Iterator

import attrs
import numpy as np

from fedcore.data import ClientDataset
from fedcore.errors import FedcoreError
from fedcore.graphs.batched.batched_stage import realize_batched
from fedcore.graphs.batched.client_leaves import ClientLeaves
from fedcore.graphs.batched.packing import pack_clients, packing_cache
from fedcore.graphs.batched.schedule import PackedLayout, Schedule, ScheduleRules
from fedcore.graphs.dataflow.first_known import Known, notes
from fedcore.graphs.dataflow.graph import Region
from fedcore.graphs.dataflow.region_log import LoggedRegion, logged_regions
from fedcore.graphs.dataflow.text import print_region
from fedcore.graphs.graphdef.parsed_graph import has_loops
from fedcore.graphs.stages.client_stage import ClientStage
from fedcore.intrinsics.planned import fold_of, split_operands
from fedcore.ir import Function, Module, Operation, Ref
from fedcore.types import SequenceType, StructType, TensorType, Type, leaves, tensor_leaves


@attrs.frozen
class AssumedClients:
    """The clients of a call for which regions are built.

    Args:
        clients: number of clients, at most the `call` of the plan.
        batches: elements of each sequence.
        rows: rows of a batch, and the size of every other unknown dimension.
    """

    clients: int = 8
    batches: int = 3
    rows: int = 20

    def __str__(self) -> str:
        return f"{self.clients} clients, each with {self.batches} batches of {self.rows} rows"


@attrs.frozen
class StageRegions:
    """The regions of one client stage.

    Args:
        stage: its name in the plan.
        schedule: of the assumed clients.
        log: the regions of its functions, each as it was built and after the passes that changed it.
        arguments: names of the arguments of the function of a call.
        broadcasts: how many of these, the first ones, are broadcasts.
        values: of the arguments, but for products of the data.
    """

    stage: str
    schedule: Schedule
    log: list[LoggedRegion]
    arguments: list[str]
    broadcasts: int
    values: list[np.ndarray] = attrs.field(repr=False)

    @property
    def regions(self) -> dict[str, Region]:
        """The region of each function after all passes: that of a call, and maybe that of products of the data."""
        return {each.function: each.region for each in self.log}

    def known(self, region: Region) -> list[Known]:
        """When each argument of one of the regions is known."""
        count = self.broadcasts if len(region.arguments) == len(self.arguments) else 0
        return [Known.BROADCAST] * count + [Known.DATA] * (len(region.arguments) - count)

    def text(self, function: str, region: Region) -> str:
        """The text of a region, with the facts of each value."""
        names = self.arguments if len(region.arguments) == len(self.arguments) else []
        return print_region(region, name=function, arguments=names, notes=notes(region, self.known(region)))


def stage_regions(plan: Module, assumed: AssumedClients | None = None) -> Iterator[StageRegions]:
    """The regions of each vectorised client stage of a plan."""
    assumed = assumed or AssumedClients()
    main, types = plan.main, plan.main.types()
    by_name = {op.name: op for op in main.operations}
    merges = {fold_of(op, by_name).name: op for op in main.operations if op.kind == "merge"}
    for op in main.operations:
        if op.kind == "fold" and op.name in merges:
            stage = plan.function(op.operands[1].name)
            if stage.attributes.get("strategy") == "vectorised":
                operands = [types[o.name] for o in op.operands if isinstance(o, Ref)]
                yield _regions(plan, op, merges[op.name], split_operands(operands), assumed)


def _regions(plan: Module, fold: Operation, merge: Operation, broadcasts: int, assumed: AssumedClients) -> StageRegions:
    zero, stage = (o.name for o in fold.operands[:2])
    client_stage = ClientStage(plan, zero, stage, merge.operands[0].name, broadcasts)
    function = client_stage.function
    shared, own = client_stage.shared_parameters, client_stage.client_parameters
    rng = np.random.default_rng(0)
    schedule, tensors = _packed(plan, function, own, assumed, rng)
    call, block = int(function.attributes["call"]), int(function.attributes["block"])
    with logged_regions() as log:
        realize_batched(client_stage, schedule.layout, block=block, blocks=call // block, assumes=True)
    names = [name for p in shared for name in _names(p.name, len(tensor_leaves(p.type)))]
    count = len(names)
    shared_values = [_values(t, t.shape, assumed.rows, rng) for p in shared for t in tensor_leaves(p.type)]
    arguments = [*names, *_client_names(own, schedule.layout)]
    return StageRegions(stage, schedule, log, arguments, count, [*shared_values, *map(np.asarray, tensors)])


def _client_names(parameters, layout: PackedLayout) -> list[str]:
    """The names of the tensors of packed clients."""
    names = ["seeds", "lanes"]
    layouts = iter(layout.layouts)
    for parameter in parameters:
        for name, _ in zip(_names(parameter.name, len(leaves(parameter.type))), leaves(parameter.type), strict=True):
            sequence = next(layouts)
            columns = [] if sequence is None else _names(f"{name}_rows", len(sequence.column_specs()))
            names += [name] if sequence is None else [*columns, f"{name}_index", f"{name}_sizes"]
    return [*names, *(["products"] if layout.is_given_products else [])]


def _names(name: str, count: int) -> list[str]:
    return [name] if count == 1 else [f"{name}_{i}" for i in range(count)]


def _packed(plan: Module, stage: Function, parameters, assumed: AssumedClients, rng) -> tuple[Schedule, list]:
    """The schedule of a call of assumed clients, and their packed tensors."""
    each = [[v for p in parameters for v in _client_values(p.type, assumed, rng)] for _ in range(assumed.clients)]
    clients = ClientLeaves(each)
    plain = {key: int(stage.attributes.get(key, 0)) for key in ("one_step_width", "low_rank")}
    rules = ScheduleRules(
        int(stage.attributes["width"]),
        products=str(stage.attributes.get("products", "")),
        half_steps=has_loops(plan),
        block=int(stage.attributes["block"]),
        gives_products=True,
        **plain,
    )
    return pack_clients(
        clients,
        range(assumed.clients),
        np.arange(assumed.clients),
        range(len(each[0])),
        rules,
        capacity=int(stage.attributes["call"]),
        cache=packing_cache(0),
    )


def _client_values(type_: Type, assumed: AssumedClients, rng) -> Iterator:
    """The leaves of a client's value: arrays, and columns of them."""
    for _, leaf in leaves(type_):
        if not isinstance(leaf, SequenceType):
            (tensor,) = tensor_leaves(leaf)
            yield _values(tensor, tensor.shape, assumed.rows, rng)
            continue
        element = leaf.element
        is_batched = all(t.shape and t.shape[0] is None for t in tensor_leaves(element))
        count = assumed.batches * (assumed.rows if is_batched else 1)
        dataset = ClientDataset.from_columns(_columns(element, count, assumed.rows, rng, is_batched=is_batched))
        yield (dataset.batch(assumed.rows) if is_batched else dataset).columns


def _columns(element: Type, count: int, rows: int, rng, *, is_batched: bool):
    if isinstance(element, StructType):
        parts = [_columns(t, count, rows, rng, is_batched=is_batched) for t in element.types]
        return dict(zip(element.names, parts, strict=True)) if parts and None not in element.names else tuple(parts)
    if not isinstance(element, TensorType) or element.shape is None:
        raise FedcoreError(f"no client can be assumed whose elements are {element}")
    return _values(element, (count, *element.shape[int(is_batched) :]), rows, rng)


def _values(type_: TensorType, shape, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Small normally distributed floats, integers and bools of 0 and 1, empty strings."""
    if shape is None:
        raise FedcoreError(f"no client can be assumed whose value is {type_}")
    sizes = [rows if s is None else s for s in shape]
    if type_.dtype.name == "str":
        return np.full(sizes, b"", object)
    if type_.dtype.is_inexact:
        return (rng.standard_normal(sizes) / 8).astype(type_.dtype.numpy)
    return rng.integers(0, 2, sizes).astype(type_.dtype.numpy)
