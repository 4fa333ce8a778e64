"""What a client does in a round: local steps over its batches, and what it hands back."""

import attrs
import tensorflow as tf

from fedcore.computation import federated_computation, tf_computation
from fedcore.intrinsics import sequence_reduce
from fedcore.learning.models import FunctionalModel, ModelWeights
from fedcore.learning.optimizers import Optimizer
from fedcore.learning.weighting import ClientWeighting
from fedcore.types import SequenceType, Type


@attrs.frozen
class ClientResult:
    """`<update=W,weight=float32,metrics=M>`: the change of the trainable weights and how much it counts."""

    update: object
    weight: object
    metrics: object


@attrs.frozen
class _Carry:
    """What one local step hands to the next."""

    weights: ModelWeights
    optimizer: tuple
    metrics: dict


def build_training(model: FunctionalModel, optimizer: Optimizer, weighting: ClientWeighting, weights_type: Type):
    """The computation `(<W,B*> -> ClientResult)` of local training.

    A change that is not finite counts for nothing: it becomes zeros with weight 0, while its metrics are reported.
    A client without examples has weight 0.
    """

    @tf_computation
    def begin(weights):
        return _Carry(weights, optimizer.initialize(weights.trainable), model.initial_metrics())

    @tf_computation
    def step(carry, batch):
        trainable = carry.weights.trainable
        with tf.GradientTape() as tape:
            tape.watch(trainable)
            output, non_trainable = model.forward_pass(carry.weights, batch, training=True)
        gradients = tape.gradient(output.loss, trainable, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        state, trainable = optimizer.next(carry.optimizer, trainable, tuple(gradients))
        metrics = model.update_metrics(carry.metrics, batch, output)
        return _Carry(ModelWeights(trainable, non_trainable), state, metrics)

    @tf_computation
    def finish(before, carry):
        update = ModelWeights(
            *(
                tuple(a - b for a, b in zip(after, start, strict=True))
                for after, start in (
                    (carry.weights.trainable, before.trainable),
                    (carry.weights.non_trainable, before.non_trainable),
                )
            )
        )
        examples = tf.cast(carry.metrics["num_examples"][0], tf.float32)
        weight = tf.minimum(examples, 1.0) if weighting is ClientWeighting.UNIFORM else examples
        leaves = tf.nest.flatten(attrs.astuple(update))
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(leaf)) for leaf in leaves])
        cleaned = tf.nest.map_structure(lambda u: tf.where(finite, u, tf.zeros_like(u)), attrs.astuple(update))
        return ClientResult(ModelWeights(*cleaned), tf.where(finite, weight, 0.0), carry.metrics)

    @federated_computation(weights_type, SequenceType(model.batch_type))
    def train(weights, batches):
        return finish(weights, sequence_reduce(batches, begin(weights), step))

    return train


def build_evaluation(model: FunctionalModel, weights_type: Type):
    """The computation `(<W,B*> -> M)`: the metrics of a model over a client's batches."""

    @tf_computation
    def begin():
        return model.initial_metrics()

    @tf_computation
    def step(metrics, batch, weights):
        output, _ = model.forward_pass(weights, batch, training=False)
        return model.update_metrics(metrics, batch, output)

    @federated_computation(weights_type, SequenceType(model.batch_type))
    def evaluate(weights, batches):
        return sequence_reduce(batches, begin(), lambda metrics, batch: step(metrics, batch, weights))

    return evaluate
