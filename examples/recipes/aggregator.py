"""Aggregators: one with a state, another one inside and a measurement, used in federated averaging; one without."""

import keras
import numpy as np
import tensorflow as tf

import fedcore as fc


class SmoothedMeanFactory(fc.aggregators.WeightedAggregationFactory):
    """The weighted mean, averaged over the rounds: decay * result before + (1 - decay) * mean."""

    def __init__(self, decay):
        self.decay = decay
        self.mean = fc.aggregators.MeanFactory(no_nan_division=True)

    def create(self, value_type, weight_type):
        mean = self.mean.create(value_type, weight_type)

        @fc.tf_computation(value_type, value_type)
        def smoothed(before, now):
            return tf.nest.map_structure(lambda b, n: self.decay * b + (1 - self.decay) * n, before, now)

        @fc.federated_computation
        def initialize():
            before = fc.federated_value(fc.generic_zero(value_type), fc.SERVER)
            return fc.federated_zip({"mean": mean.initialize(), "before": before})

        def body(state, value, weights):
            inner = mean.next(state.mean, value, *weights)
            result = fc.federated_map(smoothed, (state.before, inner.result))
            return fc.templates.MeasuredProcessOutput(
                state=fc.federated_zip({"mean": inner.state, "before": result}),
                result=result,
                measurements=fc.federated_zip({"mean": inner.measurements, "clients": fc.federated_count(value)}),
            )

        return fc.aggregators.aggregation_process(initialize, value_type, weight_type, body)


fc.testing.check_aggregator(SmoothedMeanFactory(0.5), ("float32", [2]), "float32")


class LargestFactory(fc.aggregators.UnweightedAggregationFactory):
    """The largest value of each entry, without a state."""

    def create(self, value_type):
        @fc.federated_computation
        def initialize():
            return fc.federated_value((), fc.SERVER)

        def body(state, value, weights):
            return fc.templates.MeasuredProcessOutput(state, fc.federated_max(value), state)

        return fc.aggregators.aggregation_process(initialize, value_type, None, body)


fc.testing.check_aggregator(LargestFactory(), ("float32", [2]), meaning=lambda rounds: np.max(rounds[-1], 0))

# Measurements are in the round's metrics.
examples = tf.data.Dataset.from_tensor_slices((np.ones((4, 1), np.float32), np.ones((4, 1), np.float32))).batch(2)


def model_fn():
    net = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    return fc.learning.from_keras_model(net, keras.losses.MeanSquaredError(), input_spec=examples.element_spec)


process = fc.learning.algorithms.build_weighted_fed_avg(
    model_fn, fc.learning.optimizers.build_sgdm(learning_rate=0.1), model_aggregator=SmoothedMeanFactory(0.5)
)
_, metrics = process.next(process.initialize(), [examples, examples, examples])
assert metrics["aggregator"]["clients"] == 3

# An aggregator that calls `federated_aggregate` itself has its four functions checked.
fc.testing.check_aggregation(0, lambda n, x: n + x, lambda m, n: m + n, lambda n: n, [1, 2, 3])
