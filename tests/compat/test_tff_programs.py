"""Idioms of TFF's programs, each as its tests and trainers write it."""

import asyncio
import inspect
from collections import OrderedDict

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as tff
from fedcore.errors import TypeMismatch

SPEC = (tf.TensorSpec([None, 2]), tf.TensorSpec([None, 1]))
BATCH = (np.ones([3, 2], np.float32), np.full([3, 1], 2.0, np.float32))
sgdm = tff.learning.optimizers.build_sgdm


def dense():
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])


def model_fn():
    return tff.learning.models.from_keras_model(dense(), keras.losses.MeanSquaredError(), SPEC)


def at_server(value):
    return tff.federated_eval(tff.tf_computation(lambda: value()), tff.SERVER)


@tff.tf_computation(tff.SequenceType(np.int32))
def total(data):
    return data.reduce(0, lambda a, b: a + b)


@tff.federated_computation
def initialize():
    return at_server(lambda: tf.constant(0))


@tff.federated_computation(
    tff.FederatedType(np.int32, tff.SERVER), tff.FederatedType(tff.SequenceType(np.int32), tff.CLIENTS)
)
def next_by_name(state, data):
    measured = tff.federated_zip(OrderedDict(total=tff.federated_sum(tff.federated_map(total, data))))
    return OrderedDict(state=state, metrics=measured)


class Released:
    """Keeps what is released, with the loop that is set then."""

    def __init__(self):
        self.values = []

    async def release(self, value, key):
        self.values.append((key, value["total"]))


def test_release_managers_and_state_managers_are_generic():
    class Own(tff.program.ReleaseManager[object, int]):
        async def release(self, value, key):
            pass

    assert inspect.signature(tff.program.ProgramStateManager[object].load)
    assert isinstance(Own(), tff.program.ReleaseManager)
    assert tff.program.MemoryReleaseManager[object, int]().values() == {}
    assert tff.program.CSVFileReleaseManager[object]
    assert tff.program.FileProgramStateManager[object]


@pytest.mark.parametrize("value", [None, {"a": None, "b": 1.0}, [None, 1]])
def test_a_value_with_none_is_released_as_a_saved_model(value, tmp_path):
    manager = tff.program.SavedModelFileReleaseManager(tmp_path)
    asyncio.run(manager.release(value, key=1))
    assert asyncio.run(manager.get_value(1)) == value


def test_the_training_loop_takes_the_output_of_next_by_name():
    process = tff.templates.IterativeProcess(initialize, next_by_name)
    manager = Released()
    state = tff.simulation.run_training_process(process, lambda r: [[1, 2], [r]], 2, metrics_managers=[manager])
    assert (state, manager.values) == (0, [(1, 4), (2, 5)])


def test_train_takes_the_output_of_next_by_name():
    process = tff.learning.templates.LearningProcess(initialize, next_by_name)
    data = tff.simulation.datasets.TestClientData({"a": [1, 2]})
    history = tff.learning.programs.train(process, data, rounds=2, clients_per_round=1)
    assert [row["total"] for row in history.rows] == [3, 3]


def test_the_training_loop_leaves_the_event_loop_as_it_was():
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        process = tff.templates.IterativeProcess(initialize, next_by_name)
        tff.simulation.run_training_process(process, lambda r: [[1]], 1, metrics_managers=[Released()])
        assert asyncio.get_event_loop() is loop
        assert loop.run_until_complete(asyncio.sleep(0, "runs")) == "runs"
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def test_the_weights_of_k_means_are_the_centres():
    process = tff.learning.algorithms.build_fed_kmeans(2, (2,), initial_centers=[[0, 0], [9, 9]])
    state = process.initialize()
    assert process.get_model_weights(state).tolist() == [[0, 0], [9, 9]]
    state = process.set_model_weights(state, np.float32([[1, 1], [2, 2]]))
    state, _ = process.next(state, [[np.float32([3, 3])]])
    assert process.get_model_weights(state).tolist() == [[1, 1], [2.5, 2.5]]


def test_the_state_of_a_learning_process_grows():
    some = tff.TensorType(np.int32, [None])
    data_type = tff.FederatedType(tff.SequenceType(np.int32), tff.CLIENTS)
    append = tff.tf_computation(lambda state, x: tf.concat([state, [x]], 0), some, np.int32)

    @tff.federated_computation(tff.FederatedType(some, tff.SERVER), data_type)
    def next_round(state, data):
        added = tff.federated_sum(tff.federated_map(total, data))
        return tff.learning.templates.LearningProcessOutput(tff.federated_map(append, (state, added)), added)

    start = tff.federated_computation(lambda: at_server(lambda: tf.zeros([0], tf.int32)))
    get = tff.tf_computation(lambda state: state, some)
    process = tff.learning.templates.LearningProcess(
        start, next_round, get, tff.tf_computation(lambda _, w: w, some, some)
    )
    state = process.initialize()
    for _ in range(2):
        state, _ = process.next(state, [[1, 2]])
    assert process.get_model_weights(state).tolist() == [3, 3]
    assert process.set_model_weights(state, np.int32([7])).tolist() == [7]


def test_the_older_builder_takes_a_factory_without_weights():
    process = tff.learning.build_federated_averaging_process(
        model_fn, sgdm(0.5), model_update_aggregation_factory=tff.aggregators.UnweightedMeanFactory()
    )
    state, _ = process.next(process.initialize(), [[BATCH], [BATCH, BATCH]])
    # The loss is stationary at predictions of 2, where the model is: nothing moves, whatever the weights.
    assert state.model.trainable[0].tolist() == [[1.0], [1.0]]


def test_a_functional_model_is_made_of_a_function_that_makes_a_keras_model():
    model = tff.learning.models.functional_model_from_keras(lambda: dense(), keras.losses.MeanSquaredError(), SPEC)
    assert model.initial_weights.trainable[0].tolist() == [[1.0], [1.0]]


def test_annotations_of_baselines_are_objects():
    baselines = tff.simulation.baselines
    spec = {field.name: field.type for field in baselines.ClientSpec.__attrs_attrs__}
    assert spec["num_epochs"] is int
    create = inspect.signature(baselines.emnist.create_character_recognition_task)
    assert create.return_annotation is baselines.BaselineTask


def test_processes_are_built_and_run_in_a_plain_graph():
    with tf.Graph().as_default():
        process = tff.learning.algorithms.build_weighted_fed_avg(model_fn, sgdm(0.5))
        state, metrics = process.next(process.initialize(), [[BATCH]])
    assert metrics["client_work"]["train"]["num_examples"] == 3
    assert state.model.trainable[0].tolist() == [[1.0], [1.0]]


def test_computations_are_traced_and_called_in_a_plain_graph():
    with tf.Graph().as_default():
        assert tff.tf_computation(lambda x: x + 1, np.int32)(1) == 2
        assert tff.learning.models.weights_type_from_model(model_fn) is not None


@pytest.mark.parametrize("optimizer", [keras.optimizers.SGD(0.1), lambda: keras.optimizers.SGD(0.1)])
def test_keras_optimizers_are_scheduled(optimizer):
    scheduled = tff.learning.optimizers.schedule_learning_rate(optimizer, lambda step: 0.5)
    _, weights = scheduled.next(scheduled.initialize(tf.TensorSpec([2])), tf.zeros(2), tf.ones(2))
    assert weights.numpy().tolist() == [-0.5, -0.5]


def test_a_schedule_is_a_function():
    with pytest.raises(TypeMismatch, match=r"schedule_fn is a function of the step, not 0\.1"):
        tff.learning.optimizers.schedule_learning_rate(sgdm(0.1), 0.1)


@pytest.mark.parametrize("given", [[1, 2], "abc", None])
def test_test_client_data_takes_a_dict(given):
    with pytest.raises(TypeMismatch, match=r"TestClientData takes a dict from clients' ids to their examples"):
        tff.simulation.datasets.TestClientData(given)


def test_the_number_of_concurrent_calls_is_whole():
    with pytest.raises(TypeMismatch, match=r"^max_concurrent_computation_calls is a whole number, not 8\.0$"):
        tff.backends.native.create_sync_local_cpp_execution_context(max_concurrent_computation_calls=8.0)


def test_client_data_are_made_of_ids_and_a_function():
    make = tff.simulation.datasets.ClientData.from_clients_and_fn
    data = make(["b", "a"], lambda client_id: tf.data.Dataset.from_tensors(len(client_id)))
    assert data.client_ids == ["a", "b"]
    assert list(data.create_tf_dataset_for_client("a").as_numpy_iterator()) == [1]
