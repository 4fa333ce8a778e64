"""The steps of the tutorials on aggregators: one written by hand, and the recommended ones tuned."""

import collections
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as tff


@tff.tensorflow.computation()
def scaled(value, factor):
    return tf.nest.map_structure(lambda x: x * factor, value)


@tff.tensorflow.computation()
def unscaled(value, factor):
    return tf.nest.map_structure(lambda x: x / factor, value)


@tff.tensorflow.computation()
def next_factor(factor):
    return factor + 1.0


class ScaledSum(tff.aggregators.UnweightedAggregationFactory):
    """Sends values times the number of the round, around another aggregation."""

    def __init__(self, inner=None):
        self._inner = inner or tff.aggregators.SumFactory()

    def create(self, value_type):
        inner = self._inner.create(value_type)

        @tff.federated_computation()
        def initialize():
            return tff.federated_zip((tff.federated_value(0.0, tff.SERVER), inner.initialize()))

        @tff.federated_computation(initialize.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS))
        def next_round(state, value):
            factor, inner_state = state
            new_factor = tff.federated_map(next_factor, factor)
            sent = tff.federated_map(scaled, (value, tff.federated_broadcast(new_factor)))
            output = inner.next(inner_state, sent)
            return tff.templates.MeasuredProcessOutput(
                state=tff.federated_zip((new_factor, output.state)),
                result=tff.federated_map(unscaled, (output.result, new_factor)),
                measurements=tff.federated_zip(
                    collections.OrderedDict(scaled=output.result, inner=output.measurements)
                ),
            )

        return tff.templates.AggregationProcess(initialize, next_round)


def rounds(factory, value_type, values, count: int) -> list:
    process = factory.create(tff.to_type(value_type))
    state, outputs = process.initialize(), []
    for _ in range(count):
        outputs.append(process.next(state, values))
        state = outputs[-1].state
    return outputs


def test_a_custom_aggregator_keeps_a_state_and_delegates():
    outputs = rounds(ScaledSum(ScaledSum()), np.float32, [1.0, 2.0, 5.0], 2)
    assert [float(o.result) for o in outputs] == [8.0, 8.0]
    assert [float(o.measurements["scaled"]) for o in outputs] == [8.0, 16.0]
    assert [float(o.measurements["inner"]["scaled"]) for o in outputs] == [8.0, 32.0]


def test_a_custom_aggregator_takes_structures():
    values = [[[1.0, 2.0], [3.0, 4.0, 5.0]], [[1.0, 1.0], [3.0, 0.0, -5.0]]]
    result = rounds(ScaledSum(), [(np.float32, (2,)), (np.float32, (3,))], values, 1)[0].result
    np.testing.assert_array_equal(result[0], [2, 3])
    np.testing.assert_array_equal(result[1], [6, 4, 0])


def quantile(start: float, **settings):
    return tff.aggregators.PrivateQuantileEstimationProcess.no_noise(initial_estimate=start, **settings)


TUNED = {
    "zeroing": lambda: tff.aggregators.zeroing_factory(
        zeroing_norm=quantile(10.0, target_quantile=0.98, learning_rate=math.log(10), multiplier=2.0, increment=1.0),
        inner_agg_factory=tff.aggregators.MeanFactory(),
    ),
    "clipping": lambda: tff.aggregators.clipping_factory(
        clipping_norm=quantile(100.0, target_quantile=0.8, learning_rate=0.2),
        inner_agg_factory=tff.aggregators.MeanFactory(),
    ),
    "compressed": lambda: tff.aggregators.MeanFactory(
        tff.aggregators.EncodedSumFactory.quantize_above_threshold(quantization_bits=8, threshold=20000)
    ),
    "secure": lambda: tff.aggregators.MeanFactory(
        tff.aggregators.SecureSumFactory(quantile(50.0, target_quantile=0.95, learning_rate=1.0, multiplier=2.0))
    ),
}


@pytest.mark.filterwarnings("ignore:.*encodes nothing")  # of these small values
@pytest.mark.parametrize("name", TUNED)
def test_tuned_aggregators_give_the_weighted_mean_of_small_values(name):
    process = TUNED[name]().create(tff.TensorType(np.float32, (2,)), tff.TensorType(np.float32))
    result = process.next(process.initialize(), [[1.0, 2.0], [3.0, 6.0]], [1.0, 3.0]).result
    np.testing.assert_allclose(result, [2.5, 5.0], rtol=1e-3)


def test_large_weights_are_compressed_and_losses_are_written_for_tensorboard(tmp_path):
    aggregator = tff.learning.compression_aggregator()
    assert isinstance(aggregator, tff.aggregators.WeightedAggregationFactory)
    spec = (tf.TensorSpec([None, 200], tf.float32), tf.TensorSpec([None, 1], tf.int32))

    def model_fn():
        layers = [keras.Input([200]), keras.layers.Dense(110, "relu"), keras.layers.Dense(2, "softmax")]
        return tff.learning.models.from_keras_model(
            keras_model=keras.Sequential(layers),
            input_spec=spec,
            loss=keras.losses.SparseCategoricalCrossentropy(),
            metrics=[keras.metrics.SparseCategoricalAccuracy()],
        )

    process = tff.learning.algorithms.build_weighted_fed_avg(
        model_fn,
        client_optimizer_fn=lambda: keras.optimizers.SGD(learning_rate=0.02),
        server_optimizer_fn=lambda: keras.optimizers.SGD(learning_rate=1.0),
        model_aggregator=aggregator,
    )
    x = np.random.default_rng(0).normal(size=[8, 200]).astype(np.float32)
    state, data, losses = process.initialize(), [[(x, (x[:, :1] > 0).astype(np.int32))]] * 2, []
    with tf.summary.create_file_writer(str(tmp_path)).as_default():
        for step in range(3):
            result = process.next(state, data)
            state = result.state
            for name, value in result.metrics["client_work"]["train"].items():
                tf.summary.scalar(name, value, step=step)
            losses.append(result.metrics["client_work"]["train"]["loss"])
    assert losses == sorted(losses, reverse=True)
    assert list(tmp_path.iterdir())
