"""Base classes of aggregators: factories that build an aggregation process for a type of value."""

import abc
import math
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from fedcore.computation import Computation, federated_computation
from fedcore.errors import TypeMismatch, brief
from fedcore.ir.values import Value
from fedcore.templates import AggregationProcess
from fedcore.templates.composition import with_parameters
from fedcore.templates.iterative import check_computation
from fedcore.types import CLIENTS, KINDS, FederatedType, TensorType, Type, is_static, leaves, tensor_leaves


class AggregationFactory:
    """A factory of aggregations, with or without weights: base of the two below, for `isinstance` and annotations.

    Types: `create` takes the type of the client values, and that of the weights where they have weights.

    Example:
        >>> isinstance(fc.aggregators.MeanFactory(), fc.aggregators.AggregationFactory)
        True
    """

    create: Callable[..., AggregationProcess]

    leaves_out_non_finite = False
    """Whether a client whose value has an entry that is infinite or NaN counts for nothing."""


class UnweightedAggregationFactory(AggregationFactory, abc.ABC):
    """Builds aggregations of values that all count the same.

    Types, for client values of type V; most results are of type V too:
        create  V -> AggregationProcess
        next    (<state=S@SERVER,value={V}@CLIENTS> -> <state=S@SERVER,result=R@SERVER,measurements=M@SERVER>)

    Raises:
        TypeMismatch: by `create`, the factory does not aggregate V.
    Example:
        >>> process = fc.aggregators.SumFactory().create(fc.to_type('float32'))
        >>> process.next(process.initialize(), [1.0, 2.0]).result
        np.float32(3.0)
    """

    why_no_weights = ""
    """Why its values shall not be multiplied by weights or divided by a count; empty where they may be."""

    why_no_sum = ""
    """Why its result may not stand in the place of a sum; empty where it may."""

    @abc.abstractmethod
    def create(self, value_type: Type) -> AggregationProcess:
        """The process for client values of `value_type`."""


class WeightedAggregationFactory(AggregationFactory, abc.ABC):
    """Builds aggregations of values that come with a weight.

    Types, for client values of type V with weights of type W; most results are of type V too:
        create  (V, W) -> AggregationProcess
        next    (<state=S@SERVER,value={V}@CLIENTS,weight={W}@CLIENTS> ->
                 <state=S@SERVER,result=R@SERVER,measurements=M@SERVER>)

    Raises:
        TypeMismatch: by `create`, the factory does not aggregate V, or W is no real scalar.
    Example:
        >>> process = fc.aggregators.MeanFactory().create(fc.to_type('float32'), fc.to_type('float32'))
        >>> process.next(process.initialize(), [1.0, 2.0], [3.0, 1.0]).result
        np.float32(1.25)
    """

    @abc.abstractmethod
    def create(self, value_type: Type, weight_type: Type) -> AggregationProcess:
        """The process for client values of `value_type` with weights of `weight_type`."""


def require(kind: str, type_: Type, who: str) -> None:
    """Refuses a type of client values that is not of a kind such as numeric or inexact, naming what is not.

    Raises:
        TypeMismatch: it is not.
    """
    violation = KINDS[kind](type_)
    if violation is not None:
        _, reason = violation
        raise TypeMismatch(f"{who} aggregates {kind} values, but of the value {type_} a part {reason}")


def require_floats(type_: Type, who: str) -> None:
    """Refuses a type of client values that are not floats, naming what is not.

    Raises:
        TypeMismatch: they are not.
    """
    require("inexact", type_, who)
    require("real", type_, who)


def element_count_for_noise(type_: Type, who: str) -> int:
    """The number of elements of a client value to which noise is added.

    Raises:
        TypeMismatch: they are not floats, a shape is not known, or there are none.
    """
    require_floats(type_, who)
    types = tensor_leaves(type_)
    if not all(is_static(t.shape) for t in types):
        raise TypeMismatch(f"{who} aggregates real values of known shapes, not {type_}")
    size = sum(math.prod(n or 0 for n in t.sizes) for t in types)
    if not size:
        raise TypeMismatch(f"{who} adds noise to the elements of a value, and {type_} has none")
    return size


def refuse_leaf(rule: str, type_: Type, fits: Callable[[TensorType], bool]) -> None:
    """Refuses a type of client values without leaves, or with a leaf that does not fit, naming it.

    Args:
        rule: what the factory takes, such as "mine joins leaves of one dtype".
        fits: whether the factory takes a leaf of this type.
    Raises:
        TypeMismatch: it has no leaves, or one does not fit.
    """
    parts = leaves(type_)
    for path, leaf in parts:
        if not isinstance(leaf, TensorType) or not fits(leaf):
            raise TypeMismatch(f"{rule}, not {type_}, of which {f'`{path}`' if path else 'a part'} is {leaf}")
    if not parts:
        raise TypeMismatch(f"{rule}, not {type_}")


def client_member(value: object, who: str) -> Type:
    """The type of one client's part of a client value.

    Raises:
        TypeMismatch: `value` is no client value.
    """
    if not isinstance(value, Value) or not isinstance(value.type, FederatedType) or value.type.placement != CLIENTS:
        actual = value.type if isinstance(value, Value) else brief(value)
        raise TypeMismatch(f"{who} takes a client value, inside a federated computation, not {actual}")
    return value.type.member


def require_scalar_weight(type_: Type, who: str) -> None:
    """Refuses a type of weights that is no real scalar.

    Raises:
        TypeMismatch: it is none.
    """
    if not isinstance(type_, TensorType) or type_.shape != () or not type_.dtype.is_real:
        raise TypeMismatch(f"{who}: a weight is a number, such as float32, not {type_}")


def check_factory(argument: str, factory: object, without_weights: bool = False) -> None:
    """Checks that an argument is an aggregation factory, and one without weights if it has to be.

    Raises:
        TypeMismatch: it is no factory (the class of one is no factory), or is weighted where it may not be.
    """
    if without_weights and not isinstance(factory, UnweightedAggregationFactory):
        raise TypeMismatch(
            f"{argument} is a factory of fc.aggregators without weights, such as fc.aggregators.SumFactory(), "
            f"not {brief(factory)}"
        )
    if not isinstance(factory, UnweightedAggregationFactory | WeightedAggregationFactory):
        raise TypeMismatch(
            f"{argument} is a factory of fc.aggregators, such as fc.aggregators.MeanFactory(), not {brief(factory)}"
        )


def refuse_weights(factory: object, who: str) -> None:
    """Refuses a factory whose values may not be multiplied by weights or divided by a count (`why_no_weights`).

    Args:
        who: the caller that would do so, for the message.
    Raises:
        TypeMismatch: it is such a factory.
    """
    if isinstance(factory, UnweightedAggregationFactory) and factory.why_no_weights:
        raise TypeMismatch(f"{who} takes no {type(factory).__name__}: {factory.why_no_weights}")


def aggregation_process(
    initialize: Computation,
    value_type: Type,
    weight_type: Type | None,
    body: Callable,
    value_name: str = "value",
) -> AggregationProcess:
    """The process with or without a weight whose `next` is `body(state, value, weights)`.

    Types, for client values of type V with weights of type W; without weights `next` takes a state and a value:
        next  (<state=S@SERVER,value={V}@CLIENTS,weight={W}@CLIENTS> ->
               <state=S@SERVER,result=R@SERVER,measurements=M@SERVER>)

    Args:
        initialize: makes the state.
        value_type: V.
        weight_type: W; None for a process without a weight.
        body: traced once; `weights` is a tuple of the weight, or () where there is none. Returns a
            `fc.templates.MeasuredProcessOutput`.
        value_name: the name of the second parameter of `next`.
    Raises:
        TypeMismatch: `initialize` is no computation; `body` does not return a state that it takes, or not at the
            server.
    Example:
        >>> nothing = fc.federated_computation(lambda: fc.federated_value((), fc.SERVER))
        >>> def largest(state, value, weights):
        ...     return fc.templates.MeasuredProcessOutput(state, fc.federated_max(value), state)
        >>> process = fc.aggregators.aggregation_process(nothing, fc.to_type('float32'), None, largest)
        >>> process.next(process.initialize(), [1.0, 3.0]).result
        np.float32(3.0)
    """
    check_computation("aggregation_process", "initialize", initialize)
    types = [value_type] if weight_type is None else [value_type, weight_type]
    next_fn = with_parameters(
        lambda state, value, *weights: body(state, value, weights), [value_name, "weight"][: len(types)]
    )
    values = [FederatedType(type_, CLIENTS) for type_ in types]
    state_type = initialize.type_signature.result
    return AggregationProcess(initialize, federated_computation(next_fn, state_type, *values))


CreateInner: TypeAlias = Callable[[Type], AggregationProcess]
"""Makes the process of the inner factory for a type of value."""

BuildWrapper: TypeAlias = Callable[[Type, Type | None, CreateInner], AggregationProcess]
"""Makes the process of a factory around another one: (value type, weight type or None, makes the inner process)."""


class _UnweightedWrapper(UnweightedAggregationFactory):
    def __init__(self, inner: AggregationFactory, build: BuildWrapper) -> None:
        self.inner = inner
        self.build = build

    def create(self, value_type: Type) -> AggregationProcess:
        return self.build(value_type, None, self.inner.create)


class _WeightedWrapper(WeightedAggregationFactory):
    def __init__(self, inner: WeightedAggregationFactory, build: BuildWrapper) -> None:
        self.inner = inner
        self.build = build

    def create(self, value_type: Type, weight_type: Type) -> AggregationProcess:
        return self.build(value_type, weight_type, lambda inner_type: self.inner.create(inner_type, weight_type))


FactoryT = TypeVar("FactoryT", UnweightedAggregationFactory, WeightedAggregationFactory, AggregationFactory)
"""The kind of a factory that stands around another one: weighted or not, as the inner one is."""


def wrapping_factory(inner_agg_factory: FactoryT, build: BuildWrapper, *, keeps_non_finite: bool = False) -> FactoryT:
    """A factory around another one, which is weighted if the inner one is.

    Args:
        inner_agg_factory: a user's argument of this name.
        build: makes the process.
        keeps_non_finite: whether the process hands entries that are not finite to the inner one, and reads them nowhere
            else; only then can the inner factory leave out such clients (`leaves_out_non_finite`).
    Raises:
        TypeMismatch: `inner_agg_factory` is no factory.
    """
    check_factory("inner_agg_factory", inner_agg_factory)
    wrapper: Any
    if isinstance(inner_agg_factory, WeightedAggregationFactory):
        wrapper = _WeightedWrapper(inner_agg_factory, build)
    else:
        wrapper = _UnweightedWrapper(inner_agg_factory, build)
    wrapper.leaves_out_non_finite = keeps_non_finite and inner_agg_factory.leaves_out_non_finite
    return wrapper
