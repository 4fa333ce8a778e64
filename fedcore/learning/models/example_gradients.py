"""Private gradients of batches: the gradient of each example is clipped, then noise is added to their sum.

The gradient of an example is that of a batch of one, which TensorFlow's vectorizer computes for all of them side by
side: so no example can take part in another's, whatever the layers do. The gradient of a dense kernel is then the outer
product x_i y_i of the layer's input and the gradient of its output. It is not computed: its norm is |x_i| |y_i|, and
the sum of clipped ones is one matrix product.

Decisions 0307 and 0308.
"""

import functools
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import tensorflow as tf

from fedcore.aggregators.private_noise.normal import smooth_normal
from fedcore.errors import TracingError
from fedcore.graphs import private_api
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.learning.models.model_weights import ModelWeights
from fedcore.learning.models.pure_model import PureModel

MARK = "fedcore.learning private gradients: "
"""Begins the text that marks the noise of a step in a plan, by which a site knows the mechanism."""


@attrs.frozen
class ExampleMechanism:
    """The Gaussian mechanism of a training step.

    Args:
        clip: the greatest norm of an example's gradient, over all trainable weights.
        noise_multiplier: standard deviation of the noise of the sum, over `clip`.
        batch_size: number by which the noisy sum is divided.
        sampling_rate: probability with which an example of a batch takes part in the step.
    """

    clip: float
    noise_multiplier: float
    batch_size: float
    sampling_rate: float

    @property
    def mark(self) -> str:
        """The text that stands at the noise of a step in a plan."""
        return MARK + json.dumps(attrs.asdict(self))


class NoisyGradients(tuple):
    """The gradients of `private_gradients_of`; None for a weight that no loss depends on."""


def check_private_model(model: PureModel) -> None:
    """Checks that nothing which a training step leaves depends on examples but its gradients and metrics.

    Raises:
        TracingError: the step assigns weights, as BatchNormalization does, or layers need whole batches.
    """
    assigned = model.weight_roles.names
    if assigned:
        raise TracingError(
            f"build_dp_sgd: a training step assigns {', '.join(assigned)} from the examples of a batch, which couples\n"
            "them: their gradients cannot be clipped one by one, and the averages would have no noise\n"
            "  fix: keras.layers.GroupNormalization or LayerNormalization, which take each example by itself; or\n"
            "  freeze the layer, layer.trainable = False"
        )
    if model.initial_metrics().get("layer_states") or getattr(model, "batch_size", None) not in (None, 1):
        raise TracingError(
            "build_dp_sgd: a layer keeps a state from batch to batch, or the model has batches of a fixed size, but\n"
            "the gradient of an example is that of a batch of one\n  fix: stateful=False, and no batch_size in Input"
        )


def private_gradients_of(
    mechanism: ExampleMechanism, model: PureModel, weights: ModelWeights, metrics: dict, batch: TensorStructure
) -> tuple[NoisyGradients, dict]:
    """Noisy gradients of a batch by the trainable weights, and the next state of the metrics.

    Types, for weights W, batches B and metric states S: <W,S,B> -> <W.trainable,S>.

    An example whose gradient is not finite adds zeros. Metrics have no noise; they are of the examples that take part,
    but for `num_examples`, which counts the batch.
    """
    rows = tf.shape(_dense_leaves(batch)[0])[0]
    examples = batch
    if mechanism.sampling_rate < 1:
        drawn = tf.where(tf.random.uniform([rows], dtype=tf.float64) < mechanism.sampling_rate)[:, 0]
        examples = tf.nest.map_structure(lambda leaf: tf.gather(leaf, drawn), batch)
    sums, changes = sum_clipped_gradients(mechanism.clip, model, weights, examples)
    added = zip(tf.nest.flatten(metrics), changes, strict=True)
    new_metrics = tf.nest.pack_sequence_as(metrics, [old + change for old, change in added])
    counts = {"num_examples": tf.cast(rows, tf.int64), "num_batches": tf.constant(1, tf.int64)}
    new_metrics |= {name: (metrics[name][0] + count,) for name, count in counts.items()}
    return NoisyGradients(_add_noise(mechanism, sums, weights.trainable)), new_metrics


def _add_noise(
    mechanism: ExampleMechanism, sums: Sequence[tf.Tensor | None], weights: Sequence[tf.Tensor]
) -> Iterator[tf.Tensor | None]:
    """The sums with noise, divided by the batch size, in the weights' dtypes.

    The noise of a step comes from one operation, which bears the mark of the mechanism.

    Args:
        sums: for each weight the sum of clipped gradients; None for a weight without gradients.
    """
    stddev = mechanism.noise_multiplier * mechanism.clip
    sizes = [0 if total is None else math.prod(total.shape) for total in sums]
    noise = stddev * smooth_normal(sum(sizes)) if stddev else tf.zeros([sum(sizes)])
    parts = tf.split(tf.raw_ops.PreventGradient(input=noise, message=mechanism.mark), sizes)
    for total, part, weight in zip(sums, parts, weights, strict=True):
        if total is None:
            yield None
            continue
        noisy = total + tf.reshape(part, total.shape)
        yield tf.cast(noisy / mechanism.batch_size, weight.dtype)


def sum_clipped_gradients(
    clip: float, model: PureModel, weights: ModelWeights, batch: TensorStructure
) -> tuple[list[tf.Tensor | None], list[tf.Tensor]]:
    """The sum of the gradients of a batch's examples, each clipped by its norm, and what they add to the metrics.

    Types, for weights W and metric states S: <W.trainable as float32,leaves of S>, with None for a weight that no loss
    depends on. A model with loops, such as those of recurrent layers over time steps, takes one example after another.
    """
    leaves, trainable = _dense_leaves(batch), weights.trainable
    count = tf.shape(leaves[0])[0]
    kinds: list[type | None] = []  # for each trainable weight the class of its gradient, None for no gradient

    def compute_example(number: tf.Tensor) -> tuple[list, list]:
        """Computes the gradients of the example at a place of the batch, and notes their classes in `kinds`.

        Returns:
            (for each weight that the loss depends on [gradient], or [values, indices] of an embedding; what the
            example adds to the leaves of the metrics' state)
        """
        single = tf.nest.pack_sequence_as(batch, [tf.gather(leaf, number)[tf.newaxis] for leaf in leaves])
        start = model.initial_metrics()
        with tf.GradientTape() as tape:
            tape.watch(trainable)
            output, _, metrics = model.step(weights, start, single, training=True)
        gradients = tape.gradient(output.loss, trainable)
        kinds[:] = [None if g is None else type(g) for g in gradients]
        tensors = [
            [g.values, g.indices] if isinstance(g, tf.IndexedSlices) else [g] for g in gradients if g is not None
        ]
        return tensors, [new - old for new, old in zip(*map(tf.nest.flatten, (metrics, start)), strict=True)]

    def compute_example_without_loops(number: tf.Tensor) -> tuple[list, list]:
        """Runs `compute_example`; raises `_HasLoops` if the model's graph has a loop."""
        graph = tf.compat.v1.get_default_graph()
        first = len(graph.get_operations())
        result = compute_example(number)
        if any(op.type in ("While", "StatelessWhile") for op in graph.get_operations()[first:]):
            raise _HasLoops
        return result

    def clip_and_sum(tensors: list, changes: list) -> list[tf.Tensor]:
        """The sums over examples of clipped gradients, then of changes of the metrics' state, as one list.

        Args:
            tensors, changes: the results of `compute_example`, stacked over examples.
        """
        gradients = _gradients_by_weight(kinds, iter(tensors), trainable)
        squares = tf.add_n([tf.cast(g.squared_norms(), tf.float64) for g in gradients])
        is_finite = tf.math.is_finite(squares)
        scales = tf.cast(tf.where(is_finite, tf.minimum(clip / tf.sqrt(squares), 1.0), 0.0), tf.float32)
        return [*(g.sum(scales, is_finite) for g in gradients), *(tf.reduce_sum(c, 0) for c in changes)]

    def add_example(number: tf.Tensor, totals: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
        tensors, changes = tf.nest.map_structure(lambda t: t[tf.newaxis], compute_example(number))
        return number + 1, [total + part for total, part in zip(totals, clip_and_sum(tensors, changes), strict=True)]

    try:
        totals = clip_and_sum(*private_api.vectorized_loop(compute_example_without_loops, count))
    except _HasLoops:
        used = (w for w, kind in zip(trainable, kinds, strict=True) if kind is not None)
        zeros = [tf.zeros(w.shape) for w in used] + [tf.zeros_like(s) for s in tf.nest.flatten(model.initial_metrics())]
        _, totals = tf.while_loop(lambda number, _: number < count, add_example, (0, zeros))
    remaining = iter(totals)
    return [None if kind is None else next(remaining) for kind in kinds], list(remaining)


class _HasLoops(Exception):
    """A model has loops, whose gradients TensorFlow's vectorizer does not cover."""


def _dense_leaves(batch: TensorStructure) -> list[tf.Tensor]:
    """The tensors of a batch, each with an example a row.

    Raises:
        TracingError: a tensor is sparse or ragged, which has no rows to take out.
    """
    leaves = tf.nest.flatten(batch)
    if not all(isinstance(leaf, tf.Tensor) for leaf in leaves):
        raise TracingError("build_dp_sgd: the batches have sparse or ragged tensors; give dense ones")
    return leaves


@attrs.frozen
class _Stacked:
    """Gradients of examples by a weight, as they are.

    The methods are those of `_OuterProducts` and `_Rows` too: `squared_norms` gives [examples]; `sum`, of the shape of
    the weight, adds the gradients times `scales` [examples], without those whose norm is not finite.

    Args:
        gradients: float32 [examples, *shape].
    """

    gradients: tf.Tensor

    def squared_norms(self) -> tf.Tensor:
        return tf.reduce_sum(tf.square(_flat_by_example(self.gradients)), 1)

    def sum(self, scales: tf.Tensor, is_finite: tf.Tensor) -> tf.Tensor:
        scaled = tf.where(is_finite[:, None], _flat_by_example(self.gradients) * scales[:, None], 0.0)
        return tf.reshape(tf.reduce_sum(scaled, 0), self.gradients.shape[1:])


@attrs.frozen
class _OuterProducts:
    """Gradients of examples by the kernel of a dense layer: left[i] outer right[i].

    Args:
        left, right: float32 [examples, n] and [examples, m]. Whoever chooses the weights can make one huge and the
            other tiny, so that squares in float32 would be 0 where the product is not.
    """

    left: tf.Tensor
    right: tf.Tensor

    def squared_norms(self) -> tf.Tensor:
        left, right = (tf.square(tf.cast(factor, tf.float64)) for factor in (self.left, self.right))
        return tf.reduce_sum(left, 1) * tf.reduce_sum(right, 1)

    def sum(self, scales: tf.Tensor, is_finite: tf.Tensor) -> tf.Tensor:
        left = tf.where(is_finite[:, None], self.left, 0.0)
        right = tf.where(is_finite[:, None], self.right * scales[:, None], 0.0)
        return tf.matmul(left, right, transpose_a=True)


@attrs.frozen
class _Rows:
    """Gradients of examples by the rows of an embedding.

    Args:
        values: float32 [examples, n, *sizes of a row].
        indices: [examples, n], the rows; an example may have a row several times.
        shape: of the weight.
    """

    values: tf.Tensor
    indices: tf.Tensor
    shape: tf.TensorShape

    @functools.cached_property
    def totals(self) -> tf.Tensor:
        """float32 [examples, n, elements of a row]: the sum of a row's gradients, where the row stands first; else 0.

        Norms and sums take these. Parts of a row that cancel each other within an example may each be so large that,
        added one by one, they would wipe out the sum of other examples.
        """
        n = tf.shape(self.indices)[1]
        values = tf.reshape(self.values, [-1, n, math.prod(self.shape[1:])])
        is_same = tf.equal(self.indices[:, :, None], self.indices[:, None, :])
        totals = tf.matmul(tf.cast(is_same, tf.float32), values)  # of each row, wherever it stands
        is_first = tf.equal(tf.argmax(tf.cast(is_same, tf.int32), 2, tf.int32), tf.range(n))
        return tf.where(is_first[:, :, None], totals, 0.0)

    def squared_norms(self) -> tf.Tensor:
        return tf.reduce_sum(tf.square(self.totals), [1, 2])

    def sum(self, scales: tf.Tensor, is_finite: tf.Tensor) -> tf.Tensor:
        scaled = tf.where(is_finite[:, None, None], self.totals * scales[:, None, None], 0.0)
        rows = tf.reshape(scaled, [-1, *self.shape[1:]])
        return tf.math.unsorted_segment_sum(rows, tf.reshape(self.indices, [-1]), self.shape[0])


_Gradients = _Stacked | _OuterProducts | _Rows


def _gradients_by_weight(
    kinds: Sequence[type | None], stacked: Iterator[list[tf.Tensor]], weights: Sequence[tf.Tensor]
) -> list[_Gradients]:
    """The gradients of each example, for each weight that the loss depends on.

    Args:
        kinds: for each weight the class of its gradient, None if the loss does not depend on it.
        stacked: for each other weight [gradients], or [values, indices] of an embedding, stacked over examples.
    """
    result: list[_Gradients] = []
    for weight in (w for w, kind in zip(weights, kinds, strict=True) if kind is not None):
        gradients, *indices = next(stacked)
        if indices:
            result.append(_Rows(tf.cast(gradients, tf.float32), indices[0], weight.shape))
            continue
        gradients = tf.ensure_shape(gradients, [None, *weight.shape])
        result.append(_outer_products(gradients) or _Stacked(tf.cast(gradients, tf.float32)))
    return result


def _outer_products(gradients: tf.Tensor) -> _OuterProducts | None:
    """The factors of gradients [examples, n, m] that a batched matrix product [n, 1] @ [1, m] computes; else None.

    Reads them from the graph: the operation behind `gradients`, before Identity and EnsureShape.
    """
    op: Any = gradients.op
    while op.type in ("Identity", "EnsureShape"):
        op = op.inputs[0].op
    if op.type != "BatchMatMulV2" or gradients.shape.rank != 3 or gradients.dtype != tf.float32:
        return None
    factors = []
    for factor, transposed, axis in zip(op.inputs, ("adj_x", "adj_y"), (2, 1), strict=True):
        inner = 3 - axis if op.get_attr(transposed) else axis  # the contracted axis; `transposed` swaps axes 1 and 2
        if factor.shape.rank != 3 or factor.shape[inner] != 1:
            return None
        factors.append(tf.squeeze(factor, inner))
    return _OuterProducts(*factors)


def _flat_by_example(gradients: tf.Tensor) -> tf.Tensor:
    """[examples, elements] of [examples, *shape]."""
    return tf.reshape(gradients, [tf.shape(gradients)[0], math.prod(gradients.shape[1:])])
