"""Sums of clipped client values with Gaussian noise: differential privacy of clients."""

import math
from typing import Any

import attrs
import tensorflow as tf

from fedcore.aggregators.bounding import clip_to_norm
from fedcore.aggregators.factory import UnweightedAggregationFactory, aggregation_process, element_count_for_noise
from fedcore.aggregators.private_noise import (
    BandedNoise,
    IndependentNoise,
    NoiseMechanism,
    TreeNoise,
    TreeNoiseState,
)
from fedcore.aggregators.private_noise.banded import optimal_coefficients
from fedcore.aggregators.private_noise.normal import normal_from_seed
from fedcore.aggregators.private_noise.operating_system_key import normal_from_operating_system, used_up_key
from fedcore.aggregators.rechecking import adds_in_the_clear, bounded_if_exceeding, recheck, zero_or_one
from fedcore.aggregators.secure_sum import SecureSumFactory
from fedcore.aggregators.sum import SumFactory, sum_or_default
from fedcore.computation import Computation, federated_computation, tf_computation
from fedcore.errors import InvalidValue, brief
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.intrinsics import federated_broadcast, federated_eval, federated_map, federated_zip
from fedcore.ir.values import Value
from fedcore.scalars import real_number, whole_number
from fedcore.templates import AggregationProcess, MeasuredProcessOutput
from fedcore.types import CLIENTS, SERVER, FederatedType, TensorType, Type

_COUNT_STREAM = 1 << 20  # of the noise of the count; a mechanism draws from stream 0 on, a tree from one for each level


@attrs.frozen
class PrivateState:
    """The state of a private aggregation: what its noise is drawn by, and what `fc.privacy.Ledger` reads.

    Args:
        clip: float32, the greatest norm of a client's value.
        noise_multiplier: float32, the standard deviation of the noise that is added to the sum, over the clip.
        count_stddev: float32, the standard deviation of the noise that is added to the count of clients below the clip;
            <> if the clip is fixed.
        clients_per_round: float32, the divisor of the sum.
        round: int64, rounds so far.
        noise: the state of the mechanism.
        key: an `OperatingSystemKey`; <> where noise comes from the call's seed.
    """

    clip: Any
    noise_multiplier: Any
    count_stddev: Any
    clients_per_round: Any
    round: Any
    noise: Any
    key: Any


@attrs.frozen
class SimulatedPrivateState(PrivateState):
    """The state of a private aggregation whose rounds stand for larger ones.

    Args:
        simulated_clients: float32, how many clients a round has; `clients_per_round` is how many it stands for.
    """

    simulated_clients: Any


@attrs.frozen
class AdaptiveClip:
    """A clip that follows a quantile of the norms.

    Args:
        quantile: the fraction of clients whose norm shall be at most the clip.
        learning_rate: a round moves the logarithm of the clip by at most about this.
        count_stddev: standard deviation of the noise of the count of clients whose norm is at most the clip.
    """

    quantile: float
    learning_rate: float
    count_stddev: float


class DifferentiallyPrivateFactory(UnweightedAggregationFactory):
    """The mean of clipped values with noise: (sum of the clipped values + noise) / clients_per_round.

    Types, for inexact real V of known shapes:
        next  (<state=S@SERVER,value={V}@CLIENTS> -> <state=S@SERVER,result=V@SERVER,measurements=M@SERVER>)
        S is <private=PrivateState,sum=…>, with an adaptive clip also <count=…>, in trees with <next_clip=float32> too;
        M is <clip=float32,noise_stddev=float32>, of the sum, and with an adaptive clip also
        <unclipped_fraction=float32>, which has noise too.

    Each client counts the same: the noise is made for what one client can change. The divisor is fixed, since the
    number of clients that came would tell whether one of them did. A value that is not finite counts as zeros. No
    clients give noise. Noise is float32: see docs/privacy.md for what that means.

    Make one by `gaussian_fixed`, `gaussian_adaptive`, `tree_aggregation`, `tree_adaptive` or
    `banded_matrix_factorization`, whose arguments stand here:

    Args:
        noise_multiplier: the standard deviation of the noise, over `clip`. With an adaptive clip, that of the
            Gaussian mechanism which sum and count together are as private as.
        clients_per_round: how many clients are expected in a round.
        noise_cohort_size: how many clients a round stands for, where fewer are simulated: the result has the noise of a
            mean of so many, noise_multiplier · clip / noise_cohort_size. A ledger then gives the epsilon of such
            rounds, which is not that of the simulated clients. Default: `clients_per_round`.
        clip: the greatest L2 norm of a client's value, over all leaves; with an adaptive clip, the first one.
        noise: how the noise of rounds is correlated. Default: not at all.
        adaptive: how the clip moves; with a tree, from one tree to the next. Default: it does not.
        sum_factory: `SumFactory` or a `SecureSumFactory` with fixed bounds around 0. Default: `SumFactory`.
        secure_noise: noise by ChaCha20 from a key of the operating system in place of the call's seed. Such a call
            cannot be reproduced. See docs/privacy.md.
    Raises:
        FedcoreError: a number is outside its range, or the sum is another one, whose sensitivity is not known.
        TypeMismatch: V is not inexact and real, has a shape that is not known, or has no elements.
    Source: McMahan et al. 2018, "Learning differentially private recurrent language models", arXiv:1710.06963;
        `noise_cohort_size` as in pfl-research, Granqvist et al. 2024, arXiv:2404.06430.
    Example:
        >>> factory = fc.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(0.0, clients_per_round=2, clip=1.0)
        >>> process = factory.create(fc.to_type('float32'))
        >>> process.next(process.initialize(), [0.5, 7.0]).result
        np.float32(0.75)
    """

    why_no_weights = (
        "noise is made for what one client can change, so every client counts the same and the divisor is fixed"
    )

    def __init__(
        self,
        noise_multiplier: float,
        clients_per_round: float,
        clip: float,
        *,
        noise: NoiseMechanism | None = None,
        adaptive: AdaptiveClip | None = None,
        sum_factory: UnweightedAggregationFactory | None = None,
        secure_noise: bool = False,
        noise_cohort_size: float | None = None,
    ) -> None:
        self.noise_multiplier = float(real_number("noise_multiplier", noise_multiplier, at_least=0))
        self.clients_per_round = float(real_number("clients_per_round", clients_per_round, above=0))
        self.noise_cohort_size = noise_cohort_size
        if noise_cohort_size is not None:
            self.noise_cohort_size = float(
                real_number("noise_cohort_size", noise_cohort_size, at_least=self.clients_per_round)
            )
        self.clip = float(real_number("clip", clip, above=0))
        self.noise = noise or IndependentNoise()
        self.adaptive = adaptive
        self.secure_noise = secure_noise
        self._sum = sum_or_default("sum_factory", sum_factory)
        bounded = isinstance(self._sum, SecureSumFactory) and self._sum.shrinks
        if not bounded and type(self._sum) is not SumFactory:
            raise InvalidValue(
                "sum_factory is a SumFactory or a SecureSumFactory with fixed bounds on both sides of 0: of any other "
                f"sum, such as {brief(sum_factory)}, it is not known how far one client moves it"
            )

    @classmethod
    def gaussian_fixed(
        cls, noise_multiplier: float, clients_per_round: float, clip: float, **options: Any
    ) -> "DifferentiallyPrivateFactory":
        """Independent noise and a fixed clip: DP-FedAvg, DP-FedSGD.

        Args:
            options: `sum_factory`, `secure_noise` and `noise_cohort_size`, as for the class.
        Source: McMahan et al. 2018, arXiv:1710.06963, Algorithm 1, with the estimator of a fixed divisor.
        Example:
            >>> factory = fc.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(1.0, clients_per_round=9, clip=0.5)
        """
        return cls(noise_multiplier, clients_per_round, clip, **options)

    @classmethod
    def gaussian_adaptive(
        cls,
        noise_multiplier: float,
        clients_per_round: float,
        initial_l2_norm_clip: float = 0.1,
        target_unclipped_quantile: float = 0.5,
        learning_rate: float = 0.2,
        clipped_count_stddev: float | None = None,
        **options: Any,
    ) -> "DifferentiallyPrivateFactory":
        """Independent noise and a clip that follows a quantile of the clients' norms.

        Args:
            noise_multiplier: sum and count of a round together are as private as one Gaussian mechanism with this
                noise multiplier; the sum has a little more noise for it.
            initial_l2_norm_clip: the first clip.
            target_unclipped_quantile: the fraction of clients whose norm shall be at most the clip.
            learning_rate: the clip moves by the factor exp(-learning_rate · (fraction - target)).
            clipped_count_stddev: standard deviation of the count's noise. Default: 1/20 of the clients that a round has
                or stands for.
            options: `sum_factory`, `secure_noise` and `noise_cohort_size`, as for the class.
        Raises:
            FedcoreError: a number is outside its range, or the count's noise is too small for the noise multiplier.
        Source: Andrew et al. 2021, "Differentially private learning with adaptive clipping", arXiv:1905.03871,
            Algorithm 1 and Theorem 1.
        Example:
            >>> factory = fc.aggregators.DifferentiallyPrivateFactory.gaussian_adaptive(1.0, clients_per_round=20)
        """
        rate = float(real_number("learning_rate", learning_rate, at_least=0))
        adaptive = _adaptive_clip(
            noise_multiplier,
            options.get("noise_cohort_size") or clients_per_round,
            target_unclipped_quantile,
            rate,
            clipped_count_stddev,
        )
        return cls(noise_multiplier, clients_per_round, initial_l2_norm_clip, adaptive=adaptive, **options)

    @classmethod
    def tree_aggregation(
        cls,
        noise_multiplier: float,
        clients_per_round: float,
        clip: float,
        restart_every: int,
        *,
        efficient: bool = True,
        **options: Any,
    ) -> "DifferentiallyPrivateFactory":
        """Noise of a binary tree over the rounds, for DP-FTRL; it needs no sampling of the clients.

        The results add up to prefix sums with the noise of a few nodes. Give them to SGD, with momentum if wanted, as
        the server's optimizer: an adaptive one is private too, but its noise is not reduced by the tree.

        Args:
            noise_multiplier: the standard deviation of a node's noise, over `clip`.
            restart_every: rounds of a tree, after which a new one begins; an epoch of the clients is usual.
            efficient: nodes are estimated from their children too, which takes up to half of the noise's variance.
            options: `sum_factory`, `secure_noise` and `noise_cohort_size`, as for the class.
        Source: Kairouz et al. 2021, arXiv:2103.00039, Algorithm 1 with restarts; Honaker 2015 for `efficient`.
        Example:
            >>> factory = fc.aggregators.DifferentiallyPrivateFactory.tree_aggregation(
            ...     1.0, clients_per_round=20, clip=0.5, restart_every=16)
        """
        noise = TreeNoise(whole_number("restart_every", restart_every, at_least=1), bool(efficient))
        return cls(noise_multiplier, clients_per_round, clip, noise=noise, **options)

    @classmethod
    def tree_adaptive(
        cls,
        noise_multiplier: float,
        clients_per_round: float,
        record_specs: Any = None,
        initial_l2_norm_clip: float = 0.1,
        restart_frequency: int = 1024,
        target_unclipped_quantile: float = 0.5,
        clip_learning_rate: float = 0.2,
        **options: Any,
    ) -> "DifferentiallyPrivateFactory":
        """Noise of a binary tree over the rounds, and a clip that follows a quantile of the norms from tree to tree.

        The clip stays the same within a tree, so that the noise of its prefix sums is that of a few nodes. Counts of
        clients below the clip move an estimate in every round, which the next tree takes.

        Args:
            noise_multiplier: sum and count of a round together are as private as a tree with this noise multiplier.
            record_specs: ignored; TFF takes the type of values here, and `create` is given it.
            initial_l2_norm_clip: the clip of the first tree.
            restart_frequency: rounds of a tree.
            target_unclipped_quantile, clip_learning_rate: as for `gaussian_adaptive`, where the latter is
                `learning_rate`.
            options: `clipped_count_stddev` as for `gaussian_adaptive`; `restart_warmup`, TFF's length of the first
                tree, which is `restart_frequency` here; `sum_factory`, `secure_noise` and `noise_cohort_size` as for
                the class.
        Raises:
            FedcoreError: a number is outside its range, `restart_warmup` is another length, or the count's noise is
                too small for the noise multiplier.
        Source: Kairouz et al. 2021, arXiv:2103.00039, with the clip of Andrew et al. 2021, arXiv:1905.03871.
        Example:
            >>> factory = fc.aggregators.DifferentiallyPrivateFactory.tree_adaptive(
            ...     1.0, clients_per_round=20, restart_frequency=16)
        """
        rate = float(real_number("clip_learning_rate", clip_learning_rate, at_least=0))
        every = whole_number("restart_frequency", restart_frequency, at_least=1)
        warmup = options.pop("restart_warmup", None)
        if warmup is not None and warmup != every:
            raise InvalidValue(
                f"restart_warmup is restart_frequency = {every}, not {brief(warmup)}: a ledger counts trees of one "
                "length"
            )
        adaptive = _adaptive_clip(
            noise_multiplier,
            options.get("noise_cohort_size") or clients_per_round,
            target_unclipped_quantile,
            rate,
            options.pop("clipped_count_stddev", None),
        )
        noise = TreeNoise(every)
        return cls(noise_multiplier, clients_per_round, initial_l2_norm_clip, noise=noise, adaptive=adaptive, **options)

    @classmethod
    def banded_matrix_factorization(
        cls, noise_multiplier: float, clients_per_round: float, clip: float, rounds: int, bands: int, **options: Any
    ) -> "DifferentiallyPrivateFactory":
        """Noise that the next `bands` - 1 rounds partly cancel, for clients that come every `bands` rounds at most.

        Of equal privacy, prefix sums have less noise than those of a tree. Give the results to SGD, as with a tree.

        Args:
            noise_multiplier: the standard deviation of z in C⁻¹ z, over `clip`; C has columns of norm 1.
            rounds: for how many rounds the coefficients are optimal; more may be run.
            bands: coefficients; no more than the rounds between two participations of a client, or the ledger counts
                how they overlap.
            options: `sum_factory`, `secure_noise` and `noise_cohort_size`, as for the class.
        Source: Choquette-Choo et al. 2023, arXiv:2306.08153; C is Toeplitz, as in McKenna 2024, arXiv:2405.15913.
        Example:
            >>> factory = fc.aggregators.DifferentiallyPrivateFactory.banded_matrix_factorization(
            ...     1.0, clients_per_round=20, clip=0.5, rounds=100, bands=10)
        """
        rounds, bands = whole_number("rounds", rounds, at_least=1), whole_number("bands", bands, at_least=1)
        noise = BandedNoise(optimal_coefficients(rounds, bands))
        return cls(noise_multiplier, clients_per_round, clip, noise=noise, **options)

    @property
    def value_noise_multiplier(self) -> float:
        """The standard deviation of the sum's noise, over the clip: above `noise_multiplier` beside a noisy count."""
        if self.adaptive is None or not self.noise_multiplier:
            return self.noise_multiplier
        return (self.noise_multiplier**-2 - (2 * self.adaptive.count_stddev) ** -2) ** -0.5

    def create(self, value_type: Type) -> AggregationProcess:
        size = element_count_for_noise(value_type, "DifferentiallyPrivateFactory")
        values = self._sum.create(value_type)
        count_factory = SumFactory() if isinstance(self._sum, SumFactory) else SecureSumFactory(1)
        counts = count_factory.create(TensorType("int32"))
        is_adaptive = self.adaptive is not None
        holds_next_clip = is_adaptive and isinstance(self.noise, TreeNoise)

        @tf_computation
        def start() -> PrivateState:
            return self._first_state(size)

        def clip_finite(value: TensorStructure, limit: tf.Tensor) -> tuple[TensorStructure, tf.Tensor]:
            """(the clipped value, zeros if it is not finite; its norm before)."""
            clipped, norm = clip_to_norm(value, limit)
            finite = tf.math.is_finite(norm)
            return tf.nest.map_structure(lambda leaf: tf.where(finite, leaf, tf.zeros_like(leaf)), clipped), norm

        @tf_computation(value_type, TensorType("float32"))
        def clip_value(value: TensorStructure, limit: tf.Tensor) -> tuple[TensorStructure, tf.Tensor]:
            """(the clipped value, the bit: 1 if its norm was at most the limit, else 0)."""
            clipped, norm = clip_finite(value, limit)
            return clipped, tf.cast(norm <= tf.cast(limit, norm.dtype), tf.int32)

        @tf_computation(value_type, TensorType("float32"))
        def clip_again(value: TensorStructure, limit: tf.Tensor) -> TensorStructure:
            return bounded_if_exceeding(value, *clip_finite(value, limit), limit)

        clipped_type = FederatedType(clip_value.type_signature.result, CLIENTS)

        # Calls in the place of an `item`: the noise behind them keeps its seed, which follows the operation's number.
        @federated_computation(clipped_type, FederatedType(TensorType("float32"), CLIENTS, True))
        def recheck_value(clipped_values: Value, limit: Value) -> Value:
            return recheck(clipped_values[0], clip_again, limit)

        @federated_computation(clipped_type)
        def recheck_bit(clipped_values: Value) -> Value:
            return recheck(clipped_values[1], zero_or_one)

        # A client may not have clipped. The server clips again what it sees (`rechecking`): no values in secure sums.
        is_rechecked = adds_in_the_clear(values.next)
        release_private_sum = self._release_computation(start.type_signature.result, value_type, size)

        @federated_computation
        def initialize() -> Value:
            state = {"private": federated_eval(start, SERVER), "sum": values.initialize()}
            if is_adaptive:
                state["count"] = counts.initialize()
            if holds_next_clip:
                first_clip = tf_computation(lambda: tf.constant(self.clip, tf.float32))
                state["next_clip"] = federated_eval(first_clip, SERVER)
            return federated_zip(state)

        def body(state: Value, value: Value, _no_weights: tuple[()]) -> MeasuredProcessOutput:
            limit = federated_broadcast(federated_map(lambda private: private.clip, state.private))
            clipped_values = federated_map(clip_value, (value, limit))  # (clipped value, bit)
            sum_state = state.sum
            total = values.next(sum_state, recheck_value(clipped_values, limit) if is_rechecked else clipped_values[0])
            next_state: dict[str, Any] = {"sum": total.state}
            arguments: tuple = (state.private, total.result)
            if is_adaptive:
                count_state = state["count"]
                below = recheck_bit(clipped_values) if is_rechecked else clipped_values[1]
                # The count is centred by half of the clients, so that one client moves it by 1/2 only. In integers,
                # bits become 1 and -1, and `release_private_sum` halves their sum.
                centred = tf_computation(TensorType("int32"))(lambda bit: 2 * bit - 1)
                count = counts.next(count_state, federated_map(centred, below))
                next_state["count"], arguments = count.state, (*arguments, count.result)
            if holds_next_clip:
                arguments = (*arguments, state["next_clip"])
            # (next private state, noisy mean, measurements), in trees with an adaptive clip also the next clip.
            outputs = federated_map(release_private_sum, arguments)
            if holds_next_clip:
                next_state["next_clip"] = outputs[3]
            return MeasuredProcessOutput(federated_zip({"private": outputs[0], **next_state}), outputs[1], outputs[2])

        return aggregation_process(initialize, value_type, None, body)

    def _first_state(self, size: int) -> PrivateState:
        """The state before the first round, in a graph, for values of `size` elements."""

        def number(value: float) -> tf.Tensor:
            return tf.constant(value, tf.float32)

        cohort_size = self.noise_cohort_size
        state = PrivateState(
            clip=number(self.clip),
            noise_multiplier=number(self.value_noise_multiplier),
            count_stddev=() if self.adaptive is None else number(self.adaptive.count_stddev),
            clients_per_round=number(self.clients_per_round if cohort_size is None else cohort_size),
            round=tf.constant(0, tf.int64),
            noise=self.noise.initialize(size),
            key=used_up_key() if self.secure_noise else (),
        )
        if cohort_size is None:
            return state
        parts = attrs.asdict(state, recurse=False)
        return SimulatedPrivateState(**parts, simulated_clients=number(self.clients_per_round))

    def _release_computation(self, state_type: Type, value_type: Type, size: int) -> Computation:
        """The computation of `_release` with the operands that this factory has, of one name for all.

        `fc.privacy.Ledger` takes a graph named release_private_sum for the step that adds noise. Its count is that of
        the clients below the clip minus that of the others: twice the centred count.
        """
        if self.adaptive is None:

            @tf_computation(state_type, value_type)
            def release_private_sum(state: PrivateState, total: TensorStructure) -> tuple:
                return self._release(size, state, total)

            return release_private_sum

        def release_with_count(state: PrivateState, total: TensorStructure, doubled: tf.Tensor) -> tuple:
            return self._release(size, state, total, tf.cast(doubled, tf.float32) / 2)

        def release_with_count_in_tree(
            state: PrivateState, total: TensorStructure, doubled: tf.Tensor, next_clip: tf.Tensor
        ) -> tuple:
            return self._release(size, state, total, tf.cast(doubled, tf.float32) / 2, next_clip)

        release, clip_types = (
            (release_with_count_in_tree, [TensorType("float32")])
            if isinstance(self.noise, TreeNoise)
            else (release_with_count, [])
        )
        release.__name__ = "release_private_sum"
        return tf_computation(release, state_type, value_type, TensorType("int32"), *clip_types)

    def _release(
        self,
        size: int,
        state: PrivateState,
        total: TensorStructure,
        centred_count: tf.Tensor | None = None,
        next_clip: tf.Tensor | None = None,
    ) -> tuple:
        """(next state, noisy mean, measurements), in a graph; with `next_clip` its next value comes last.

        Args:
            size: the number of elements of `total`.
            total: the sum of the clipped values.
            centred_count: with an adaptive clip, the clients below the clip minus half of all clients.
            next_clip: with an adaptive clip in trees, the estimate that the next tree takes for its clip.
        """
        draw = normal_from_operating_system(state.key) if self.secure_noise else normal_from_seed
        unit_noise, noise_state = self.noise.next(state.noise, size, draw)
        leaves = tf.nest.flatten(total)
        if isinstance(state, SimulatedPrivateState):  # sums of as many clients as the round stands for
            scale = state.clients_per_round / state.simulated_clients
            leaves = [x * tf.cast(scale, x.dtype) for x in leaves]
            centred_count = None if centred_count is None else centred_count * scale
        stddev = state.noise_multiplier * state.clip
        noise_by_leaf = tf.split(unit_noise * stddev, [math.prod(x.shape) for x in leaves])
        mean = [
            (x + tf.cast(tf.reshape(noise, x.shape), x.dtype)) / tf.cast(state.clients_per_round, x.dtype)
            for x, noise in zip(leaves, noise_by_leaf, strict=True)
        ]
        clip, measurements = state.clip, {"clip": state.clip, "noise_stddev": stddev}
        if self.adaptive is not None:
            # Centred by half of the clients, so that one client moves the sum of the bits by 1/2.
            count_noise = draw(_COUNT_STREAM, 1)[0] * state.count_stddev
            fraction = (centred_count + count_noise) / state.clients_per_round + 0.5
            factor = tf.exp(-self.adaptive.learning_rate * (fraction - self.adaptive.quantile))
            measurements["unclipped_fraction"] = fraction
            if next_clip is None:
                clip = clip * factor
            else:
                assert isinstance(noise_state, TreeNoiseState)
                next_clip = next_clip * factor
                clip = tf.where(noise_state.leaves >= noise_state.restart_every, next_clip, clip)
        next_state = attrs.evolve(
            state,
            clip=clip,
            round=state.round + 1,
            noise=noise_state,
            key=used_up_key() if self.secure_noise else (),
        )
        outputs = next_state, tf.nest.pack_sequence_as(total, mean), measurements
        return outputs if next_clip is None else (*outputs, next_clip)


def _adaptive_clip(
    noise_multiplier: float, clients_per_round: float, quantile: float, rate: float, count_stddev: float | None
) -> AdaptiveClip:
    """The adaptive clip of the factories' arguments.

    The count must have less than all of the privacy that the noise multiplier allows, so that some is left for the sum.
    Without noise of the sum, the count has none either.

    Args:
        clients_per_round: how many clients a round has or stands for; the default noise of the count follows it.
        rate: the learning rate, checked.
        count_stddev: the user's `clipped_count_stddev`; None for the default.
    Raises:
        FedcoreError: a number is outside its range, or the count's noise is too small for the noise multiplier.
    """
    multiplier = float(real_number("noise_multiplier", noise_multiplier, at_least=0))
    quantile = float(real_number("target_unclipped_quantile", quantile, at_least=0))
    if quantile > 1:
        raise InvalidValue(f"target_unclipped_quantile is between 0 and 1, not {quantile}")
    stddev = float(real_number("clients_per_round", clients_per_round, above=0)) / 20
    if count_stddev is not None:
        stddev = float(real_number("clipped_count_stddev", count_stddev, at_least=0))
    if multiplier and 2 * stddev <= multiplier:
        raise InvalidValue(
            f"clipped_count_stddev is above noise_multiplier / 2 = {multiplier / 2:g}, not {stddev:g}: the count alone "
            "would reveal more than the noise multiplier allows"
        )
    return AdaptiveClip(quantile, rate, stddev if multiplier else 0.0)
