"""An estimate of a quantile of a client value, moved a little every round."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from fedcore.aggregators.rechecking import recheck, zero_or_one
from fedcore.computation import federated_computation, tf_computation
from fedcore.errors import FedcoreError, brief
from fedcore.intrinsics import (
    federated_broadcast,
    federated_eval,
    federated_map,
    federated_mean,
    federated_secure_sum,
)
from fedcore.ir.values import Value
from fedcore.scalars import real_number
from fedcore.templates import EstimationProcess
from fedcore.types import CLIENTS, SERVER, FederatedType, TensorType

_LEAST, _LARGEST = (float(limit) for limit in (np.finfo(np.float32).tiny, np.finfo(np.float32).max))


class PrivateQuantileEstimationProcess(EstimationProcess):
    """Estimates a quantile of a client scalar by one bit a client: is its value at most the estimate?

    Types:
        initialize  (-> float32@SERVER)
        next        (<state=float32@SERVER,value={float32}@CLIENTS> -> float32@SERVER)
        report      (state=float32@SERVER -> float32@SERVER)

    A round without clients leaves the estimate as it was. NaN counts as larger than any number.

    Raises:
        TypeMismatch: a computation does not take the state, or `initialize_fn` and `next_fn` give different ones.
    Source: Andrew, Thakkar, McMahan, Ramaswamy 2021, "Differentially private learning with adaptive clipping",
        arXiv:1905.03871, Algorithm 1, without its noise.
    Example:
        >>> process = fc.aggregators.PrivateQuantileEstimationProcess.no_noise(1.0, 0.5, learning_rate=0.2)
        >>> state = process.next(process.initialize(), [3.0, 4.0])
        >>> bool(process.report(state) > 1)
        True
    """

    def map(self, fn: Callable[[tf.Tensor], tf.Tensor]) -> "PrivateQuantileEstimationProcess":
        """The process that reports `fn` (tensor -> tensor) of the estimate.

        Example:
            >>> process = fc.aggregators.PrivateQuantileEstimationProcess.no_noise(1.0, 0.5, learning_rate=0.2)
            >>> doubled = process.map(lambda estimate: 2.0 * estimate)
            >>> doubled.report(doubled.initialize())
            np.float32(2.0)
        """
        inner, transform = self.report, tf_computation(TensorType("float32"))(fn)

        @federated_computation(self.state_type)
        def report(state: Value) -> Value:
            return federated_map(transform, inner(state))

        return PrivateQuantileEstimationProcess(self.initialize, self.next, report)

    @classmethod
    def no_noise(
        cls,
        initial_estimate: float,
        target_quantile: float,
        learning_rate: float,
        multiplier: float = 1.0,
        increment: float = 0.0,
        secure_estimation: bool = False,
    ) -> "PrivateQuantileEstimationProcess":
        """The process that counts the bits exactly, and reports multiplier · estimate + increment.

        Args:
            initial_estimate: where the estimate starts; greater than 0, since it moves by factors.
            target_quantile: between 0 and 1.
            learning_rate: a round moves the logarithm of the estimate by at most this.
            multiplier: greater than 0.
            increment: at least 0.
            secure_estimation: bits and clients are counted in secure sums. The estimates are the same.
        Raises:
            FedcoreError: an argument is outside its range.
        Example:
            >>> median = fc.aggregators.PrivateQuantileEstimationProcess.no_noise(1.0, 0.5, learning_rate=0.2)
            >>> factory = fc.aggregators.clipping_factory(median, fc.aggregators.MeanFactory())
        """
        initial_estimate = real_number("initial_estimate", initial_estimate, above=0)
        learning_rate = real_number("learning_rate", learning_rate, at_least=0)
        target_quantile = real_number("target_quantile", target_quantile)
        if not 0 <= target_quantile <= 1:
            raise FedcoreError(f"target_quantile is between 0 and 1, not {brief(target_quantile)}")
        if not _LEAST <= initial_estimate <= _LARGEST:
            raise FedcoreError(f"initial_estimate is a float32 above 0, not {brief(initial_estimate)}")
        multiplier = real_number("multiplier", multiplier, above=0)
        increment = real_number("increment", increment, at_least=0)
        number = TensorType("float32")
        start = tf_computation(lambda: tf.constant(initial_estimate, tf.float32))

        @tf_computation(number, number)
        def at_most_estimate(value: tf.Tensor, estimate: tf.Tensor) -> tf.Tensor:
            return tf.cast(value <= estimate, tf.float32)

        @tf_computation(number, number)
        def move(estimate: tf.Tensor, fraction: tf.Tensor) -> tf.Tensor:
            moved = estimate * tf.exp(-learning_rate * (fraction - target_quantile))
            moved = tf.clip_by_value(moved, _LEAST, _LARGEST)  # 0 and infinity would stay for ever
            return tf.where(tf.math.is_finite(fraction), moved, estimate)

        def fraction_at_most_estimate(bits: Value) -> Value:
            """The mean of the clients' bits; NaN without clients."""
            if not secure_estimation:
                return federated_mean(recheck(bits, zero_or_one))
            pairs = federated_map(bit_with_one, bits)
            return federated_map(fraction_of_counts, federated_secure_sum(pairs, 1))

        @tf_computation(number)
        def bit_with_one(bit: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"at_most_estimate": tf.cast(bit, tf.int32), "clients": tf.constant(1)}

        fraction_of_counts = tf_computation(
            lambda counts: tf.cast(counts["at_most_estimate"], tf.float32) / tf.cast(counts["clients"], tf.float32)
        )

        @federated_computation
        def initialize() -> Value:
            return federated_eval(start, SERVER)

        @federated_computation(FederatedType(number, SERVER), FederatedType(number, CLIENTS))
        def next_fn(state: Value, value: Value) -> Value:
            bits = federated_map(at_most_estimate, (value, federated_broadcast(state)))
            return federated_map(move, (state, fraction_at_most_estimate(bits)))

        @federated_computation(FederatedType(number, SERVER))
        def report(state: Value) -> Value:
            return state

        process = cls(initialize, next_fn, report)
        if multiplier == 1 and increment == 0:
            return process
        return process.map(lambda estimate: multiplier * estimate + increment)
