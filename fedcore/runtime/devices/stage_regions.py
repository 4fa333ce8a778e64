"""The regions of a plan's client stages, for clients that are assumed.

A stage has a region if it is vectorised, or if it trains one client after another and keeps kernels low-rank. A region
depends on the data of a call: on the layouts of the clients' data, padded rows, equal or unequal steps.
The assumed clients have equally many batches of equally many rows, in order, and random values.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np

from fedcore.data import ClientDataset
from fedcore.errors import FedcoreError
from fedcore.graphs.batched.batched_stage import realize_batched
from fedcore.graphs.batched.batching_policy import schedule_rules
from fedcore.graphs.batched.client_leaves import ClientLeaves
from fedcore.graphs.batched.lane_interpreter import LowRankSteps
from fedcore.graphs.batched.looped_stage import LoopedFold
from fedcore.graphs.batched.packing import pack_clients, pack_for_loop, packing_cache
from fedcore.graphs.batched.row_layouts import ABSENT
from fedcore.graphs.batched.schedule import Schedule
from fedcore.graphs.dataflow.first_known import Known, notes
from fedcore.graphs.dataflow.graph import Region
from fedcore.graphs.dataflow.region_log import LoggedRegion, logged_regions
from fedcore.graphs.dataflow.text import print_region
from fedcore.graphs.sequences.layout import Layout
from fedcore.graphs.stages.client_stage import ClientStage
from fedcore.intrinsics.planned import fold_of, split_operands
from fedcore.ir import Module, Ref
from fedcore.types import SequenceType, StructType, TensorType, Type, leaves, tensor_leaves


@attrs.frozen
class AssumedClients:
    """The clients of a call for which regions are built.

    Args:
        clients: number of clients, at most the `call` or the `block` of the plan.
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
        schedule: of the assumed clients; of a stage that trains them one by one, how it keeps kernels low-rank.
        log: the regions of its functions, each as it was built and after the passes that changed it.
        arguments: names of the arguments of the function of a call.
        broadcasts: how many of these, the first ones, are broadcasts.
        values: of the arguments, but for products of the data.
    """

    stage: str
    schedule: Schedule | LowRankSteps
    log: list[LoggedRegion]
    arguments: list[str]
    broadcasts: int
    values: list[np.ndarray] = attrs.field(repr=False)

    @property
    def regions(self) -> dict[str, Region]:
        """The region of each function after all passes: that of a call, and maybe that of products of the data."""
        return {each.function: each.region for each in self.log}

    def when_known(self, region: Region) -> list[Known]:
        """When each argument of one of the regions is known."""
        count = self.broadcasts if len(region.arguments) == len(self.arguments) else 0
        return [Known.BROADCAST] * count + [Known.DATA] * (len(region.arguments) - count)

    def text(self, function: str, region: Region) -> str:
        """The text of a region, with the facts of each value."""
        names = self.arguments if len(region.arguments) == len(self.arguments) else []
        facts = notes(region, self.when_known(region))
        return print_region(region, name=function, arguments=names, notes=facts, shows_sources=True)


def stage_regions(plan: Module, assumed: AssumedClients | None = None) -> Iterator[StageRegions]:
    """The regions of each client stage of a plan that has regions."""
    assumed = assumed or AssumedClients()
    main, types = plan.main, plan.main.types()
    by_name = {op.name: op for op in main.operations}
    merges = {fold_of(op, by_name).name: op for op in main.operations if op.kind == "merge"}
    for op in main.operations:
        if op.kind in ("fold", "collect"):
            broadcasts = split_operands([types[o.name] for o in op.operands if isinstance(o, Ref)])
            yield from _regions(ClientStage.from_operation(plan, op, merges.get(op.name), broadcasts), assumed)


@attrs.frozen
class _ClientCall:
    """The call of a stage for its assumed clients.

    Args:
        names, values: of the clients' tensors.
    """

    schedule: Schedule | LowRankSteps
    log: list[LoggedRegion]
    names: list[str]
    values: list


def _regions(stage: ClientStage, assumed: AssumedClients) -> Iterator[StageRegions]:
    rng = np.random.default_rng(0)
    build = _vectorised_call if stage.function.attributes.get("strategy") == "vectorised" else _looped_call
    call = build(stage, assumed, rng)
    if call is None:
        return
    names = [name for p in stage.shared_parameters for name in _names(p.name, len(tensor_leaves(p.type)))]
    types = [t for p in stage.shared_parameters for t in tensor_leaves(p.type)]
    values = [_values(t, t.shape, assumed.rows, rng) for t in types]
    values += map(np.asarray, call.values)
    arguments = _distinct([*names, *call.names])
    yield StageRegions(stage.name, call.schedule, call.log, arguments, len(names), values)


def _distinct(names: list[str]) -> list[str]:
    """The names, numbered on where one repeats, as `shared_2` of a parameter `shared` beside a parameter `shared_2`."""
    taken: dict[str, None] = {}  # in order
    for name in names:
        free = next(n for n in itertools.chain([name], (f"{name}_{i}" for i in itertools.count(2))) if n not in taken)
        taken[free] = None
    return list(taken)


def _clients(stage: ClientStage, assumed: AssumedClients, count: int, rng: np.random.Generator) -> ClientLeaves:
    parameters = stage.client_parameters
    return ClientLeaves([[v for p in parameters for v in _client_values(p.type, assumed, rng)] for _ in range(count)])


def _vectorised_call(stage: ClientStage, assumed: AssumedClients, rng: np.random.Generator) -> _ClientCall:
    attributes, count = stage.function.attributes, assumed.clients
    call, block = int(attributes["call"]), int(attributes["block"])
    rules = schedule_rules(stage)
    clients, numbers = _clients(stage, assumed, count, rng), range(len(stage.client_leaves))
    schedule, tensors = pack_clients(
        clients, range(count), np.arange(count), numbers, rules, capacity=call, cache=packing_cache(0)
    )
    layout = schedule.layout
    with logged_regions() as log:
        realize_batched(stage, layout, block=block, blocks=call // block, assumes=True)
    names = _client_names(stage, layout.layouts, lambda _: ["index", "sizes"])
    return _ClientCall(schedule, log, [*names, *(["products"] if layout.is_given_products else [])], tensors)


def _looped_call(stage: ClientStage, assumed: AssumedClients, rng: np.random.Generator) -> _ClientCall | None:
    """The call of a block whose clients are trained one by one; None if no kernel is kept low-rank."""
    attributes = stage.function.attributes
    if not attributes.get("low_rank"):
        return None
    block = int(attributes["block"])
    count, numbers = min(assumed.clients, block), range(len(stage.client_leaves))
    clients, seeds = _clients(stage, assumed, count, rng), np.arange(count)
    steps = LowRankSteps.from_leaves(clients, seeds, numbers, int(attributes["low_rank"]))
    if steps is None:
        return None
    layouts, tensors = pack_for_loop(clients, seeds, numbers, cache=packing_cache(0))
    with logged_regions() as log:
        LoopedFold(stage, layouts, steps, parallel=int(attributes.get("parallel", 1))).whole_call(block, 1)
    lane_of = np.where(np.arange(block) < count, np.arange(block), ABSENT)
    names = _client_names(stage, layouts, lambda layout: ["index", *(["sizes"] if layout.batched else []), "ends"])
    return _ClientCall(steps, log, names, [seeds, lane_of, *tensors])


def _client_names(stage: ClientStage, layouts: Iterable[Layout | None], sequence_names: Callable) -> list[str]:
    """The names of the clients' tensors.

    Args:
        sequence_names: layout -> names of the tensors of a sequence behind its columns.
    """
    names = ["seeds", "lanes"]
    remaining_layouts = iter(layouts)
    for parameter in stage.client_parameters:
        count = len(leaves(parameter.type))
        for name, layout in zip(_names(parameter.name, count), itertools.islice(remaining_layouts, count), strict=True):
            if layout is None:
                names.append(name)
            else:
                names += _names(f"{name}_rows", len(layout.column_specs()))
                names += [f"{name}_{part}" for part in sequence_names(layout)]
    return names


def _names(name: str, count: int) -> list[str]:
    return [name] if count == 1 else [f"{name}_{i}" for i in range(count)]


def _client_values(type_: Type, assumed: AssumedClients, rng: np.random.Generator) -> Iterator:
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


def _columns(element: Type, count: int, rows: int, rng: np.random.Generator, *, is_batched: bool) -> Any:
    if isinstance(element, StructType):
        parts = [_columns(t, count, rows, rng, is_batched=is_batched) for t in element.types]
        return dict(zip(element.names, parts, strict=True)) if parts and None not in element.names else tuple(parts)
    if not isinstance(element, TensorType) or element.shape is None:
        raise FedcoreError(f"no client can be assumed whose elements are {element}")
    return _values(element, (count, *element.shape[int(is_batched) :]), rows, rng)


def _values(type_: TensorType, shape: Sequence[int | None] | None, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Small normally distributed floats, integers and bools of 0 and 1, empty strings."""
    if shape is None:
        raise FedcoreError(f"no client can be assumed whose value is {type_}")
    sizes = [rows if s is None else s for s in shape]
    if type_.dtype.name == "str":
        return np.full(sizes, b"", object)
    if type_.dtype.is_inexact:
        return (rng.standard_normal(sizes) / 8).astype(type_.dtype.numpy)
    return rng.integers(0, 2, sizes).astype(type_.dtype.numpy)
