"""An estimate of a quantile of a client value, moved a little every round."""

from collections.abc import Callable

import tensorflow as tf

from fedcore.computation import Computation, federated_computation, tf_computation
from fedcore.errors import FedcoreError, brief
from fedcore.intrinsics import federated_broadcast, federated_eval, federated_map, federated_mean
from fedcore.scalars import real_number
from fedcore.templates import IterativeProcess
from fedcore.types import CLIENTS, SERVER, FederatedType, TensorType


class PrivateQuantileEstimationProcess(IterativeProcess):
    """Estimates a quantile of a client scalar by one bit a client: is its value at most the estimate?

    Types:
        initialize  (-> float32@SERVER)
        next        (<state=float32@SERVER,value={float32}@CLIENTS> -> float32@SERVER)
        report      (state=float32@SERVER -> float32@SERVER)

    A round without clients leaves the estimate as it was. A value that is not finite counts as larger than any.

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

    def __init__(self, initialize_fn: Computation, next_fn: Computation, report_fn: Computation):
        super().__init__(initialize_fn, next_fn)
        self._report = report_fn

    @property
    def report(self) -> Computation:
        """The estimate of a state."""
        return self._report

    def map(self, fn: Callable) -> "PrivateQuantileEstimationProcess":
        """The process that reports `fn` (tensor -> tensor) of the estimate.

        Example:
            >>> process = fc.aggregators.PrivateQuantileEstimationProcess.no_noise(1.0, 0.5, learning_rate=0.2)
            >>> doubled = process.map(lambda estimate: 2.0 * estimate)
            >>> doubled.report(doubled.initialize())
            np.float32(2.0)
        """
        inner, transform = self._report, tf_computation(TensorType("float32"))(fn)

        @federated_computation(self.state_type)
        def report(state):
            return federated_map(transform, inner(state))

        return PrivateQuantileEstimationProcess(self.initialize, self.next, report)

    @classmethod
    def no_noise(
        cls, initial_estimate: float, target_quantile: float, learning_rate: float
    ) -> "PrivateQuantileEstimationProcess":
        """The process that counts the bits exactly.

        Args:
            initial_estimate: where the estimate starts; greater than 0, since it moves by factors.
            target_quantile: between 0 and 1.
            learning_rate: a round moves the logarithm of the estimate by at most this.
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
        number = TensorType("float32")
        start = tf_computation(lambda: tf.constant(initial_estimate, tf.float32))
        below = tf_computation(number, number)(lambda value, estimate: tf.cast(value <= estimate, tf.float32))

        @tf_computation(number, number)
        def move(estimate, fraction):
            moved = estimate * tf.exp(-learning_rate * (fraction - target_quantile))
            return tf.where(tf.math.is_finite(fraction), moved, estimate)

        @federated_computation
        def initialize():
            return federated_eval(start, SERVER)

        @federated_computation(FederatedType(number, SERVER), FederatedType(number, CLIENTS))
        def next_fn(state, value):
            bits = federated_map(below, (value, federated_broadcast(state)))
            return federated_map(move, (state, federated_mean(bits)))

        @federated_computation(FederatedType(number, SERVER))
        def report(state):
            return state

        return cls(initialize, next_fn, report)
