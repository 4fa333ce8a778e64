"""Aggregators of histograms whose buckets are added up in a tree, so that ranges have little noise."""

import math

from fedcore.aggregators import (
    DifferentiallyPrivateFactory,
    DistributedDiscreteGaussianFactory,
    SecureSumFactory,
    SumFactory,
    UnweightedAggregationFactory,
)
from fedcore.analytics.hierarchical_histogram.clipping_factory import (
    HistogramClippingSumFactory,
    checked_clip_mechanism,
)
from fedcore.analytics.hierarchical_histogram.tree import TreeSumFactory, tree_depth
from fedcore.errors import InvalidValue, brief
from fedcore.scalars import real_number, whole_number


def create_hierarchical_histogram_aggregation_factory(
    num_bins: int,
    arity: int = 2,
    clip_mechanism: str = "sub-sampling",
    max_records_per_user: int = 10,
    dp_mechanism: str = "no-noise",
    noise_multiplier: float = 0.0,
    enable_secure_sum: bool = True,
    *,
    clients_per_round: int | None = None,
) -> UnweightedAggregationFactory:
    """Puts together the aggregator of histograms: clip, make the tree, add noise, sum.

    Types, for V an integer vector of `num_bins`:
        next  (<state=S@SERVER,value={V}@CLIENTS> -> <state=S@SERVER,result=R@SERVER,measurements=M@SERVER>)
        R is <flat_values=W[nodes],nested_row_splits=<int64[layers+1]>>, W being the dtype of V, or float32 with noise

    Args:
        num_bins: of a client's histogram.
        arity: children of a node, 2 or more.
        clip_mechanism: 'sub-sampling' samples a client's records; 'distinct' counts a bin of a client once.
        max_records_per_user: records of a client at most.
        dp_mechanism: 'no-noise'; 'central-gaussian': the server adds noise to each node; or
            'distributed-discrete-gaussian': the clients do, and the server sees the sum only.
        noise_multiplier: the standard deviation of the noise over the greatest L2 norm of a client's tree.
        enable_secure_sum: whether the nodes are added by a secure sum; always with 'distributed-discrete-gaussian'.
        clients_per_round: how many clients are expected, for 'distributed-discrete-gaussian' only.
    Raises:
        FedcoreError: an argument is outside its range, or arguments do not fit each other.
    Source: Hay et al. 2010, arXiv:0904.0942, section 4; Kairouz, Liu, Steinke 2021, arXiv:2102.06387.
    Example:
        >>> build = fc.analytics.hierarchical_histogram.create_hierarchical_histogram_aggregation_factory
        >>> process = build(num_bins=2).create(fc.TensorType('int32', [2]))
        >>> process.next(process.initialize(), [[1, 0], [1, 5]]).result['flat_values']
        array([7, 2, 5], dtype=int32)
    """
    num_bins = whole_number("num_bins", num_bins, at_least=1)
    arity = whole_number("arity", arity, at_least=2)
    most = whole_number("max_records_per_user", max_records_per_user, at_least=1)
    noise = real_number("noise_multiplier", noise_multiplier, at_least=0)
    distinct = checked_clip_mechanism(clip_mechanism) == "distinct"
    distributed = dp_mechanism == "distributed-discrete-gaussian"
    if dp_mechanism not in ("no-noise", "central-gaussian") and not distributed:
        raise InvalidValue(
            "dp_mechanism is 'no-noise', 'central-gaussian' or 'distributed-discrete-gaussian', not "
            f"{brief(dp_mechanism)}"
        )
    if noise and dp_mechanism == "no-noise":
        raise InvalidValue(
            f"noise_multiplier={noise:g} adds no noise with dp_mechanism='no-noise'\n"
            "  fix: dp_mechanism='central-gaussian', or 'distributed-discrete-gaussian'"
        )
    if distributed and not (enable_secure_sum and clients_per_round is not None):
        raise InvalidValue("'distributed-discrete-gaussian' needs enable_secure_sum=True and clients_per_round")
    if not distributed and clients_per_round is not None:
        raise InvalidValue(f"clients_per_round goes with 'distributed-discrete-gaussian', not {dp_mechanism!r}")
    sums = SecureSumFactory(most, 0) if enable_secure_sum else SumFactory()
    inner: UnweightedAggregationFactory = sums
    norm, scale = _largest_norm(tree_depth(num_bins, arity), arity, most, distinct), 1
    if dp_mechanism == "central-gaussian":
        inner = DifferentiallyPrivateFactory(noise, clients_per_round=1, clip=norm, sum_factory=sums)
    elif distributed:
        scale = whole_number("clients_per_round", clients_per_round, at_least=1)
        inner = DistributedDiscreteGaussianFactory(noise, scale, norm)
    tree = TreeSumFactory(arity, inner, scale=scale)
    return HistogramClippingSumFactory(clip_mechanism, most, tree, cast_to_float=dp_mechanism != "no-noise")


def _largest_norm(depth: int, arity: int, most: int, distinct: bool) -> float:
    """The greatest L2 norm of the tree of a client with `most` records.

    A layer that is h above the bins holds `most` records in all; a node of it, with one record a bin at most if they
    are `distinct`, holds `arity`^h.
    """
    if not distinct:
        return most * math.sqrt(depth)
    return math.sqrt(sum(min(most**2, most * arity**height) for height in range(depth)))
