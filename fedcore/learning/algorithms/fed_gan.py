"""FedGAN: generator and discriminator, each with an optimizer of its own, are trained at the clients and averaged."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from fedcore.aggregators import AggregationFactory
from fedcore.errors import TracingError
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.learning.algorithms.fed_avg import federated_averaging, local_training
from fedcore.learning.models import ModelWeights, PureModel, trace_model
from fedcore.learning.models.traced import ModelFn
from fedcore.learning.optimizers import as_optimizer
from fedcore.learning.optimizers.keras_optimizer import OptimizerLike
from fedcore.learning.optimizers.split_optimizer import Share, SplitOptimizer
from fedcore.learning.process import LearningProcess
from fedcore.learning.weighting import ClientWeighting, Weighting
from fedcore.templates import MeasuredProcess


def _discriminator_loss(real: tf.Tensor, fake: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.math.softplus(-real)) + tf.reduce_mean(tf.math.softplus(fake))


def _generator_loss(fake: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.math.softplus(-fake))


class GanModel(keras.Model):
    """A generator and a discriminator as one Keras model, for `build_fed_gan`.

    Types, for examples X of shape [n, …] and noise Z of shape [n, …]:
        generator      (Z -> X)
        discriminator  (X -> logits of shape [n, …])
        call           (X -> float[n,2k]): the k logits of each example, then those of an example that is generated of
                       new noise from a standard normal distribution

    The metric `loss` is that of the discriminator, `generator_loss` that of the generator.

    Args:
        generator, discriminator: Keras models with one input and one output each; the generator's input has a known
            shape.
        discriminator_loss: (logits of the examples, logits of generated ones) -> a scalar. Default: the cross-entropy,
            mean of softplus(-real) + mean of softplus(fake).
        generator_loss: (logits of generated examples) -> a scalar. Default: mean of softplus(-fake), Goodfellow's
            loss that does not saturate.
    Raises:
        TracingError: one is no Keras model, the generator's input has no known shape, or its layers add losses.
    Example:
        >>> def gan():
        ...     generator = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        ...     return fc.learning.algorithms.GanModel(
        ...         generator, keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
        >>> gan()(np.ones([4, 2], np.float32)).shape
        TensorShape([4, 2])
    """

    def __init__(
        self,
        generator: keras.Model,
        discriminator: keras.Model,
        *,
        discriminator_loss: Callable | None = None,
        generator_loss: Callable | None = None,
    ) -> None:
        super().__init__(name="gan")
        for role, model in (("generator", generator), ("discriminator", discriminator)):
            if not isinstance(model, keras.Model):
                raise TracingError(f"the {role} of a GanModel is a Keras model, not {type(model).__name__}")
        shape = getattr(generator, "input_shape", None)
        if not isinstance(shape, tuple) or not all(isinstance(n, int) for n in shape[1:]):
            raise TracingError(f"the generator {generator.name} has one input of a known shape, not {shape}")
        if generator.losses:
            raise TracingError(
                f"the layers of the generator {generator.name} add losses; give GanModel a generator_loss, and leave "
                "regularizers to the discriminator"
            )
        self.generator, self.discriminator = generator, discriminator
        self._noise_shape = shape[1:]
        self._seeds = keras.random.SeedGenerator()
        self._discriminator_loss = discriminator_loss or _discriminator_loss
        self._generator_loss = generator_loss or _generator_loss
        self._generator_mean = keras.metrics.Mean(name="generator_loss")

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        noise = keras.random.normal((keras.ops.shape(x)[0], *self._noise_shape), seed=self._seeds)
        fake = self.generator(noise, training=training)
        logits = (self.discriminator(part, training=training) for part in (x, fake))
        return keras.ops.concatenate([keras.ops.reshape(part, (keras.ops.shape(x)[0], -1)) for part in logits], -1)

    def loss_of_generator(self, logits: tf.Tensor) -> tf.Tensor:
        """The generator's loss, of the result of a call."""
        return self._generator_loss(keras.ops.split(logits, 2, -1)[1])

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> tf.Tensor:
        """The discriminator's loss for a result `y_pred` of `call`, with the losses that its layers add.

        The other arguments are Keras' and are not read. `build_fed_gan` computes the generator's loss.
        """
        loss = self._discriminator_loss(*keras.ops.split(y_pred, 2, -1))
        return loss + sum(self.discriminator.losses)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict:
        """Adds the generator's loss of a batch to its mean over examples; returns the results of all metrics."""
        self._generator_mean.update_state(self.loss_of_generator(y_pred), sample_weight=tf.shape(y_pred)[0])
        return self.get_metrics_result()


def build_fed_gan(
    model_fn: ModelFn,
    generator_optimizer_fn: OptimizerLike,
    discriminator_optimizer_fn: OptimizerLike,
    server_optimizer_fn: OptimizerLike | None = None,
    *,
    client_weighting: Weighting = ClientWeighting.NUM_EXAMPLES,
    model_distributor: MeasuredProcess | None = None,
    model_aggregator: AggregationFactory | None = None,
    metrics_aggregator: Callable[[Any], Callable] | None = None,
) -> LearningProcess:
    """Builds FedGAN: clients train a generator and a discriminator, the server averages both.

    Types: those of `build_weighted_fed_avg`; C are the hyperparameters of both optimizers, `generator_learning_rate`
    and so on.

    In each step, on a batch of examples and as much new noise, the generator moves against the gradient of its loss and
    the discriminator against that of its own, both from the weights of before.

    Args:
        model_fn: makes a `GanModel`, by `fc.learning.from_keras_model(GanModel(…), input_spec=…)`. Batches are (x, y)
            as elsewhere; y is not read.
        generator_optimizer_fn, discriminator_optimizer_fn: of the local steps.
        server_optimizer_fn, client_weighting, model_distributor, model_aggregator, metrics_aggregator: as for
            `build_weighted_fed_avg`; both models are aggregated as one.
    Returns:
        A `LearningProcess`; `state.global_model_weights.assign_weights_to(gan)` gives both models their weights.
    Raises:
        TracingError: `model_fn` makes no `GanModel`.
        TypeMismatch, FedcoreError: as for `build_weighted_fed_avg`.
    Source:
        Rasouli et al. 2020, "FedGAN: federated generative adversarial networks for distributed data", arXiv:2006.07228,
        Algorithm 1; K, the steps between two averages, are the batches of a client in a round.
    Example:
        >>> def gan_fn():
        ...     generator = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        ...     discriminator = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        ...     gan = fc.learning.algorithms.GanModel(generator, discriminator)
        ...     return fc.learning.from_keras_model(gan, input_spec=spec)
        >>> process = fc.learning.algorithms.build_fed_gan(
        ...     gan_fn, lambda: keras.optimizers.Adam(0.01), lambda: keras.optimizers.SGD(0.1))
        >>> state, metrics = process.next(process.initialize(), [client_a, client_b])
        >>> sorted(metrics['client_work']['train'])
        ['generator_loss', 'loss', 'num_batches', 'num_examples', 'num_non_finite_clients']
    """
    model = trace_model(model_fn)
    gan: Any = getattr(model, "keras_model", None)
    if not isinstance(gan, GanModel):
        raise TracingError(
            f"build_fed_gan trains a GanModel, but model_fn makes {type(model if gan is None else gan).__name__}; it "
            "returns fc.learning.from_keras_model(fc.learning.algorithms.GanModel(generator, discriminator), "
            "input_spec=…)"
        )
    generator_ids = {id(v) for v in gan.generator.trainable_variables}
    is_of_generator = [id(v) in generator_ids for v in gan.trainable_variables]  # for each trainable weight
    optimizer = SplitOptimizer(
        [
            _share(model, "generator", generator_optimizer_fn, is_of_generator),
            _share(model, "discriminator", discriminator_optimizer_fn, [not owned for owned in is_of_generator]),
        ]
    )

    def gradients_at(
        model: PureModel, weights: ModelWeights, metrics: dict, batch: TensorStructure, scale_loss: None
    ) -> tuple:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(weights.trainable)
            output, moved, new_metrics = model.forward(weights, metrics, batch, True)
            losses = (output.loss, gan.loss_of_generator(output.predictions))
        by_loss = [tape.gradient(loss, weights.trainable) for loss in losses]
        # A weight of the generator takes the gradient of losses[1], a weight of the discriminator that of losses[0].
        gradients = (by_loss[is_generator][place] for place, is_generator in enumerate(is_of_generator))
        dense = tuple(None if g is None else tf.convert_to_tensor(g) for g in gradients)
        return dense, output, moved, new_metrics

    return federated_averaging(
        model,
        local_training(model, optimizer, client_weighting, gradients_at=gradients_at),
        server_optimizer_fn,
        model_distributor=model_distributor,
        model_aggregator=model_aggregator,
        metrics_aggregator=metrics_aggregator,
    )


def _share(model: PureModel, role: str, optimizer_fn: OptimizerLike, is_trained: list[bool]) -> Share:
    """The optimizer of one of the two models, with the places of this model's weights.

    Args:
        role: the prefix of the optimizer's hyperparameters.
        is_trained: for each trainable weight of the GAN, whether this optimizer trains it.
    """
    places = tuple(place for place, trained in enumerate(is_trained) if trained)
    return Share(role, as_optimizer(optimizer_fn, [model.trainable_names[i] for i in places]), places)
