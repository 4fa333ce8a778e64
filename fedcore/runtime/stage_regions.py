"""The regions of a plan's client stages, for assumed clients: so they can be looked at without data.

A stage has a region if it is vectorised, or if it trains one client after another and keeps kernels low-rank, or rows
of tables. A region depends on the data of a call: on the layouts of the clients' data, padded rows, equal or unequal
steps. The assumed clients have equally many batches of equally many rows, in order, and random values.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import numpy as np

from fedcore.data import ClientDataset
from fedcore.errors import FedcoreError
from fedcore.graphs.batched.client_lane import LowRankSteps
from fedcore.graphs.batched.schedule import Schedule
from fedcore.graphs.dataflow.first_known import Known, notes
from fedcore.graphs.dataflow.graph import Region
from fedcore.graphs.dataflow.region_log import LoggedRegion, logged_regions
from fedcore.graphs.dataflow.text import print_region
from fedcore.graphs.stages.client_stage import ClientStage
from fedcore.graphs.tensors.values import unflatten
from fedcore.intrinsics.planned import split_operands
from fedcore.ir import Module, Ref
from fedcore.runtime.client_slice import ClientSlice
from fedcore.runtime.client_work import ClientWork
from fedcore.runtime.clients.client_calls import StageCalls
from fedcore.runtime.devices.device import DeviceExecutor, default_devices
from fedcore.runtime.plan_executor import client_work
from fedcore.runtime.reports.report import Report
from fedcore.types import SequenceType, StructType, TensorType, Type, leaves, tensor_leaves


@attrs.frozen
class AssumedClients:
    """The clients of a call for which regions are built.

    Args:
        clients: number of clients; a slice has at most as many as the plan's `call`, or its block.
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
        stage: name of the stage in the plan.
        schedule: schedule of the assumed clients; of a stage that trains them one by one, how it keeps kernels
            low-rank.
        log: the regions of the stage's functions, each as it was built and after the passes that changed it.
        arguments: names of the arguments of the function of a call.
        broadcasts: number of broadcasts, the first ones of the arguments.
        values: values of the arguments, without those of products of the data.
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
        """For each argument of one of the regions the time from which on it is known."""
        broadcasts = self.broadcasts if self._is_of_call(region) else 0
        return [Known.BROADCAST] * broadcasts + [Known.DATA] * (len(region.arguments) - broadcasts)

    def _is_of_call(self, region: Region) -> bool:
        """Whether a region is that of a call, and not that of products of the data, which has other arguments."""
        return len(region.arguments) == len(self.arguments)

    def text(self, function: str, region: Region) -> str:
        """The text of a region, with the facts of each value.

        Args:
            function: name of the region's function, a key of `regions`.
        """
        names = self.arguments if self._is_of_call(region) else []
        facts = notes(region, self.when_known(region))
        return print_region(region, name=function, arguments=names, notes=facts, shows_sources=True)


def stage_regions(plan: Module, assumed: AssumedClients | None = None) -> Iterator[StageRegions]:
    """The regions of each client stage of a plan that has regions."""
    types = plan.main.types()
    for op in plan.main.operations:
        if op.kind in ("fold", "collect"):
            broadcasts = split_operands([types[o.name] for o in op.operands if isinstance(o, Ref)])
            work = attrs.evolve(client_work(plan, op.name), broadcasts=((),) * broadcasts)
            if work.is_vectorised or work.low_rank or work.table_rows:
                yield from _regions(work, assumed or AssumedClients())


def _regions(work: ClientWork, assumed: AssumedClients) -> Iterator[StageRegions]:
    """The regions of a stage; none if the assumed clients keep no kernel low-rank, and run one after another."""
    stage, rng = work.client_stage, np.random.default_rng(0)
    shared = [t for p in stage.shared_parameters for t in tensor_leaves(p.type)]
    values = [_values(t, t.shape, assumed.rows, rng) for t in shared]
    places = int(work.plan.get("call", work.block))
    client_values = [
        tuple(unflatten([*_client_values(p.type, assumed, rng)], p.type) for p in stage.client_parameters)
        for _ in range(min(assumed.clients, places))
    ]
    clients = ClientSlice(0, places, tuple(client_values))
    with logged_regions() as log:
        call = StageCalls(work, DeviceExecutor(default_devices()[0]), Report()).together(clients, assumes=True)
    if call is None or call.schedule is None:
        return
    names = [name for p in stage.shared_parameters for name in _names(p.name, len(tensor_leaves(p.type)))]
    names += _client_names(stage, clients, is_vectorised=work.is_vectorised)
    products = ["products"] if len(names) < len(shared) + len(call.tensors) else []
    values += map(np.asarray, call.tensors[: len(names) - len(shared)])
    yield StageRegions(stage.name, call.schedule, log, _distinct([*names, *products]), len(shared), values)


def _distinct(names: list[str]) -> list[str]:
    """The names, of which repeated ones get a number: `x`, `x_2`, `x_3`."""
    taken: dict[str, None] = {}  # in order
    for name in names:
        candidates = itertools.chain([name], (f"{name}_{i}" for i in itertools.count(2)))
        taken[next(candidate for candidate in candidates if candidate not in taken)] = None
    return list(taken)


def _client_names(stage: ClientStage, clients: ClientSlice, *, is_vectorised: bool) -> list[str]:
    """The names of the clients' tensors in a call, in order, without those of products of the data."""
    names = ["seeds", "lanes"]
    client_leaves = iter(clients.leaves.each[0])
    for parameter in stage.client_parameters:
        for name in _names(parameter.name, len(leaves(parameter.type))):
            layout = getattr(next(client_leaves), "layout", None)
            if layout is None:
                names.append(name)
                continue
            sizes = ["sizes"] if is_vectorised or layout.batched else []
            parts = ["index", *sizes, *([] if is_vectorised else ["ends"])]
            names += _names(f"{name}_rows", len(layout.column_specs()))
            names += [f"{name}_{part}" for part in parts]
    return names


def _names(name: str, count: int) -> list[str]:
    """The names of the leaves of a value: its own name if it has one leaf, else numbered from 0."""
    return [name] if count == 1 else [f"{name}_{i}" for i in range(count)]


def _client_values(type_: Type, assumed: AssumedClients, rng: np.random.Generator) -> Iterator:
    """The leaves of an assumed client's value: arrays, and the `Columns` of sequences."""
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
    """Columns of a sequence of this element type, nested as the type.

    Args:
        count: length of the columns: number of rows if the elements are batches, else of elements.
    """
    if isinstance(element, StructType):
        parts = [_columns(t, count, rows, rng, is_batched=is_batched) for t in element.types]
        return dict(zip(element.names, parts, strict=True)) if parts and None not in element.names else tuple(parts)
    if not isinstance(element, TensorType) or element.shape is None:
        raise FedcoreError(f"no client can be assumed whose elements are {element}")
    return _values(element, (count, *element.shape[int(is_batched) :]), rows, rng)


def _values(type_: TensorType, shape: Sequence[int | None] | None, rows: int, rng: np.random.Generator) -> np.ndarray:
    """An array of a shape, whose unknown sizes are `rows`: small normally distributed floats, integers and bools of 0
    and 1, empty strings.
    """
    if shape is None:
        raise FedcoreError(f"no client can be assumed whose value is {type_}")
    sizes = [rows if s is None else s for s in shape]
    if type_.dtype.name == "str":
        return np.full(sizes, b"", object)
    if type_.dtype.is_inexact:
        return (rng.standard_normal(sizes) / 8).astype(type_.dtype.numpy)
    return rng.integers(0, 2, sizes).astype(type_.dtype.numpy)
