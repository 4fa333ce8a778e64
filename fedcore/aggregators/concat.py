"""Aggregation of all leaves of a value as one vector."""

import math

import tensorflow as tf

from fedcore.aggregators.factory import (
    CreateInner,
    FactoryT,
    aggregation_process,
    refuse_leaf,
    require,
    wrapping_factory,
)
from fedcore.computation import tf_computation
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.intrinsics import federated_map, generic_zero
from fedcore.ir.values import Value
from fedcore.templates import AggregationProcess, MeasuredProcessOutput
from fedcore.types import StructType, TensorType, Type, is_static, member_of, tensor_leaves


def concat_factory(inner_agg_factory: FactoryT) -> FactoryT:
    """Aggregates all leaves of a value as one vector, then takes it apart again.

    For aggregators whose cost or noise depends on the number of tensors, not of elements.

    Types, for V of n elements and one dtype d: those of the inner process for d[n], with V in place of d[n].

    Args:
        inner_agg_factory: aggregates the vectors; the result is weighted if it is.
    Raises:
        TypeMismatch: the leaves have several dtypes or unknown shapes, or there are none.
    Example:
        >>> factory = fc.aggregators.concat_factory(fc.aggregators.SumFactory())
        >>> process = factory.create(fc.to_type(['float32', ('float32', [2])]))
        >>> process.next(process.initialize(), [[1.0, [2.0, 3.0]]]).result
        [np.float32(1.0), array([2., 3.], dtype=float32)]
    """

    def build(value_type: Type, weight_type: Type | None, create_inner: CreateInner) -> AggregationProcess:
        require("numeric", value_type, "concat_factory")
        types = tensor_leaves(value_type)
        refuse_leaf(
            "concat_factory joins leaves of one dtype and known shapes",
            value_type,
            lambda leaf: leaf.dtype == types[0].dtype and is_static(leaf.shape),
        )
        process = create_inner(
            TensorType(types[0].dtype, [sum(math.prod(size or 0 for size in t.sizes) for t in types)])
        )

        @tf_computation(value_type)
        def join(value: TensorStructure) -> tf.Tensor:
            return tf.concat([tf.reshape(leaf, [-1]) for leaf in tf.nest.flatten(value)], 0)

        output_type = process.next.type_signature.result
        assert isinstance(output_type, StructType)

        @tf_computation(member_of(output_type["result"]), value_type)
        def split(vector: tf.Tensor, like: TensorStructure) -> TensorStructure:
            leaves = tf.nest.flatten(like)
            parts = tf.split(vector, [math.prod(leaf.shape) for leaf in leaves])
            return tf.nest.pack_sequence_as(like, [tf.reshape(p, x.shape) for p, x in zip(parts, leaves, strict=True)])

        def body(state: Value, value: Value, weights: tuple[Value, ...]) -> MeasuredProcessOutput:
            output = process.next(state, federated_map(join, value), *weights)
            # Zeros of V carry its containers into the graph.
            result = federated_map(lambda vector: split(vector, generic_zero(value_type)), output.result)
            return MeasuredProcessOutput(output.state, result, output.measurements)

        return aggregation_process(process.initialize, value_type, weight_type, body)

    return wrapping_factory(inner_agg_factory, build, keeps_non_finite=True)
