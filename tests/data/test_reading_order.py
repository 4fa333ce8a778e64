"""Seeded shuffles, caches and repetitions read rows in the order of `tf.data`."""

import numpy as np
import pytest
import tensorflow as tf
import warm_processes
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fedcore as fc
from fedcore.data.client_dataset import ClientDataset
from fedcore.errors import FedcoreError

ROWS = fc.SequenceType("int64")
LOCAL = fc.runtime.local(workers_per_device=2)
RUNTIMES = {"local": LOCAL, "reference": fc.runtime.reference()}


@fc.tf_computation(ROWS)
def rows(xs):
    return xs.reduce(tf.zeros([0], tf.int64), lambda found, x: tf.concat([found, [x]], 0))


@fc.federated_computation(fc.FederatedType(ROWS, fc.CLIENTS))
def of_each(data):
    return fc.federated_map(rows, data)


@fc.federated_computation(fc.FederatedType(ROWS, fc.CLIENTS), fc.FederatedType(ROWS, fc.CLIENTS))
def of_both(left, right):
    return fc.federated_map(rows, left), fc.federated_map(rows, right)


@pytest.fixture(params=RUNTIMES)
def runtime(request):
    with fc.use(RUNTIMES[request.param]) as used:
        yield used


def client(count: int = 20) -> ClientDataset:
    return ClientDataset.from_columns(np.arange(count))


def foreign(count: int = 20) -> tf.data.Dataset:
    return tf.data.Dataset.range(count)


SOURCES = {"columns": client, "tf.data": foreign}


def eagerly(pipeline, count: int = 20) -> list:
    """What the first `for` over a new dataset of tf.data reads."""
    return [x.tolist() for x in pipeline(foreign(count)).as_numpy_iterator()]


def drawn(dataset: ClientDataset, seed: int = 0) -> list:
    return [x.tolist() for x in dataset.columns.elements(seed)]


# A pipeline is a list of names and arguments of steps.

BATCH = st.tuples(st.just("batch"), st.integers(1, 3), st.booleans())
SHUFFLE = st.tuples(
    st.just("shuffle"), st.sampled_from([1, 2, 3, 5, 20]), st.sampled_from([0, 1, 2**40, -5]), st.booleans()
)
OTHER = st.one_of(
    st.tuples(st.just("repeat"), st.integers(1, 3)),
    st.tuples(st.just("take"), st.integers(-1, 5)),
    st.tuples(st.just("skip"), st.integers(-1, 3)),
    st.sampled_from([("cache",), ("map",), ("prefetch", 2), ("filter",)]),
    BATCH,
)
PIPELINES = st.lists(st.one_of(SHUFFLE, SHUFFLE, OTHER, OTHER), min_size=1, max_size=7)


def built(dataset, steps):
    batched = False
    for name, *arguments in steps:
        if name == "map":
            dataset = dataset.map(lambda x: x + 1)
        elif name == "filter" and not batched:
            dataset = dataset.filter(lambda x: x % 3 != 1)
        elif name == "batch" and not batched:
            batched, dataset = True, dataset.batch(arguments[0], drop_remainder=arguments[1])
        elif name not in ("filter", "batch"):
            dataset = getattr(dataset, name)(*arguments)
    return dataset


@given(PIPELINES, st.integers(0, 7))
@settings(max_examples=30)
@example([("shuffle", 4, 3, True), ("map",), ("repeat", 2), ("map",), ("repeat", 2)], 4)
@example([("shuffle", 4, 3, True), ("repeat", 2), ("map",), ("repeat", 2)], 4)
@example([("shuffle", 2, 3, True), ("cache",), ("take", 4), ("repeat", 3)], 4)
@example([("shuffle", 2, 3, True), ("filter",), ("cache",), ("take", 2), ("repeat", 3)], 4)
@example([("shuffle", 5, -5, True), ("shuffle", 5, -5, False), ("repeat", 3), ("take", 9), ("repeat", 2)], 4)
@example([("shuffle", 3, 0, True), ("batch", 2, False), ("shuffle", 2, 1, True), ("repeat", 2)], 7)
def test_seeded_pipelines_read_in_the_order_of_tf_data(steps, count):
    made = built(client(count), steps)
    assert isinstance(made, ClientDataset)
    assert drawn(made) == eagerly(lambda d: built(d, steps), count)


def test_endless_repetitions_read_in_the_order_of_tf_data():
    def pipeline(d):
        return d.shuffle(5, seed=2).repeat().take(11).repeat(2).shuffle(4, seed=3).batch(3)

    assert drawn(pipeline(client(4))) == eagerly(pipeline, 4)


SEEDED = {
    "a buffer": lambda d: d.shuffle(6, seed=3),
    "all": lambda d: d.shuffle(50, seed=3),
    "seed 0": lambda d: d.shuffle(20, seed=0),
    "one order": lambda d: d.shuffle(20, seed=3, reshuffle_each_iteration=False).repeat(2),
    "an order an epoch": lambda d: d.shuffle(20, seed=3).repeat(2),
    "a cache": lambda d: d.shuffle(20, seed=3).cache().repeat(2),
    "a part": lambda d: d.shuffle(20, seed=3).take(5).repeat(3),
    "windows": lambda d: d.shuffle(20, seed=3).window(3).flat_map(lambda w: w.batch(3)).unbatch(),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", SEEDED)
def test_a_seeded_pipeline_is_the_same_for_each_call_client_and_argument(name, source, runtime):
    want = eagerly(SEEDED[name])
    dataset = SEEDED[name](SOURCES[source]())
    list(dataset)  # reading it in Python changes nothing
    for seed in (1, 2):
        for found in of_both.invoke([dataset, dataset], [dataset, SEEDED[name](SOURCES[source]())], seed=seed):
            assert [x.tolist() for x in found] == [want, want]


IN_ANOTHER_PROCESS = """
import numpy as np, tensorflow as tf, fedcore as fc
client = fc.data.ClientDataset.from_columns(np.arange(20))
print([int(x) for x in client.shuffle(6, seed=3).repeat(2).columns.elements(7)])
tf.random.set_seed(5)
print([int(x) for x in client.shuffle(6, seed=3).columns.elements(7)])
print([int(x) for x in client.shuffle(6, seed=3)])
print([int(x) for x in tf.data.Dataset.range(20).shuffle(6, seed=3)])
alone = client.shuffle(20)
print([int(x) for x in alone.columns.elements(1)] != [int(x) for x in alone.columns.elements(2)])
"""


def test_a_seeded_pipeline_is_the_same_in_another_process_and_follows_its_global_seed():
    plain, *global_seeds, alone_varies = warm_processes.python({"code": IN_ANOTHER_PROCESS}).splitlines()[-5:]
    assert plain == str(eagerly(lambda d: d.shuffle(6, seed=3).repeat(2)))
    assert len(set(global_seeds)) == 1
    assert global_seeds[0] != str(eagerly(lambda d: d.shuffle(6, seed=3)))
    assert alone_varies == "True"


SPLITS = {
    "seeded": lambda d: d.shuffle(20, seed=1, reshuffle_each_iteration=False),
    "seeded, new in each epoch": lambda d: d.shuffle(20, seed=1),
    "seeded and cached": lambda d: d.shuffle(20, seed=1).cache(),
    "without a seed": lambda d: d.shuffle(20, reshuffle_each_iteration=False),
    "without a seed, cached": lambda d: d.shuffle(20).cache(),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", SPLITS)
def test_the_parts_of_a_split_share_no_element(name, source, runtime):
    whole = SPLITS[name](SOURCES[source]())
    held_out, rest = whole.take(5), whole.skip(5).shuffle(20)
    of_one_client = of_both.invoke([held_out], [rest], seed=1)
    of_two_clients = of_each.invoke([rest, held_out], seed=2)
    for found in ([of_one_client[0][0], of_one_client[1][0]], of_two_clients):
        assert sorted(np.concatenate(found).tolist()) == list(range(20))
    assert sorted([*of_one_client[0][0], *of_two_clients[0]]) == list(range(20))  # in two calls


def test_a_split_of_lazily_created_clients_shares_no_element(runtime):
    pair = fc.FederatedType({"held_out": ROWS, "rest": ROWS}, fc.CLIENTS)

    @fc.federated_computation(pair)
    def both(data):
        return fc.federated_map(lambda p: (rows(p.held_out), rows(p.rest)), data)

    def made(index):
        whole = client().shuffle(20, reshuffle_each_iteration=False)
        return {"held_out": whole.take(5), "rest": whole.skip(5)}

    for held_out, rest in both(fc.Cohort(2, made)):
        assert sorted([*held_out, *rest]) == list(range(20))


ONE_ORDER = {
    "fixed": lambda d: d.shuffle(20, reshuffle_each_iteration=False),
    "cached": lambda d: d.shuffle(20).cache(),
    "cached later": lambda d: d.shuffle(5).map(lambda x: x).cache().repeat(2),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", ONE_ORDER)
def test_an_order_that_the_pipeline_fixes_is_one_in_all_calls(name, source, runtime):
    first, other = (of_each.invoke([ONE_ORDER[name](SOURCES[source]())], seed=s)[0].tolist() for s in (1, 2))
    assert first == other != sorted(first)


def test_a_fixed_order_depends_on_the_data():
    of_data = [fc.data.ClientDataset.from_columns(np.arange(20) + first) for first in (0, 1)]
    first, second = of_each([ONE_ORDER["fixed"](d) for d in of_data])
    assert first.tolist() != (second - 1).tolist()


@pytest.mark.parametrize("source", SOURCES)
def test_the_seed_of_a_call_decides_shuffles_without_one(source, runtime):
    first, again, other = (of_each.invoke([SOURCES[source]().shuffle(20)], seed=s)[0].tolist() for s in (1, 1, 2))
    assert first == again != other
    one = [SOURCES[source]().shuffle(20)]
    assert [of_each.invoke(one, seed=s)[0].tolist() for s in (2, 1, 2)] == [other, first, other]


@pytest.mark.parametrize("source", SOURCES)
def test_epochs_without_a_seed_follow_reshuffle_each_iteration(source, runtime):
    def epochs(dataset):
        return np.reshape(of_each.invoke([dataset.repeat(2)], seed=1)[0], [2, 20]).tolist()

    whole = SOURCES[source]()
    first, second = epochs(whole.shuffle(20))
    assert first != second
    for fixed in (whole.shuffle(20, reshuffle_each_iteration=False), whole.shuffle(20).cache()):
        first, second = epochs(fixed)
        assert first == second


def test_iterating_in_python_is_as_in_tf_data():
    dataset, real = client().shuffle(6, seed=3), foreign().shuffle(6, seed=3)
    for _ in range(2):  # the second time in another order
        assert [int(x) for x in dataset] == [int(x) for x in real]
    whole = client().shuffle(20, reshuffle_each_iteration=False)
    assert sorted(int(x) for part in (whole.take(5), whole.skip(5)) for x in part) == list(range(20))


def test_rounds_of_learning_read_seeded_shuffles_in_the_order_of_tf_data():
    @fc.tf_computation(ROWS)
    def in_order(xs):
        return xs.reduce(tf.constant(0, tf.int64), lambda total, x: total * 10 + x)

    initialize = fc.tf_computation(lambda: tf.constant(0, tf.int64))
    server = initialize.type_signature.result

    @fc.federated_computation(fc.FederatedType(server, fc.SERVER), fc.FederatedType(ROWS, fc.CLIENTS))
    def next_fn(state, data):
        return fc.federated_sum(fc.federated_map(in_order, data))

    process = fc.templates.IterativeProcess(
        fc.federated_computation(lambda: fc.federated_eval(initialize, fc.SERVER)), next_fn
    )
    want = int("".join(map(str, eagerly(lambda d: d.shuffle(3, seed=3), 6))))
    state = process.initialize()
    for _ in range(2):
        state = process.next(state, [client(6).shuffle(3, seed=3)] * 3)
        assert state == 3 * want


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"buffer_size": 0}, "the buffer of a shuffle holds at least one element, not 0"),
        ({"buffer_size": 2.5}, "the size of a shuffle's buffer is an integer, not 2.5"),
        ({"buffer_size": 3, "seed": "a"}, "the seed of a shuffle is an integer, not 'a'"),
    ],
)
def test_what_is_no_size_or_seed_is_refused(arguments, text):
    with pytest.raises(FedcoreError, match=text):
        client().shuffle(**arguments)


def test_seeds_may_be_numpy_and_tensors():
    for seed in (np.int64(3), tf.constant(3)):
        assert drawn(client().shuffle(tf.constant(6), seed=seed)) == eagerly(lambda d: d.shuffle(6, seed=3))
