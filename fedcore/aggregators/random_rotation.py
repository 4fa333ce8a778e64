"""Aggregators of values that clients rotate at random, so that the parts of what is aggregated have similar sizes."""

import math
from collections.abc import Callable

import tensorflow as tf

from fedcore.aggregators.factory import UnweightedAggregationFactory, aggregation_process, refuse_leaf
from fedcore.aggregators.private_noise.rotation import rotate_back, rotate_vector
from fedcore.aggregators.sum import sum_or_default
from fedcore.computation import tf_computation
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.intrinsics import (
    federated_broadcast,
    federated_map,
    federated_random_seed,
    federated_zip,
    generic_zero,
)
from fedcore.intrinsics.numerics import sum_dtype
from fedcore.ir.values import Value
from fedcore.scalars import whole_number
from fedcore.templates import AggregationProcess, MeasuredProcessOutput
from fedcore.types import SERVER, TensorType, Type, as_dtype, is_static, tensor_leaves


class _RotationFactory(UnweightedAggregationFactory):
    """Rotates each tensor of a value as a vector, aggregates the vectors, and rotates the aggregate back.

    A subclass says what one rotation is: vectors of floats and an int64 seed to vectors of their dtype, and its inverse
    for vectors of `size` elements.
    """

    measurement: str

    def __init__(self, inner_agg_factory: UnweightedAggregationFactory | None = None, num_repeats: int = 1) -> None:
        inner = sum_or_default("inner_agg_factory", inner_agg_factory)
        self._inner, self.why_no_weights = inner, inner.why_no_weights
        self._repeats = whole_number("num_repeats", num_repeats, at_least=1)

    def _rotate(self, vector: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        raise NotImplementedError

    def _rotate_back(self, vector: tf.Tensor, seed: tf.Tensor, size: int) -> tf.Tensor:
        raise NotImplementedError

    def create(self, value_type: Type) -> AggregationProcess:
        types = tensor_leaves(value_type)
        refuse_leaf(
            f"{type(self).__name__} aggregates floats or integers, not both, of known shapes",
            value_type,
            lambda t: t.dtype.is_real and t.dtype.is_integer == types[0].dtype.is_integer and is_static(t.shape),
        )

        def rotate_leaf(leaf: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
            vector = tf.reshape(tf.cast(leaf, sum_dtype(as_dtype(leaf.dtype)).numpy), [-1])
            for i in range(self._repeats):
                vector = self._rotate(vector, seed + i)
            return vector

        def restore_leaf(vector: tf.Tensor, leaf: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
            size = math.prod(leaf.shape)
            for i in reversed(range(self._repeats)):
                vector = self._rotate_back(vector, seed + i, size if i == 0 else int(vector.shape[0]))
            # An integer whose sum does not fit wraps, which a cast from float does not.
            is_narrow = leaf.dtype.is_integer and leaf.dtype.size < 8
            exact = tf.round(vector) if leaf.dtype.is_integer else vector
            return tf.cast(tf.reshape(tf.cast(exact, tf.int64) if is_narrow else exact, leaf.shape), leaf.dtype)

        @tf_computation(value_type, TensorType("int64"))
        def rotate(value: TensorStructure, seed: tf.Tensor) -> TensorStructure:
            return tf.nest.pack_sequence_as(value, self._each(rotate_leaf, seed, tf.nest.flatten(value)))

        inner = self._inner.create(rotate.type_signature.result)

        @tf_computation(rotate.type_signature.result, TensorType("int64"), value_type)
        def unrotate(vectors: TensorStructure, seed: tf.Tensor, like: TensorStructure) -> TensorStructure:
            leaves = self._each(restore_leaf, seed, tf.nest.flatten(vectors), tf.nest.flatten(like))
            return tf.nest.pack_sequence_as(like, leaves)

        def body(state: Value, value: Value, _: tuple[()]) -> MeasuredProcessOutput:
            seed = federated_random_seed(SERVER)
            output = inner.next(state, federated_map(rotate, (value, federated_broadcast(seed))))
            result = federated_map(lambda v, s: unrotate(v, s, generic_zero(value_type)), (output.result, seed))
            return MeasuredProcessOutput(output.state, result, federated_zip({self.measurement: output.measurements}))

        return aggregation_process(inner.initialize, value_type, None, body)

    def _each(self, fn: Callable, seed: tf.Tensor, *columns: list) -> list:
        """`fn(*row, seed)` for each row of the columns; the seeds leave room for one of each repeated rotation."""
        return [fn(*row, seed + i * self._repeats) for i, row in enumerate(zip(*columns, strict=True))]


class HadamardTransformFactory(_RotationFactory):
    """Aggregates values that are rotated by random signs and a Hadamard transform, then rotates back.

    Every tensor is a vector of its own, padded with zeros to a power of two; quantizers lose less of it. Vectors of
    float64 and of integers are float64, all others float32.

    Types, for V of floats or of integers, of known shapes, and vectors F of floats:
        next  (<state=S@SERVER,value={V}@CLIENTS> -> <state=S@SERVER,result=V@SERVER,measurements=<hd=M>@SERVER>)
        S and M are those of the inner process for F.

    Integers are rounded after the rotation back: sums up to 2^52 are exact. Each round draws new signs from the call's
    seed (TFF carries a seed in the state).

    Args:
        inner_agg_factory: aggregates F. Default: `SumFactory`.
        num_repeats: rotations, one after the other.
    Raises:
        FedcoreError: `num_repeats` is less than 1.
        TypeMismatch: the inner factory is weighted or changes its type; V has another dtype, or an unknown shape.
    Source: Suresh et al. 2017, "Distributed mean estimation with limited communication", arXiv:1611.00429, section 3.
    Example:
        >>> process = fc.aggregators.HadamardTransformFactory().create(fc.to_type(('int32', [3])))
        >>> process.next(process.initialize(), [[1, 2, 3], [4, 5, 6]]).result
        array([5, 7, 9], dtype=int32)
    """

    measurement = "hd"

    def _rotate(self, vector: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return rotate_vector(vector, seed)

    def _rotate_back(self, vector: tf.Tensor, seed: tf.Tensor, size: int) -> tf.Tensor:
        return rotate_back(vector, seed, size)


class DiscreteFourierTransformFactory(_RotationFactory):
    """Aggregates values that are rotated by random angles and a discrete Fourier transform, then rotates back.

    As `HadamardTransformFactory`, with vectors padded to an even number of elements: the two halves of a vector are the
    real and the imaginary parts of complex numbers. It pads less, and costs more.

    Types, for V of floats or of integers, of known shapes, and vectors F of floats:
        next  (<state=S@SERVER,value={V}@CLIENTS> -> <state=S@SERVER,result=V@SERVER,measurements=<dft=M>@SERVER>)
        S and M are those of the inner process for F.

    Args:
        inner_agg_factory: aggregates F. Default: `SumFactory`.
        num_repeats: rotations, one after the other.
    Raises:
        FedcoreError: `num_repeats` is less than 1.
        TypeMismatch: the inner factory is weighted or changes its type; V has another dtype, or an unknown shape.
    Source: that of `HadamardTransformFactory`, with the complex transform of TFF's class of this name.
    Example:
        >>> process = fc.aggregators.DiscreteFourierTransformFactory().create(fc.to_type(('int32', [3])))
        >>> process.next(process.initialize(), [[1, 2, 3], [4, 5, 6]]).result
        array([5, 7, 9], dtype=int32)
    """

    measurement = "dft"

    def _rotate(self, vector: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        size = int(vector.shape[0])
        real, imaginary = tf.split(tf.pad(vector, [[0, size % 2]]), 2)
        turned = tf.signal.fft(tf.complex(real, imaginary) * _turns(real, seed))
        return _real_and_imaginary(turned) / math.sqrt(max(real.shape[0], 1))

    def _rotate_back(self, vector: tf.Tensor, seed: tf.Tensor, size: int) -> tf.Tensor:
        real, imaginary = tf.split(vector * math.sqrt(max(int(vector.shape[0]) // 2, 1)), 2)
        turned = tf.signal.ifft(tf.complex(real, imaginary))
        return _real_and_imaginary(turned * tf.math.conj(_turns(real, seed)))[:size]


def _turns(like: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Complex numbers of size 1 at random, as many and as precise as the floats of `like`."""
    seeds, full_turn = tf.stack([seed, tf.zeros_like(seed)]), 2 * math.pi
    angles = tf.random.stateless_uniform(like.shape, seeds, maxval=full_turn, dtype=like.dtype)
    return tf.complex(tf.cos(angles), tf.sin(angles))


def _real_and_imaginary(numbers: tf.Tensor) -> tf.Tensor:
    return tf.concat([tf.math.real(numbers), tf.math.imag(numbers)], 0)
