"""Metrics aggregators: functions of a model that make, of the clients' metric states, the server's metrics.

Types, for metric states S and metrics M of a model:
    aggregator(model)  ({S}@CLIENTS -> (S@SERVER, M@SERVER)), used while a round is traced
"""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from fedcore.aggregators import SecureSumFactory, UnweightedReservoirSamplingFactory
from fedcore.aggregators.gathering import gathered, rows_type
from fedcore.computation import tf_computation
from fedcore.errors import InvalidValue
from fedcore.intrinsics import federated_map, federated_sum, federated_zip
from fedcore.scalars import real_number


def _finalize(model, states):
    return tf_computation(states.type.member)(lambda state: model.finalize_metrics(state))


def sum_then_finalize(model) -> Callable:
    """Adds the clients' metric states, then computes the metrics once, at the server.

    Types, for metric states S and metrics M of the model: the function takes {S}@CLIENTS and gives (S@SERVER,
    M@SERVER), while a round is traced.

    Returns:
        The function. No clients give the metrics of states of zeros: counts of 0, means of NaN.
    Example:
        >>> process = fc.learning.algorithms.build_fed_sgd(
        ...     model_fn, metrics_aggregator=fc.learning.metrics.sum_then_finalize)
        >>> state, metrics = process.next(process.initialize(), [client_a, client_b])
        >>> metrics['client_work']['train']['num_batches']
        np.int64(3)
    """

    def aggregate(client_states):
        total = federated_sum(client_states)
        return total, federated_map(_finalize(model, client_states), total)

    return aggregate


def secure_sum_then_finalize(model, bound: float = 2.0**20) -> Callable:
    """As `sum_then_finalize`, by a secure sum: integers are exact, floats have 2^32 levels.

    Types: those of `sum_then_finalize`.

    Args:
        bound: every element of a client's states is clipped into [-bound, bound].
    Returns:
        The function. No clients give the metrics of states of zeros.
    Raises:
        FedcoreError: the bound is not greater than 0.
    Source: that of `fc.aggregators.SecureSumFactory`.
    Example:
        >>> process = fc.learning.algorithms.build_fed_sgd(
        ...     model_fn, metrics_aggregator=fc.learning.metrics.secure_sum_then_finalize)
    """
    bound = real_number("bound", bound, above=0)

    def aggregate(client_states):
        process = SecureSumFactory(bound).create(client_states.type.member)
        total = process.next(process.initialize(), client_states).result
        return total, federated_map(_finalize(model, client_states), total)

    return aggregate


def finalize_then_sample(model, sample_size: int = 100) -> Callable:
    """Computes the metrics at every client; the server gets those of a uniform sample, a row each.

    Types, for metric states S and metrics M of the model, with M[?] their rows: the function takes {S}@CLIENTS and
    gives (S@SERVER, M[?]@SERVER), while a round is traced.

    Args:
        sample_size: the most clients in the sample.
    Returns:
        The function. No clients give no rows.
    Raises:
        FedcoreError: the size is less than 1; when a round is traced.
    Source: that of `fc.aggregators.UnweightedReservoirSamplingFactory`.
    Example:
        >>> process = fc.learning.algorithms.build_fed_sgd(
        ...     model_fn, metrics_aggregator=fc.learning.metrics.finalize_then_sample)
        >>> state, metrics = process.next(process.initialize(), [client_a, client_b])
        >>> sorted(metrics['client_work']['train']['num_examples'])
        [np.int64(2), np.int64(3)]
    """

    def aggregate(client_states):
        metrics = federated_map(_finalize(model, client_states), client_states)
        process = UnweightedReservoirSamplingFactory(sample_size).create(metrics.type.member)
        return federated_sum(client_states), process.next(process.initialize(), metrics).result

    return aggregate


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
        A metrics aggregator. The server holds a number for each client and metric. Clients whose metric is NaN (no
        examples) are left out; no clients give NaN.
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

    def one(rows):
        values = tf.sort(tf.boolean_mask(rows, ~tf.math.is_nan(rows)))
        count = tf.size(values)
        at = tf.constant(quantiles, tf.float32) * tf.cast(tf.maximum(count - 1, 0), tf.float32)
        low = tf.cast(tf.floor(at), tf.int32)
        padded = tf.concat([values, tf.fill([2], float("nan"))], 0)
        high = tf.minimum(low + 1, tf.maximum(count - 1, 0))
        share = at - tf.floor(at)
        return tf.gather(padded, low) * (1 - share) + tf.gather(padded, high) * share

    def build(model) -> Callable:
        aggregate_inner = inner(model)

        def aggregate(client_states):
            @tf_computation(client_states.type.member)
            def scalars(state):
                metrics = model.finalize_metrics(state)
                return {n: tf.cast(v, tf.float32) for n, v in metrics.items() if tf.convert_to_tensor(v).shape == ()}

            total, metrics = aggregate_inner(client_states)
            values = federated_map(scalars, client_states)
            row = values.type.member
            report = tf_computation(rows_type(row))(lambda rows: {name: one(column) for name, column in rows.items()})
            found = {name: metrics[name] for name in metrics.type.member.names}
            return total, federated_zip({**found, "per_client": gathered(values, row, report)})

        return aggregate

    return build
