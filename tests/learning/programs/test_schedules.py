"""Schedules of hyperparameters, of clients and of the server, by round."""

import numpy as np
import tensorflow as tf

import fedcore as fc
from fedcore.learning import programs

SPEC = (tf.TensorSpec([None, 1]), tf.TensorSpec([None, 1]))


def client_data():
    def dataset(client_id):
        x = np.float32([[len(client_id)], [1]])
        return fc.data.ClientDataset.from_columns((x, 2 * x)).batch(1)

    return fc.simulation.datasets.ClientData.from_clients_and_tf_fn(["a", "bb", "ccc"], dataset)


def schedules():
    scheduler = programs.LearningRateScheduler
    return [
        scheduler(lambda number, momentum: 0.2 * number, "client_work.momentum"),
        scheduler(lambda number, rate: rate / 2),
    ]


def test_momentum_and_rate_follow_their_schedules_without_a_trace_and_also_after_a_resume(tmp_path):
    traces = []

    def forward(weights, batch, training):
        traces.append(batch)
        x, y = batch
        predictions = x @ weights.trainable[0]
        return fc.learning.BatchOutput(tf.reduce_mean((predictions - y) ** 2), predictions, tf.shape(y)[0])

    start = fc.learning.ModelWeights((np.zeros([1, 1], np.float32),), ())
    model = fc.learning.models.FunctionalModel(start, forward, SPEC)
    momentum = fc.learning.optimizers.build_sgdm(0.01, momentum=0.9)
    process = fc.learning.algorithms.build_weighted_fed_avg(model, momentum)
    data, options = client_data(), {"clients_per_round": 3, "seed": 1, "progress": False}

    state, number_of_traces = process.initialize.invoke(seed=1), len(traces)
    for number in (1, 2, 3):
        changes = {"client_work": {"momentum": 0.2 * number}, "finalizer": {"learning_rate": 0.5**number}}
        state = process.set_hparams(state, changes)
        state = process.next(state, [data.create_tf_dataset_for_client(c) for c in data.client_ids]).state

    whole = programs.train(process, data, 3, callbacks=schedules(), **options)
    assert process.get_hparams(whole.state) == process.get_hparams(state)
    np.testing.assert_allclose(
        whole.state.global_model_weights.trainable[0], state.global_model_weights.trainable[0], rtol=1e-5
    )
    programs.train(process, data, 1, directory=tmp_path, callbacks=schedules(), **options)
    resumed = programs.train(process, data, 3, directory=tmp_path, callbacks=schedules(), **options)
    assert resumed.rows == whole.rows
    assert len(traces) == number_of_traces
