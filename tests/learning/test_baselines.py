"""Baseline tasks on synthetic data: batches, models, metrics, and a round of each (soak)."""

import doctest
import importlib

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import FedcoreError
from fedcore.learning.baselines import task as tasks
from fedcore.learning.baselines import token_metrics
from fedcore.simulation.datasets import TestClientData

baselines = fc.simulation.baselines
SPEC = baselines.ClientSpec(num_epochs=1, batch_size=4)
DATA = TestClientData({"a": [1, 2, 3], "b": [4]})


def batch_of(*columns):
    return tuple(tf.TensorSpec([None, *shape], dtype) for dtype, shape in columns)


TASKS = {
    "emnist 2nn": (
        lambda **given: baselines.emnist.create_character_recognition_task(
            SPEC, model_id="2nn", only_digits=True, debug_seed=1, **given
        ),
        batch_of(("float32", [28, 28, 1]), ("int32", [])),
        199_210,
    ),
    "emnist cnn": (
        lambda **given: baselines.emnist.create_character_recognition_task(
            SPEC, model_id="cnn", only_digits=True, **given
        ),
        batch_of(("float32", [28, 28, 1]), ("int32", [])),
        1_663_370,
    ),
    "emnist cnn_dropout": (
        lambda **given: baselines.emnist.create_character_recognition_task(SPEC, only_digits=True, **given),
        batch_of(("float32", [28, 28, 1]), ("int32", [])),
        1_199_882,
    ),
    "emnist autoencoder": (
        lambda **given: baselines.emnist.create_autoencoder_task(SPEC, **given),
        batch_of(("float32", [784]), ("float32", [784])),
        2_837_314,
    ),
    "cifar100": (
        lambda **given: baselines.cifar100.create_image_classification_task(SPEC, crop_height=8, crop_width=9, **given),
        batch_of(("float32", [8, 9, 3]), ("int64", [])),
        11_227_940,
    ),
    "shakespeare": (
        lambda **given: baselines.shakespeare.create_character_prediction_task(SPEC, sequence_length=7, **given),
        batch_of(("int64", [7]), ("int64", [7])),
        820_522,
    ),
    "tags": (
        lambda **given: baselines.stackoverflow.create_tag_prediction_task(
            SPEC, word_vocab_size=20, tag_vocab_size=5, **given
        ),
        batch_of(("float32", [20]), ("float32", [5])),
        105,
    ),
    "words": (
        lambda **given: baselines.stackoverflow.create_word_prediction_task(
            SPEC, sequence_length=6, vocab_size=20, **given
        ),
        batch_of(("int64", [6]), ("int64", [6])),
        (96 * 24) + 4 * (96 + 670 + 1) * 670 + (670 * 96 + 96) + (96 * 24 + 24),
    ),
}


@pytest.fixture(scope="module", params=TASKS)
def made(request):
    make, spec, weights = TASKS[request.param]
    return make(use_synthetic_data=True), spec, weights


def test_a_task_has_batches_of_its_type_for_training_and_for_test(made):
    task, spec, _ = made
    assert task.datasets.element_type_structure == spec
    (client,) = task.datasets.sample_train_clients(1, random_seed=1)
    for dataset in (client, task.datasets.get_centralized_test_data()):
        for part, wanted in zip(next(iter(dataset)), spec, strict=True):
            assert wanted.is_compatible_with(part)


def test_a_tasks_model_has_its_size(made):
    task, _, weights = made
    assert task.model_fn().keras_model.count_params() == weights


@pytest.mark.soak
def test_a_task_trains(made):
    task, _, _ = made
    process = fc.learning.algorithms.build_weighted_fed_avg(task.model_fn, fc.learning.optimizers.build_sgdm(0.01))
    _, metrics = process.next(process.initialize(), task.datasets.sample_train_clients(2))
    assert np.isfinite(metrics["client_work"]["train"]["loss"])


def test_digits_are_learned():
    task = TASKS["emnist 2nn"][0](use_synthetic_data=True)
    process = fc.learning.algorithms.build_weighted_fed_avg(task.model_fn, fc.learning.optimizers.build_sgdm(0.02))
    state = process.initialize()
    losses = []
    for round_num in range(12):
        clients = task.datasets.sample_train_clients(2, random_seed=round_num)
        state, metrics = process.next(state, clients)
        losses.append(float(metrics["client_work"]["train"]["loss"]))
    assert losses[-1] < 0.75 * losses[0]


def test_snippets_begin_end_and_are_padded():
    task = TASKS["shakespeare"][0](use_synthetic_data=True)
    dataset = task.datasets.eval_preprocess_fn(TestClientData({"a": {"snippets": ["d~d"]}}).datasets().__next__())
    ((x, y),) = dataset.as_numpy_iterator()
    start, end = 88, 89  # 86 characters, then one for all others
    np.testing.assert_array_equal(x, [[start, 1, 87, 1, end, 0, 0]])
    np.testing.assert_array_equal(y, [[1, 87, 1, end, 0, 0, 0]])


def test_sentences_begin_end_and_are_cut_or_padded():
    task = TASKS["words"][0](use_synthetic_data=True)
    words = list(fc.simulation.datasets.stackoverflow.get_synthetic_word_counts())[:20]
    texts = [f"{words[1]} unheard {words[0]}", " ".join(words[:9])]
    columns = {name: [""] * 2 for name in ("creation_date", "tags", "title", "type")}
    data = TestClientData({"a": {**columns, "score": [1, 1], "tokens": texts}})
    ((x, y),) = task.datasets.eval_preprocess_fn(data.create_tf_dataset_for_client("a")).as_numpy_iterator()
    np.testing.assert_array_equal(x, [[22, 2, 21, 1, 23, 0], [22, 1, 2, 3, 4, 5]])
    np.testing.assert_array_equal(y, [[2, 21, 1, 23, 0, 0], [1, 2, 3, 4, 5, 6]])


def test_tags_and_words_are_counted():
    task = TASKS["tags"][0](use_synthetic_data=True)
    (words, tags), *_ = task.datasets.get_centralized_test_data().as_numpy_iterator()
    np.testing.assert_allclose(words.sum(axis=1)[words.any(axis=1)], 1, rtol=1e-6)
    assert set(np.unique(tags)) == {0.0, 1.0}


def test_images_are_cropped_and_standardized():
    task = baselines.cifar100.create_image_classification_task(SPEC, use_synthetic_data=True)
    x, _ = next(iter(task.datasets.get_centralized_test_data()))
    np.testing.assert_allclose(x.numpy().mean(axis=(1, 2, 3)), 0, atol=1e-4)
    np.testing.assert_allclose(x.numpy().std(axis=(1, 2, 3)), 1, atol=1e-3)
    assert x.shape[1:] == (24, 24, 3)


def test_training_images_are_distorted_anew_in_each_reading():
    task = baselines.cifar100.create_image_classification_task(SPEC, distort_train_images=True, use_synthetic_data=True)
    still = task.datasets.train_data.select(["synthetic1"]).preprocess(task.datasets.train_preprocess_fn)
    dataset = still.create_tf_dataset_for_client("synthetic1")
    one, other = (sorted(float(image[0, 0, 0]) for x, _ in dataset for image in x) for _ in range(2))
    assert one != other


def test_a_spec_shuffles_repeats_cuts_and_has_no_zeros():
    spec = baselines.ClientSpec(num_epochs=3, batch_size=2, max_elements=7, shuffle_buffer_size=1)
    dataset = spec.elements_of(DATA.create_tf_dataset_for_client("a"), shuffle_buffer_size=100)
    assert list(dataset.as_numpy_iterator()) == [1, 2, 3, 1, 2, 3, 1]
    for wrong in ({"num_epochs": 0}, {"batch_size": 1.5}, {"max_elements": 0}, {"shuffle_buffer_size": -1}):
        with pytest.raises(FedcoreError, match=f"{next(iter(wrong))} is a whole number, 1 or more"):
            baselines.ClientSpec(**{"num_epochs": 1, "batch_size": 1, **wrong})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: baselines.emnist.create_character_recognition_task(SPEC, model_id="3nn"),
            "model_id is one of 'cnn_",
        ),
        (
            lambda: baselines.cifar100.create_image_classification_task(SPEC, model_id="vgg"),
            "model_id is one of 'res",
        ),
        (lambda: baselines.cifar100.create_image_classification_task(SPEC, crop_width=33), "crop_width is at most 32"),
        (
            lambda: baselines.shakespeare.create_character_prediction_task(SPEC, sequence_length=0),
            "sequence_length",
        ),
        (lambda: baselines.stackoverflow.create_tag_prediction_task(SPEC, tag_vocab_size=0), "tag_vocab_size is a"),
        (lambda: baselines.stackoverflow.create_word_prediction_task(SPEC, vocab_size=0), "vocab_size is a whole"),
        (lambda: baselines.BaselineTaskDatasets([1], DATA), "train_data is client data, not"),
        (lambda: baselines.BaselineTaskDatasets(DATA, [1]), "test_data is client data or a data set, not"),
        (lambda: baselines.BaselineTaskDatasets(DATA, DATA, eval_preprocess_fn=1), "eval_preprocess_fn is a function"),
        (
            lambda: baselines.BaselineTaskDatasets(DATA, DATA, tf.data.Dataset.range(3)),
            "validation_data differ",
        ),
        (lambda: baselines.BaselineTask(DATA, len), "datasets is a BaselineTaskDatasets, not"),
        (lambda: baselines.BaselineTask(baselines.BaselineTaskDatasets(DATA, DATA), 1), "model_fn is a function that"),
    ],
)
def test_what_makes_no_task_is_named(make, message):
    with pytest.raises(FedcoreError, match=message):
        make()


def test_a_summary_is_a_table():
    lines = []
    datasets = baselines.BaselineTaskDatasets(
        DATA, tf.data.Dataset.range(3), tf.data.Dataset.range(2), train_preprocess_fn=lambda d: d.batch(2)
    )
    datasets.summary(lines.append)
    assert lines == [
        "Split      |Dataset Type |Number of Clients |",
        "=" * 45,
        "Train      |Federated    |2                 |",
        "Test       |Centralized  |N/A               |",
        "Validation |Centralized  |N/A               |",
        "_" * 45,
        "Train Preprocess Function: True",
        "Eval Preprocess Function: False",
    ]


@pytest.mark.parametrize("name", ["cifar100", "emnist", "models.mnist", "shakespeare", "stackoverflow"])
def test_the_examples_of_the_tasks_run(name):
    module = importlib.import_module(f"fedcore.learning.baselines.{name}")
    assert doctest.testmod(module, extraglobs={"fc": fc}).failed == 0


def test_the_examples_of_the_parts_run():
    names = {"fc": fc, "data": DATA, "spec": SPEC, "optimizer": fc.learning.optimizers.build_sgdm(0.1)}
    for finder in (tasks.ClientSpec, tasks.BaselineTaskDatasets):
        for test in doctest.DocTestFinder().find(finder, globs={**vars(tasks), **names}):
            assert doctest.DocTestRunner().run(test).failed == 0
    assert doctest.testmod(token_metrics).failed == 0


def test_the_digit_models_take_the_examples_of_emnist():
    mnist = fc.simulation.models.mnist
    data = fc.simulation.datasets.emnist.get_synthetic()
    examples = mnist.keras_dataset_from_emnist(data.create_tf_dataset_for_client(data.client_ids[0])).batch(4)
    batch = next(iter(examples))
    simple = mnist.create_simple_keras_model()
    np.testing.assert_allclose(simple(batch["x"]), np.full((4, 10), 0.1), atol=1e-6)
    assert simple.evaluate(batch["x"], batch["y"], verbose=0, return_dict=True)["num_examples"] == 4
    network, again = mnist.create_keras_model(), mnist.create_keras_model(compile_model=True)
    np.testing.assert_array_equal(network(batch["x"]), again(batch["x"]))
    assert (network.compiled, again.compiled) == (False, True)
    assert np.std(network.layers[1].kernel) != np.std(network.layers[3].kernel)
    with pytest.raises(FedcoreError, match="learning_rate is a finite number, 0 or more, not -1"):
        mnist.create_simple_keras_model(-1)
