"""Computations that return sequences: to the caller, and from one stage to another."""

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import FedcoreError, TracingError, TypeMismatch

FLOATS = fc.SequenceType("float32")
RUNTIMES = {"local": fc.runtime.local(workers_per_device=2), "reference": fc.runtime.reference()}


@pytest.fixture(params=list(RUNTIMES))
def runtime(request):
    with fc.use(RUNTIMES[request.param]) as used:
        yield used


def listed(dataset) -> list:
    """The elements as nested lists, which compare."""
    assert isinstance(dataset, tf.data.Dataset)
    return [tf.nest.map_structure(lambda leaf: np.asarray(leaf).tolist(), x) for x in dataset.as_numpy_iterator()]


@fc.tf_computation
def make_data():
    return tf.data.Dataset.range(10)


@fc.tf_computation(FLOATS)
def preprocess(xs):
    return xs.map(lambda x: x * 2.0).batch(2)


@fc.tf_computation(fc.SequenceType(fc.TensorType("float32", [None])))
def total(batches):
    return batches.reduce(0.0, lambda t, b: t * 10.0 + tf.reduce_sum(b))


def test_a_dataset_made_inside_comes_back_as_a_dataset(runtime):
    assert str(make_data.type_signature) == "(-> int64*)"
    assert listed(make_data()) == list(range(10))
    assert make_data().element_spec == tf.TensorSpec([], tf.int64)


def test_a_preprocessed_sequence_comes_back_in_its_batches(runtime):
    assert str(preprocess.type_signature.result) == "float32[?]*"
    assert listed(preprocess([1.0, 2.0, 3.0])) == [[2.0, 4.0], [6.0]]
    assert listed(preprocess([])) == []


def test_a_result_is_a_dataset_that_goes_back_in(runtime):
    assert total(preprocess([1.0, 2.0, 3.0]).repeat(2)) == 6666.0


MADE = {
    "structs whose names are in no order": lambda ds: ds.map(lambda i: {"z": i, "a": tf.strings.as_string(i)}),
    "batches of structs": lambda ds: ds.map(lambda i: {"z": i, "a": tf.strings.as_string(i)}).batch(2),
    "tuples": lambda ds: ds.map(lambda i: (i, tf.fill([2], i))),
    "padded batches": lambda ds: ds.map(lambda i: tf.range(i)).padded_batch(2, [7]),
    "nothing": lambda ds: ds.take(0),
    "no batches": lambda ds: ds.take(0).batch(3),
}


@pytest.mark.parametrize("name", MADE)
def test_what_comes_back_is_what_tf_data_gives(name, runtime):
    made = fc.tf_computation(lambda: MADE[name](tf.data.Dataset.range(5)))
    assert listed(made()) == listed(MADE[name](tf.data.Dataset.range(5)))


def test_sequences_stand_beside_tensors_in_the_users_containers(runtime):
    @fc.tf_computation(FLOATS, "float32")
    def parts(xs, y):
        return {"rest": xs.skip(1), "pair": [xs.take(1), y]}

    result = parts([1.0, 2.0, 3.0], 4.0)
    assert list(result) == ["rest", "pair"]
    assert listed(result["rest"]) == [2.0, 3.0]
    assert listed(result["pair"][0]) == [1.0]
    assert result["pair"][1] == 4.0


def test_a_sequence_passes_from_one_computation_to_another_inside_a_body(runtime):
    assert fc.tf_computation(FLOATS)(lambda xs: total(preprocess(xs)))([1.0, 2.0, 3.0]) == 66.0


@fc.federated_computation(fc.FederatedType(FLOATS, fc.CLIENTS), fc.FederatedType("float32", fc.SERVER))
def in_two_stages(data, start):
    """The clients' batches are made before a sum is known, and used after it was sent."""
    batches = fc.federated_map(preprocess, data)
    weight = fc.federated_sum(fc.federated_map(total, batches))
    sent = fc.federated_broadcast(fc.federated_map(lambda w, s: w * 0.0 + s, (weight, start)))
    return fc.federated_map(lambda b, s: total(b) + s, (batches, sent)), batches


def test_a_client_sequence_passes_from_stage_to_stage(runtime):
    totals, batches = in_two_stages([[1.0, 2.0, 3.0], [], [5.0]], 100.0)
    assert [float(t) for t in totals] == [166.0, 100.0, 110.0]
    assert [listed(b) for b in batches] == [[[2.0, 4.0], [6.0]], [], [[10.0]]]
    assert in_two_stages([], 1.0) == ([], [])


def test_a_server_sequence_passes_from_stage_to_stage(runtime):
    @fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
    def collected(xs):
        made = fc.federated_eval(make_data, fc.SERVER)
        count = fc.sequence_reduce(made, 0, lambda n, _: n + 1)
        mine = fc.federated_map(lambda x, n: x + fc.cast(n, "float32"), (xs, fc.federated_broadcast(count)))
        return fc.federated_collect(mine, 2), made

    first, second = collected([1.0, 2.0, 3.0])
    assert listed(first) == [11.0, 12.0]
    assert listed(second) == list(range(10))


def test_a_returned_parameter_has_one_order_on_both_runtimes():
    @fc.federated_computation(fc.FederatedType(FLOATS, fc.CLIENTS), fc.FederatedType(FLOATS, fc.SERVER))
    def same(data, own):
        return data, own, fc.federated_map(preprocess, data)

    dataset = fc.data.ClientDataset.from_columns(np.arange(6, dtype=np.float32)).shuffle(6)
    results = []
    for runtime in RUNTIMES.values():
        with fc.use(runtime, seed=2):
            data, own, batches = same([dataset, dataset], dataset)
            results.append(([listed(d) for d in data], listed(own), [listed(b) for b in batches]))
    assert results[0] == results[1]
    data, _, batches = results[0]
    assert [[2 * x for x in d] for d in data] == [[x for b in of_client for x in b] for of_client in batches]


def test_one_result_is_saved_and_loaded(tmp_path):
    fc.save(preprocess, tmp_path / "preprocess.fed")
    assert listed(fc.load(tmp_path / "preprocess.fed")([1.0, 2.0, 3.0])) == [[2.0, 4.0], [6.0]]


REFUSED = {
    "ragged inside": (
        lambda: tf.data.Dataset.range(3).map(lambda i: tf.range(i)).batch(1).map(lambda x: x),
        r"elements of int64\[\?,\?\] may differ in more than their first dimension; pad them",
    ),
    "a part is ragged": (
        lambda: tf.data.Dataset.range(3).map(lambda i: (i, tf.range(i))),
        r"in <int64,int64\[\?\]> only some of the leaves have a first dimension that is unknown; pad those",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_elements_that_lie_in_no_columns_are_refused(name):
    fn, says = REFUSED[name]
    with pytest.raises(TracingError, match=f"test_sequence_results.py:.* which goes out in columns: {says}"):
        fc.tf_computation(fn)


def test_elements_without_tensors_are_refused():
    with pytest.raises(TracingError, match="an element of type <> holds no tensors, or more than tensors"):
        fc.tf_computation(FLOATS)(lambda xs: xs.map(lambda x: ()))


def test_a_group_whose_leaves_have_unequal_rows_is_an_error():
    @fc.tf_computation
    def uneven():
        return tf.data.Dataset.range(1, 3).map(lambda i: i).batch(2).map(lambda b: (b, b[:1]))

    with pytest.raises(Exception, match="unequal first dimensions"), fc.use(RUNTIMES["local"]):
        uneven()


def test_a_sequence_in_an_accumulator_is_refused():
    @fc.federated_computation(fc.FederatedType(FLOATS, fc.CLIENTS))
    def gathered(data):
        zero = {"n": 0, "s": fc.sequence_from_rows(np.zeros([0], np.float32))}
        return fc.federated_aggregate(data, zero, lambda a, x: {"n": 1, "s": x}, lambda a, b: a, lambda a: a["n"])

    with pytest.raises(FedcoreError, match=r"an accumulator of type .*float32\*.*; it holds tensors, no sequences"):
        gathered([[1.0]])


def test_an_argument_that_is_one_sequence_for_all_clients_is_refused_with_advice():
    @fc.federated_computation(
        fc.FederatedType(FLOATS, fc.CLIENTS, all_equal=True), fc.FederatedType("float32", fc.CLIENTS)
    )
    def sent(data, xs):
        return fc.federated_map(lambda d, x: fc.sequence_sum(d) + x, (data, xs))

    with pytest.raises(FedcoreError, match=r"the same for all clients, which a sequence cannot be: send its rows"):
        sent([1.0], [2.0])


def test_a_map_of_a_dataset_that_makes_datasets_is_refused():
    dataset = fc.data.ClientDataset.from_columns(np.arange(3, dtype=np.int64))
    with pytest.raises(TracingError, match=r"`many` .* returns int64\*; a function of a map returns tensors"):
        dataset.map(many)


def many(x):
    return tf.data.Dataset.range(x)


@pytest.mark.parametrize("splits", [np.zeros([2], np.int32), np.zeros([2, 2], np.int64), np.int64(1)])
def test_splits_are_an_int64_vector(splits):
    rows = np.zeros([4], np.float32)
    with pytest.raises(TypeMismatch, match="sequence_from_groups: `splits` is an int64 vector, not"):
        fc.federated_computation(lambda: fc.sequence_from_groups(rows, splits))
