"""Names and arguments that programs of TFF use, and what they do here."""

from collections import OrderedDict

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import InvalidValue, TracingError, TypeMismatch

datasets = fc.simulation.datasets


@fc.tf_computation
def add(x, y):
    return x + y


def test_the_computation_for_the_types_of_several_arguments():
    made = add.fn_for_argument_type(fc.StructType([np.int32, np.int32]))
    assert (str(made.type_signature), made(1, 2)) == ("(<x=int32,y=int32> -> int32)", 3)


def test_the_computation_for_the_type_of_one_argument():
    made = fc.tf_computation(lambda x: x["a"]).fn_for_argument_type(OrderedDict(a=np.float32))
    assert str(made.type_signature.result) == "float32"


def test_a_type_for_the_wrong_number_of_arguments_is_refused():
    with pytest.raises(TracingError, match=r"add takes 2 parameters, but is given int32"):
        add.fn_for_argument_type(np.int32)


@pytest.mark.parametrize("decorate", [fc.tf_computation, fc.federated_computation])
def test_none_stands_for_no_parameters(decorate):
    with_type = decorate(lambda: fc.federated_value(1, fc.SERVER) if decorate is fc.federated_computation else 1, None)
    assert with_type.type_signature.parameter is None
    assert decorate(None)(lambda: 1)() == 1


def test_a_state_that_is_made_by_hand_starts_at_round_0():
    state = fc.learning.templates.LearningAlgorithmState((), (), (), (), ())
    assert (state.round, state.seed) == (0, 0)
    assert state.round.dtype == state.seed.dtype == np.int64


@pytest.mark.parametrize(("type_", "value"), [(np.bool_, True), (np.str_, b"x"), (np.complex64, 1j)])
def test_values_of_any_dtype_are_sampled(type_, value):
    process = fc.aggregators.UnweightedReservoirSamplingFactory(2).create(fc.to_type(type_))
    assert process.next(process.initialize(), [value] * 3).result.tolist() == [value] * 2


def test_placements_have_uris():
    assert (fc.CLIENTS.uri, fc.SERVER.uri) == ("clients", "server")


@pytest.mark.parametrize(
    ("value", "type_"),
    [(1, "int32"), ([1, 2.0], "list<int32,float32>"), (np.zeros([2]), "float64[2]"), (add, None), (None, None)],
)
def test_types_are_inferred(value, type_):
    if value is add:
        value, type_ = add.fn_for_argument_type([np.int32, np.int32]), "(<x=int32,y=int32> -> int32)"
    found = fc.framework.infer_type(value)
    assert (found if type_ is None else str(found)) == type_


@pytest.mark.parametrize("name", ["TypeNotAssignableError", "TypesNotEquivalentError", "UnexpectedTypeError"])
def test_errors_of_types_are_the_one_error(name):
    with pytest.raises(getattr(fc.framework, name)):
        fc.tf_computation(lambda x: x, np.int32)("text")


def test_a_runtime_is_installed_through_the_context_stack():
    stack, runtime = fc.framework.get_context_stack(), fc.runtime.reference()
    with stack.install(runtime):
        assert stack.current is runtime
    assert stack.current is not runtime
    stack.set_default_context(runtime)
    try:
        assert stack.current is runtime
    finally:
        fc.set_runtime(None)


def test_computations_are_instances_of_tffs_classes():
    assert isinstance(add, fc.framework.PolymorphicComputation)
    assert isinstance(add.fn_for_argument_type([np.int32] * 2), fc.framework.Computation)


def test_strings_are_cut_into_chunks():
    encoder = fc.analytics.heavy_hitters.iblt.IbltEncoder(capacity=10, string_max_bytes=4, repetitions=3, seed=0)
    chunks, strings = encoder.compute_chunks(["abcdef", "b"])
    assert strings.numpy().tolist() == [b"abcd", b"b"]
    assert chunks.shape[0] == 2


@pytest.mark.parametrize(("relative_step", "change"), [(True, 0.5), (False, 2.0)])
def test_adafactor_limits_its_steps_on_request(relative_step, change):
    optimizer = fc.learning.optimizers.build_adafactor(2.0, relative_step=relative_step)
    weights, gradients = tf.ones([2]), tf.ones([2])
    state, _ = optimizer.next(optimizer.initialize(tf.TensorSpec([2])), weights, gradients)
    for _ in range(2):  # to step 4, at which the limit is 1/2
        state, _ = optimizer.next(state, weights, gradients)
    _, moved = optimizer.next(state, weights, gradients)
    assert (weights - moved).numpy().tolist() == pytest.approx([change] * 2, rel=1e-5)


def test_adafactor_of_keras_limits_its_steps_whatever_its_relative_step_is():
    given = keras.optimizers.Adafactor(2.0, relative_step=False)
    optimizer = fc.learning.optimizers.as_optimizer(given)
    weights = tf.ones([2])
    state = optimizer.initialize(tf.TensorSpec([2]))
    variables = [keras.Variable(weights)]
    given.build(variables)
    for _ in range(4):
        state, weights = optimizer.next(state, weights, tf.ones([2]))
        given.apply([tf.ones([2])])
    np.testing.assert_allclose(weights, variables[0].numpy(), rtol=1e-5)


def write_photographs(path, number):
    image = tf.io.encode_jpeg(tf.zeros([4, 5, 3], tf.uint8)).numpy()
    with tf.io.TFRecordWriter(str(path)) as file:
        for label in range(number):
            features = {
                "image/encoded_jpeg": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
                "class": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            }
            file.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


@pytest.mark.parametrize(
    ("folder", "load"),
    [
        ("gld23k", lambda path: datasets.gldv2.load_data(cache_dir=path, gld23k=True)),
        ("gld160k", lambda path: datasets.gldv2.load_data(cache_dir=path)),
        (
            "GEO_1K",
            lambda path: datasets.inaturalist.load_data(
                cache_dir=path, split=datasets.inaturalist.INaturalistSplit.GEO_1K
            ),
        ),
    ],
)
def test_photographs_that_tff_wrote_are_read(folder, load, tmp_path):
    (tmp_path / folder / "train").mkdir(parents=True)
    write_photographs(tmp_path / folder / "train" / "7", 2)
    write_photographs(tmp_path / folder / "test.tfRecord", 1)
    train, test = load(tmp_path)
    first, second = train.create_tf_dataset_for_client("7").as_numpy_iterator()
    assert (first["image/decoded"].shape, second["class"].tolist()) == ((4, 5, 3), [1])
    assert len(list(test)) == 1


def test_photographs_that_are_not_there_are_not_downloaded(tmp_path):
    with pytest.raises(InvalidValue, match=r"gldv2\.load_data: there is no .*gld160k.train; nothing is downloaded"):
        datasets.gldv2.load_data(cache_dir=tmp_path)


def test_a_split_of_inaturalist_is_one_of_the_enumeration():
    with pytest.raises(TypeMismatch, match=r"split is an INaturalistSplit, such as .*, not 'GEO_1K'"):
        datasets.inaturalist.load_data(split="GEO_1K")


@pytest.mark.parametrize(("data", "shape"), [("gldv2", (600, 800, 3)), ("inaturalist", (128, 128, 3))])
def test_synthetic_photographs_are_like_those_that_are_loaded(data, shape):
    examples = list(getattr(datasets, data).get_synthetic().create_tf_dataset_for_client("synthetic"))
    assert [example["image/decoded"].shape for example in examples] == [shape] * 3
