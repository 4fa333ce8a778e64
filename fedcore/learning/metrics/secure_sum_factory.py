"""Secure sums of metric states, whose tensors have different ranges."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedcore.aggregators import PrivateQuantileEstimationProcess, UnweightedAggregationFactory, aggregation_process
from fedcore.aggregators import SecureSumFactory as SecureSumOfOneRange
from fedcore.computation import federated_computation
from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.intrinsics import federated_map, federated_zip
from fedcore.ir import Value
from fedcore.scalars import real_number
from fedcore.templates import AggregationProcess, MeasuredProcessOutput
from fedcore.types import StructType, StructWithPythonType, TensorType, Type

_LARGEST = 2**20 - 1  # TFF's default bound


def create_default_secure_sum_quantization_ranges(
    local_unfinalized_metrics_type: Type,
    lower_bound: float = 0,
    upper_bound: float = _LARGEST,
    use_auto_tuned_bounds_for_float_values: bool = True,
) -> Any:
    """The ranges into which secure sums of metric states clip, where the user gives no others.

    Types: it takes a type V; the ranges have the structure of V.

    Args:
        local_unfinalized_metrics_type: V, of a client's states: integers and floats in structs.
        lower_bound: of integers, rounded up.
        upper_bound: of integers, rounded down. Default: 2^20 - 1.
        use_auto_tuned_bounds_for_float_values: floats are bounded by twice the 0.95 quantile of their magnitudes,
            estimated from 50; else by the same bounds as integers.
    Returns:
        Dicts (lists for structs without names) of pairs (lower, upper); (None, estimation process) for estimated ones.
    Raises:
        FedcoreError: the bounds are not in order, or there is no integer range between them for a tensor of integers.
        TypeMismatch: a tensor is of neither integers nor floats.
    Example:
        >>> states = fc.to_type({'count': 'int32', 'loss': ['float32', 'float32']})
        >>> fc.learning.metrics.create_default_secure_sum_quantization_ranges(states, 0, 9.5, False)
        {'count': (0, 9), 'loss': [(0.0, 9.5), (0.0, 9.5)]}
    """
    low, high = real_number("lower_bound", lower_bound), real_number("upper_bound", upper_bound)
    if low >= high:
        raise InvalidValue(f"lower_bound ({low}) is less than upper_bound ({high})")
    tuned = None
    if use_auto_tuned_bounds_for_float_values:
        tuned = PrivateQuantileEstimationProcess.no_noise(
            50.0, 0.95, learning_rate=1.0, multiplier=2.0, secure_estimation=True
        )

    def default(path: str, leaf: TensorType) -> tuple:
        if leaf.dtype.is_float:
            return (float(low), float(high)) if tuned is None else (None, tuned)
        if not leaf.dtype.is_integer:
            raise TypeMismatch(f"a secure sum adds integers and floats, but {path} is {leaf}")
        if math.floor(high) <= math.ceil(low):
            raise InvalidValue(f"there are no two integers from {low} to {high} for {path}, which is {leaf}")
        return math.ceil(low), math.floor(high)

    return _map_leaves(local_unfinalized_metrics_type, default)


class SecureSumFactory(UnweightedAggregationFactory):
    """The secure sum of metric states, each tensor clipped into a range of its own.

    Tensors of one dtype and range are added by one `fc.aggregators.SecureSumFactory`; its key in state and
    measurements is `lower/upper/dtype`.

    Types, for states V: numeric real tensors in structs:
        next  (<state=S@SERVER,value={V}@CLIENTS> -> <state=S@SERVER,result=V@SERVER,measurements=M@SERVER>)
        S is <KEY=state of its sum,…>; M is <KEY=measurements of its sum,…>.

    Args:
        metric_value_ranges: pairs (lower, upper) in the structure of V, of which parts may be missing or None. Default:
            those of `create_default_secure_sum_quantization_ranges`.
    Raises:
        TypeMismatch: by `create`, V is not of real tensors, or the ranges have another structure.
        FedcoreError: by `create`, a range is not in order.
    Source: that of `fc.aggregators.SecureSumFactory`.
    Example:
        >>> factory = fc.learning.metrics.SecureSumFactory({'loss': (0.0, 8.0)})
        >>> process = factory.create(fc.to_type({'count': 'int32', 'loss': 'float32'}))
        >>> process.next(process.initialize(), [{'count': 1, 'loss': 2.0}, {'count': 3, 'loss': 100.0}]).result
        {'count': np.int32(4), 'loss': np.float32(10.0)}
    """

    def __init__(self, metric_value_ranges: Mapping | None = None) -> None:
        if metric_value_ranges is not None and not isinstance(metric_value_ranges, Mapping):
            raise TypeMismatch(f"metric_value_ranges is a dict by the names of metrics, not {metric_value_ranges!r}")
        self._ranges = metric_value_ranges

    def create(self, local_unfinalized_metrics_type: Type) -> AggregationProcess:
        default = create_default_secure_sum_quantization_ranges(local_unfinalized_metrics_type)
        return _sum_process(local_unfinalized_metrics_type, self._ranges, default)


def secure_sum_of_ranges(value_type: Type, ranges: Mapping | None, bound: float) -> AggregationProcess:
    """The process of a `SecureSumFactory` whose default range is -bound to bound."""
    return _sum_process(
        value_type, ranges, create_default_secure_sum_quantization_ranges(value_type, -bound, bound, False)
    )


def _sum_process(value_type: Type, ranges: Mapping | None, default: Any) -> AggregationProcess:
    """The process that adds the tensors of one dtype and range by one secure sum.

    Args:
        ranges, default: those of `_visit_ranges`.
    """
    groups: dict[str, list[tuple[tuple[int, ...], TensorType]]] = {}  # by the key of a sum (path, type) of its tensors
    factories: dict[str, UnweightedAggregationFactory] = {}

    def add_to_group(
        path: tuple, leaf: TensorType, lower: float | None, upper: float | PrivateQuantileEstimationProcess
    ) -> None:
        is_estimated = hasattr(upper, "report")
        key = f"{lower}/{'default_estimation_process' if is_estimated else upper}/{leaf.dtype}"
        groups.setdefault(key, []).append((path, leaf))
        factories[key] = SecureSumOfOneRange(upper_bound_threshold=upper, lower_bound_threshold=lower)

    _visit_ranges(value_type, ranges, default, add_to_group)
    sums = {
        key: factories[key].create(StructType([(_label(value_type, path), t) for path, t in tensors]))
        for key, tensors in groups.items()
    }

    def group(value: Value) -> dict[str, dict[str, Value]]:
        """The tensors of a client's states, by the key of their sum and by label."""
        return {key: {_label(value_type, p): _element(value, p) for p, _ in tensors} for key, tensors in groups.items()}

    def ungroup(totals: Value) -> Any:
        """The sums of all groups in the structure of the states."""
        by_path = {path: totals[key][i] for key, tensors in groups.items() for i, (path, _) in enumerate(tensors)}
        return _pack(value_type, by_path)

    @federated_computation
    def initialize() -> Value:
        return federated_zip({key: process.initialize() for key, process in sums.items()})

    def body(state: Value, value: Value, _: tuple[()]) -> MeasuredProcessOutput:
        parts = federated_map(group, value)
        outputs = {key: entry.next(state[key], parts[key]) for key, entry in sums.items()}
        return MeasuredProcessOutput(
            federated_zip({key: entry.state for key, entry in outputs.items()}),
            federated_map(ungroup, federated_zip({key: entry.result for key, entry in outputs.items()})),
            federated_zip({key: entry.measurements for key, entry in outputs.items()}),
        )

    return aggregation_process(initialize, value_type, None, body, "client_local_unfinalized_metrics")


def _map_leaves(type_: Type, fn: Callable[[str, TensorType], Any], path: str = "the state") -> Any:
    """`fn(path, leaf)` in dicts and lists of the type's structure."""
    if isinstance(type_, TensorType):
        return fn(path, type_)
    if not isinstance(type_, StructType):
        raise TypeMismatch(f"a secure sum adds integers and floats, but {path} is {type_}")
    if None in type_.names:
        return [_map_leaves(element, fn, f"{path}[{i}]") for i, element in enumerate(type_.types)]
    return {name: _map_leaves(element, fn, f"{path}.{name}") for name, element in type_.elements}


def _visit_ranges(type_: Type, ranges: Any, default: Any, visit: Callable, path: tuple[int, ...] = ()) -> None:
    """Calls `visit(path, leaf, lower, upper)` for each tensor of a type, with its path, its type and its range.

    Args:
        ranges: the user's ranges in the structure of the type; None, for the whole or a part, takes the default.
        default: the ranges of `create_default_secure_sum_quantization_ranges`: pairs in dicts and lists.
        path: that of `type_`: positions of elements from the outermost struct.
    """
    if isinstance(type_, StructType):
        keys: Sequence = list(range(len(type_))) if isinstance(default, list) else list(default)
        by_key = _ranges_by_key(ranges, keys, type_)
        for i, key in enumerate(keys):
            _visit_ranges(type_.types[i], by_key.get(key), default[key], visit, (*path, i))
        return
    visit(path, type_, *(default if ranges is None else _pair(ranges, type_)))


def _ranges_by_key(ranges: Any, keys: Sequence, type_: Type) -> Mapping:
    """The user's ranges of a struct's elements by key; keys without a range are missing.

    Raises:
        TypeMismatch: the ranges have another structure.
    """
    if isinstance(ranges, list | tuple) and len(ranges) == len(keys) and keys == list(range(len(keys))):
        ranges = dict(enumerate(ranges))
    if ranges is None or (isinstance(ranges, Mapping) and set(ranges) <= set(keys)):
        return ranges or {}
    raise TypeMismatch(f"metric_value_ranges has {brief(ranges)} for {type_}, which it has another structure than")


def _pair(bounds: Any, leaf: Type) -> tuple:
    if isinstance(bounds, tuple) and len(bounds) == 2:
        return bounds
    error = InvalidValue if isinstance(bounds, tuple) else TypeMismatch
    raise error(f"metric_value_ranges has a pair (lower, upper) for each tensor, not {brief(bounds)} for {leaf}")


def _element(value: Value, path: tuple[int, ...]) -> Value:
    for i in path:
        value = value[i]
    return value


def _label(type_: Type, path: tuple[int, ...]) -> str:
    """The name of a tensor for people, `metric accuracy 0` for the first of the accuracy's; no two are equal."""
    names = ["metric"]
    for i in path:
        assert isinstance(type_, StructType)
        if type_.names[i] is not None or len(type_) > 1:
            names.append(type_.names[i] or str(i))
        type_ = type_.types[i]
    return " ".join(names)


def _pack(type_: Type, by_path: Mapping, path: tuple[int, ...] = ()) -> Any:
    """The tensors in the structure of `type_`, which is at `path` of the whole type."""
    if not isinstance(type_, StructType):
        return by_path[path]
    elements = [_pack(element, by_path, (*path, i)) for i, element in enumerate(type_.types)]
    if None not in type_.names:
        return dict(zip(type_.names, elements, strict=True))
    is_list = isinstance(type_, StructWithPythonType) and type_.container == "list"
    return elements if is_list else tuple(elements)
