"""Private sums whose noise the clients add, for servers that see secure sums only."""

import math
from typing import Any

import attrs
import tensorflow as tf

from fedcore.aggregators.bounding import clip_factors
from fedcore.aggregators.factory import UnweightedAggregationFactory, aggregation_process, element_count_for_noise
from fedcore.aggregators.private_noise.discrete_gaussian import discrete_gaussian
from fedcore.aggregators.private_noise.rotation import padded_size, rotate_back, rotate_vector
from fedcore.computation import federated_computation, tf_computation
from fedcore.errors import InvalidValue
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.intrinsics import (
    federated_broadcast,
    federated_eval,
    federated_map,
    federated_random_seed,
    federated_secure_modular_sum,
    federated_secure_sum,
    federated_zip,
    generic_zero,
)
from fedcore.ir.values import Value
from fedcore.scalars import real_number, whole_number
from fedcore.templates import AggregationProcess, MeasuredProcessOutput
from fedcore.types import CLIENTS, SERVER, TensorType, Type

_SPREAD = 4.0
"""Standard deviations of a coordinate of the sum that fit into the modulus."""
_TRIES = 6
"""Random roundings of a client; each is short enough with a probability of at least 0.39."""


@attrs.frozen
class DistributedPrivateState:
    """The state of a distributed private sum: what `fc.privacy.Ledger` reads.

    Args:
        sensitivity: float32, the greatest norm of a client's integers.
        noise_stddev: float32, of the noise that each client adds to each of its integers.
        dimension: int64, how many integers a client sends.
        clients: int64, how many there were in the last round; fewer clients add less noise.
        round: int64, rounds so far.
    """

    sensitivity: Any
    noise_stddev: Any
    dimension: Any
    clients: Any
    round: Any


class DistributedDiscreteGaussianFactory(UnweightedAggregationFactory):
    """The mean of clipped values to which the clients themselves add noise; the server sees secure sums only.

    A client clips its value, rotates it at random, rounds it at random to multiples of a step, adds discrete Gaussian
    noise, and sends it modulo 2^bits to a secure sum. The server undoes the rotation and divides.

    Types, for inexact real V of known shapes:
        next  (<state=S@SERVER,value={V}@CLIENTS> -> <state=S@SERVER,result=V@SERVER,measurements=M@SERVER>)
        S is `DistributedPrivateState`; M is <clip=float32,step=float32>.

    A value that is not finite counts as zeros. The noise of a round is that of the clients that came: with fewer of
    them than expected it is less, and the ledger counts it so. Without clients the result is zeros.

    Args:
        noise_multiplier: the standard deviation of the noise of the expected clients together, over `clip`. Rounding
            makes the sum a little less private than that; the ledger knows by how much.
        clients_per_round: how many clients are expected in a round.
        clip: the greatest L2 norm of a client's value, over all leaves.
        bits: of an integer that is sent, from 2 to 24: fewer bits make coarser steps.
    Raises:
        FedcoreError: a number is outside its range, or the bits are too few for so many clients.
        TypeMismatch: V is not inexact and real, has a shape that is not known, or has no elements.
    Source: Kairouz, Liu, Steinke 2021, "The distributed discrete Gaussian mechanism for federated learning with secure
        aggregation", arXiv:2102.06387, Algorithms 1 and 2. Where none of 6 random roundings is short enough, a value is
        rounded towards 0.
    Example:
        >>> factory = fc.aggregators.DistributedDiscreteGaussianFactory(0.0, clients_per_round=2, clip=1.0, bits=24)
        >>> process = factory.create(fc.to_type('float32'))
        >>> round(float(process.next(process.initialize(), [0.5, 7.0]).result), 3)
        0.75
    """

    why_no_weights = "the clients' noise is made for what one client can change, so every client counts the same"

    def __init__(self, noise_multiplier: float, clients_per_round: int, clip: float, bits: int = 20) -> None:
        self.noise_multiplier = float(real_number("noise_multiplier", noise_multiplier, at_least=0))
        self.clients_per_round = whole_number("clients_per_round", clients_per_round, at_least=1)
        self.clip = float(real_number("clip", clip, above=0))
        self.bits = whole_number("bits", bits, at_least=2)
        if self.bits > 24:
            raise InvalidValue(f"bits is at most 24, which a float32 has, not {self.bits}")
        if 4**self.bits <= 2 * _SPREAD**2 * self.clients_per_round:
            raise InvalidValue(f"{self.bits} bits are too few for the rounding errors of {clients_per_round} clients")

    def step(self, dimension: int) -> float:
        """The value of an integer's unit, so large that the sum of the clients' integers fits into the modulus.

        It solves modulus · step / 2 = `_SPREAD` standard deviations of a coordinate of the sum, whose variance is that
        of the rotated values, of the noise, and of the rounding: at most step² / 4 for each client.
        """
        n = self.clients_per_round
        variance = (n * self.clip) ** 2 / dimension + (self.noise_multiplier * self.clip) ** 2  # without rounding
        return 2 * _SPREAD * math.sqrt(variance / (4**self.bits - _SPREAD**2 * n))

    def create(self, value_type: Type) -> AggregationProcess:
        size = element_count_for_noise(value_type, "DistributedDiscreteGaussianFactory")
        dimension = padded_size(size)
        step, modulus = self.step(dimension), 1 << self.bits
        norm_bound = rounded_norm(self.clip / step, dimension)
        stddev = self.noise_multiplier * self.clip / step / math.sqrt(self.clients_per_round)

        @tf_computation
        def start() -> DistributedPrivateState:
            return DistributedPrivateState(
                sensitivity=tf.constant(norm_bound, tf.float32),
                noise_stddev=tf.constant(stddev, tf.float32),
                dimension=tf.constant(dimension, tf.int64),
                clients=tf.constant(0, tf.int64),
                round=tf.constant(0, tf.int64),
            )

        @tf_computation(value_type, TensorType("int64"))
        def noisy_change(value: TensorStructure, seed: tf.Tensor) -> tf.Tensor:
            scale, ratio, norm = clip_factors(value, tf.constant(self.clip))
            vector = tf.concat([tf.reshape(tf.cast(x, norm.dtype), [-1]) for x in tf.nest.flatten(value)], 0)
            clipped = tf.where(tf.math.is_finite(norm), vector * scale * (ratio / step), tf.zeros_like(vector))
            clipped = tf.cast(clipped, tf.float32)
            return _round_randomly(rotate_vector(clipped, seed), norm_bound) + discrete_gaussian(dimension, stddev)

        count_client = tf_computation(lambda: tf.constant(1, tf.int64))

        # fc.privacy.Ledger knows the graph by this name.
        @tf_computation(
            start.type_signature.result,
            TensorType("int64", [dimension]),
            TensorType("int64"),
            TensorType("int64"),
            value_type,
        )
        def release_private_sum(
            state: DistributedPrivateState, total: tf.Tensor, clients: tf.Tensor, seed: tf.Tensor, like: TensorStructure
        ) -> tuple[DistributedPrivateState, TensorStructure, dict[str, tf.Tensor]]:
            signed = tf.math.floormod(total + modulus // 2, tf.constant(modulus, tf.int64)) - modulus // 2
            vector = rotate_back(tf.cast(signed, tf.float32) * step, seed, size) / self.clients_per_round
            leaves = tf.nest.flatten(like)
            parts = tf.split(vector, [math.prod(x.shape) for x in leaves])
            mean = [tf.cast(tf.reshape(p, x.shape), x.dtype) for p, x in zip(parts, leaves, strict=True)]
            measurements = {"clip": tf.constant(self.clip, tf.float32), "step": tf.constant(step, tf.float32)}
            next_state = attrs.evolve(state, clients=clients, round=state.round + 1)
            return next_state, tf.nest.pack_sequence_as(like, mean), measurements

        @federated_computation
        def initialize() -> Value:
            return federated_eval(start, SERVER)

        def body(state: Value, value: Value, _: tuple[()]) -> MeasuredProcessOutput:
            seed = federated_random_seed(SERVER)
            sent = federated_map(noisy_change, (value, federated_broadcast(seed)))
            total = federated_secure_modular_sum(sent, modulus)
            clients = federated_secure_sum(federated_eval(count_client, CLIENTS), 1)
            outputs = federated_map(
                lambda s, t, n, k: release_private_sum(s, t, n, k, generic_zero(value_type)),
                federated_zip((state, total, clients, seed)),
            )
            return MeasuredProcessOutput(outputs[0], outputs[1], outputs[2])

        return aggregation_process(initialize, value_type, None, body)


def rounded_norm(norm: float, dimension: int) -> float:
    """The norm up to which a random rounding is accepted, of a vector of this norm and dimension, in units of a step.

    Source: arXiv:2102.06387, Algorithm 1, the bound of conditional rounding for β = exp(-1/2).
    """
    likely = norm**2 + dimension / 4 + norm + math.sqrt(dimension) / 2
    always = (norm + math.sqrt(dimension)) ** 2
    return math.sqrt(min(likely, always))


def _round_randomly(vector: tf.Tensor, norm_bound: float) -> tf.Tensor:
    """int64 vector of a norm of at most `norm_bound`: each number up or down at random, the mean being the number.

    Tries `_TRIES` times; if no vector is short enough, rounds towards 0.
    """
    below = tf.floor(vector)

    def attempt() -> tuple[tf.Tensor, tf.Tensor]:
        rounded = below + tf.cast(tf.random.uniform(tf.shape(vector)) < vector - below, tf.float32)
        return rounded, tf.norm(rounded) <= norm_bound

    def attempt_again() -> tf.Tensor:
        integers, accepted = tf.sign(vector) * tf.floor(tf.abs(vector)), tf.constant(False)
        for _ in range(_TRIES - 1):
            rounded, fits = attempt()
            integers, accepted = tf.where(~accepted & fits, rounded, integers), accepted | fits
        return integers

    rounded, fits = attempt()
    # Clients that run side by side may take different branches of a case.
    integers = tf.switch_case(tf.cast(fits, tf.int32), [attempt_again, lambda: rounded])
    return tf.cast(integers, tf.int64)
