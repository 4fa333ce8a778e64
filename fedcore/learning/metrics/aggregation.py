"""Metrics aggregators: functions of a model, or of finalizers, that make of clients' metric states the metrics.

Types, for metric states S and metrics M; used while a round is traced:
    aggregator(model)       ({S}@CLIENTS -> (S@SERVER, M@SERVER))
    aggregator(finalizers)  ({S}@CLIENTS -> M@SERVER)

An evaluation adds up its rounds, so a function of a model gives the added states too.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fedcore.aggregators import federated_sample
from fedcore.aggregators.gathering import gather_rows, rows_type
from fedcore.computation import Computation, federated_computation, tf_computation
from fedcore.context import NON_FINITE_CLIENTS
from fedcore.errors import InvalidValue
from fedcore.intrinsics import federated_map, federated_sum, federated_zip
from fedcore.ir import Value
from fedcore.learning.metrics.finalizers import check_finalizers, finalizer, is_model
from fedcore.learning.metrics.secure_sum_factory import secure_sum_of_ranges
from fedcore.scalars import real_number, whole_number
from fedcore.types import Type, member_of


def _aggregator(metric_finalizers: Any, body: Callable) -> Callable:
    """Builds an aggregator, in one of the two forms of this module.

    Args:
        metric_finalizers: a model or finalizers.
        body: (client states, the computation S -> M of the finalizers) -> (their sum, metrics), both at the server.
    Raises:
        TypeMismatch: `metric_finalizers` is neither.
    """
    check_finalizers(metric_finalizers)

    def add_and_finalize(client_states: Value) -> tuple[Value, Value]:
        return body(client_states, finalizer(metric_finalizers, member_of(client_states.type)))

    if is_model(metric_finalizers):
        return add_and_finalize

    @federated_computation
    def aggregate_metrics(client_states: Value) -> Value:
        return add_and_finalize(client_states)[1]

    return aggregate_metrics


def sum_then_finalize(metric_finalizers: Any, local_unfinalized_metrics_type: Type | None = None) -> Callable:
    """Adds the clients' metric states, then computes the metrics once, at the server.

    Types, for metric states S and metrics M: of a model, the function takes {S}@CLIENTS and gives (S@SERVER,
    M@SERVER), while a round is traced; of finalizers, it is a computation ({S}@CLIENTS -> M@SERVER) for any S.

    Args:
        metric_finalizers: a model; or functions by the names of metrics, as `model.metric_finalizers()`; or one
            function of all states.
        local_unfinalized_metrics_type: not used, as in TFF; S is that of the states.
    Returns:
        The function. No clients give the metrics of states of zeros: counts of 0, a loss of 0, Keras' means of 0.
    Raises:
        TypeMismatch: the finalizers are none; when it is traced, S is no struct with names.
        FedcoreError: when it is traced, finalizers and states have other names.
    Example:
        >>> process = fc.learning.algorithms.build_fed_sgd(
        ...     model_fn, metrics_aggregator=fc.learning.metrics.sum_then_finalize)
        >>> state, metrics = process.next(process.initialize(), [client_a, client_b])
        >>> metrics['client_work']['train']['num_batches']
        np.int64(3)
    """

    def body(client_states: Value, finalize: Computation) -> tuple[Value, Value]:
        total = federated_sum(client_states)
        return total, federated_map(finalize, total)

    return _aggregator(metric_finalizers, body)


def secure_sum_then_finalize(
    metric_finalizers: Any,
    local_unfinalized_metrics_type: Type | None = None,
    metric_value_ranges: Mapping | None = None,
    *,
    bound: float = 2.0**20,
) -> Callable:
    """Like `sum_then_finalize`, by a secure sum: integers are exact, floats have 2^32 - 1 levels.

    Types: those of `sum_then_finalize`; M gains `secure_sum_measurements`, those of
    `fc.learning.metrics.SecureSumFactory`.

    Args:
        metric_finalizers, local_unfinalized_metrics_type: as for `sum_then_finalize`.
        metric_value_ranges: pairs (lower, upper) in the structure of S, of which parts may be missing or None: every
            element of a client's states is clipped into its range. Default: -bound to bound everywhere (TFF's default
            is 0 to 2^20 - 1, which makes zeros of negative states).
        bound: where there is no range.
    Returns:
        The function. No clients give the metrics of states of zeros.
    Raises:
        FedcoreError: the bound is not greater than 0; when it is traced, a range is not in order, or as above.
        TypeMismatch: when it is traced, the ranges have another structure than S, or as above.
    Source: that of `fc.aggregators.SecureSumFactory`.
    Example:
        >>> process = fc.learning.algorithms.build_fed_sgd(
        ...     model_fn, metrics_aggregator=fc.learning.metrics.secure_sum_then_finalize)
    """
    bound = real_number("bound", bound, above=0)

    def body(client_states: Value, finalize: Computation) -> tuple[Value, Value]:
        process = secure_sum_of_ranges(member_of(client_states.type), metric_value_ranges, bound)
        output = process.next(process.initialize(), client_states)
        metrics: Any = federated_map(finalize, output.result)
        by_name = {name: metrics[name] for name in metrics.type.member.names}
        return output.result, federated_zip({**by_name, "secure_sum_measurements": output.measurements})

    return _aggregator(metric_finalizers, body)


def finalize_then_sample(
    metric_finalizers: Any, local_unfinalized_metrics_type: Type | None = None, sample_size: int = 100
) -> Callable:
    """Computes the metrics at every client; the server gets those of a uniform sample, a row each.

    Types, for metric states S and metrics M, with M[?] their rows: those of `sum_then_finalize`, with M[?] for M.

    Args:
        metric_finalizers, local_unfinalized_metrics_type: as for `sum_then_finalize`.
        sample_size: the most clients in the sample.
    Returns:
        The function. No clients give no rows. The row of a client whose training is not finite is that of no examples,
        with a 1 for num_non_finite_clients.
    Raises:
        FedcoreError: the size is less than 1; when it is traced, as for `sum_then_finalize`.
        TypeMismatch: as for `sum_then_finalize`, or a metric is not numeric.
    Source: that of `fc.aggregators.federated_sample`.
    Example:
        >>> process = fc.learning.algorithms.build_fed_sgd(
        ...     model_fn, metrics_aggregator=fc.learning.metrics.finalize_then_sample)
        >>> state, metrics = process.next(process.initialize(), [client_a, client_b])
        >>> sorted(metrics['client_work']['train']['num_examples'])
        [np.int64(2), np.int64(3)]
    """
    sample_size = whole_number("sample_size", sample_size, at_least=1)

    def body(client_states: Value, finalize: Computation) -> tuple[Value, Value]:
        metrics = federated_map(finalize, client_states)
        return federated_sum(client_states), federated_sample(metrics, sample_size)

    return _aggregator(metric_finalizers, body)


def add_client_quantiles(
    inner: Callable = sum_then_finalize, quantiles: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0)
) -> Callable:
    """Adds to another aggregator's metrics `per_client`: of every scalar metric, quantiles over the clients.

    Types, for the scalar metrics NAME of a model: those of `inner`, whose metrics gain
    per_client=<NAME=float32[number of quantiles],…>.

    Args:
        inner: the other aggregator. Default: `sum_then_finalize`.
        quantiles: between 0 and 1; linear between the clients, as `numpy.quantile`. Default: the quartiles.
    Returns:
        A metrics aggregator. The server holds a number for each client and metric. Clients without examples, whose
        metric is NaN, or whose work is not finite, are left out, but for the counts of examples and batches of clients
        without any; no clients give NaN.
    Raises:
        FedcoreError: there is no quantile, or one is outside [0, 1].
    Example:
        >>> process = fc.learning.algorithms.build_fed_sgd(
        ...     model_fn, metrics_aggregator=fc.learning.metrics.add_client_quantiles(quantiles=[0.5]))
        >>> state, metrics = process.next(process.initialize(), [client_a, client_b])
        >>> metrics['client_work']['train']['per_client']['num_examples']
        array([2.5], dtype=float32)
    """
    quantiles = [real_number("a quantile", q, at_least=0) for q in np.atleast_1d(quantiles)]
    if not quantiles or max(quantiles) > 1:
        raise InvalidValue(f"quantiles are between 0 and 1, not {quantiles!r}")

    def quantiles_of(rows: tf.Tensor) -> tf.Tensor:
        """The quantiles of the numbers of one metric, without NaN; NaN for no numbers."""
        values = tf.sort(tf.boolean_mask(rows, ~tf.math.is_nan(rows)))
        count = tf.size(values)
        positions = tf.constant(quantiles, tf.float32) * tf.cast(tf.maximum(count - 1, 0), tf.float32)
        low = tf.cast(tf.floor(positions), tf.int32)
        padded = tf.concat([values, [np.nan]], 0)  # for no values
        high = tf.minimum(low + 1, tf.maximum(count - 1, 0))
        share = positions - tf.floor(positions)
        below, above = tf.gather(padded, low), tf.gather(padded, high)
        return tf.where(share > 0, below * (1 - share) + above * share, below)

    def build(model: Any) -> Callable:
        aggregate_inner = inner(model)

        def aggregate(client_states: Value) -> tuple[Value, Value]:
            @tf_computation(member_of(client_states.type))
            def scalars(state: dict) -> dict[str, tf.Tensor]:
                """A client's scalar metrics by name; NaN for those that are left out, see `add_client_quantiles`."""
                metrics = model.finalize_metrics(state)
                numbers = {n: tf.cast(v, tf.float32) for n, v in metrics.items() if tf.convert_to_tensor(v).shape == ()}
                not_finite = numbers.get(NON_FINITE_CLIENTS, 0.0) > 0
                left_out = not_finite | (numbers.get("num_examples", 1.0) == 0)
                # Counts stay for a client without examples, and that of clients which are not finite always.
                counts = {NON_FINITE_CLIENTS: False, "num_examples": not_finite, "num_batches": not_finite}
                return {n: tf.where(counts.get(n, left_out), np.nan, v) for n, v in numbers.items()}

            total, metrics = aggregate_inner(client_states)
            values: Any = federated_map(scalars, client_states)
            row = values.type.member
            report = tf_computation(rows_type(row))(
                lambda rows: {name: quantiles_of(column) for name, column in rows.items()}
            )
            by_name = {name: metrics[name] for name in metrics.type.member.names}
            return total, federated_zip({**by_name, "per_client": gather_rows(values, row, report)})

        return aggregate

    return build
