"""The steps of a `ClientDataset` against the real `tf.data` pipeline of the same steps."""

import re

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import fedcore as fc
from fedcore.data import columns_of
from fedcore.errors import FedcoreError, TypeMismatch
from fedcore.graphs.sequences.columns import Columns
from fedcore.graphs.sequences.steps import INFINITE, Step
from fedcore.graphs.stages.realize import pack
from fedcore.graphs.tensors.values import flatten

ROWS = 7
COLUMNS = {"x": np.arange(ROWS * 2, dtype=np.float32).reshape(ROWS, 2), "y": np.arange(ROWS, dtype=np.int32)}


def client(rows: int = ROWS) -> fc.data.ClientDataset:
    return fc.data.ClientDataset.from_columns({k: v[:rows] for k, v in COLUMNS.items()})


def real(rows: int = ROWS) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices({k: v[:rows] for k, v in COLUMNS.items()})


def scaled(element):
    return {"x": element["x"] * 2.0, "y": element["y"] + 1}


def odd(element):
    return element["y"] % 2 == 1


def drawn(dataset: fc.data.ClientDataset, seed: int = 0) -> list[dict]:
    """The elements as a graph draws them from columns and steps."""
    (layout,), tensors = pack(dataset.columns, seed)

    @tf.function(autograph=False, input_signature=layout.specs())
    def count(*tensors):
        return layout.open(list(tensors)).count

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([], tf.int64), *layout.specs()])
    def element(index, *tensors):
        return flatten(layout.open(list(tensors)).element(index))

    names = dataset.element_type.names
    given_tensors = [tf.convert_to_tensor(t) for t in tensors]
    return [
        dict(zip(names, [t.numpy() for t in element(tf.constant(i, tf.int64), *given_tensors)], strict=True))
        for i in range(int(count(*given_tensors)))
    ]


def assert_same(have: list[dict], want: list[dict]):
    assert len(have) == len(want)
    for h, w in zip(have, want, strict=True):
        assert list(h) == list(w)
        for name in w:
            assert h[name].dtype == w[name].dtype
            np.testing.assert_array_equal(h[name], w[name])


PIPELINES = {
    "nothing": lambda d: d,
    "repeat": lambda d: d.repeat(3),
    "batch": lambda d: d.batch(3),
    "batch that divides": lambda d: d.batch(7),
    "batch larger than all": lambda d: d.batch(20),
    "batch and drop the remainder": lambda d: d.batch(3, drop_remainder=True),
    "batch larger than all and drop the remainder": lambda d: d.batch(20, drop_remainder=True),
    "take": lambda d: d.take(4),
    "take more than there are": lambda d: d.take(40),
    "take nothing": lambda d: d.take(0),
    "take all": lambda d: d.take(-1),
    "skip": lambda d: d.skip(3),
    "skip more than there are": lambda d: d.skip(30),
    "skip all": lambda d: d.skip(-1),
    "map": lambda d: d.map(scaled),
    "map twice": lambda d: d.map(scaled).map(scaled),
    "map before batch": lambda d: d.map(scaled).batch(3),
    "map after batch": lambda d: d.batch(3).map(scaled),
    "map twice before batch": lambda d: d.map(scaled).map(scaled).batch(4, drop_remainder=True),
    "maps before and after batch": lambda d: d.map(scaled).batch(3).map(scaled).map(scaled),
    "filter": lambda d: d.filter(odd),
    "filter nothing away": lambda d: d.filter(lambda e: e["y"] >= 0),
    "filter all away": lambda d: d.filter(lambda e: e["y"] < 0).batch(2),
    "filter after map": lambda d: d.map(scaled).filter(odd).batch(2),
    "filter after repeat": lambda d: d.repeat(2).filter(odd).batch(3),
    "filter twice": lambda d: d.filter(odd).map(scaled).filter(lambda e: e["x"][0] > 8.0),
    "filter, repeat without end, take": lambda d: d.filter(odd).repeat().take(8),
    "repeat before batch": lambda d: d.repeat(2).batch(4),
    "batch before repeat": lambda d: d.batch(4).repeat(2),
    "batch before take": lambda d: d.batch(2).take(2),
    "take before repeat": lambda d: d.take(2).repeat(3),
    "skip before batch": lambda d: d.skip(2).batch(2),
    "repeat without end, then take": lambda d: d.repeat().take(17),
    "repeat without end, batch, take": lambda d: d.repeat().batch(4).take(3),
    "repeat without end, skip, take": lambda d: d.repeat().skip(3).take(9),
    "repeat without end twice, then take": lambda d: d.repeat().repeat(2).take(9),
    "prefetch and cache": lambda d: d.cache().batch(2).prefetch(1),
    "a tutorial's": lambda d: d.repeat(2).batch(3).map(scaled).prefetch(10),
}
ALL = pytest.mark.parametrize("pipeline", PIPELINES.values(), ids=PIPELINES)


def test_repeats_of_nothing_end():
    assert drawn(client(0).repeat().take(3)) == []


# tf.data's own repeat without end of nothing does not come back, so those are compared on rows only.
SIZES = [(p, n) for p in PIPELINES for n in (7, 1, 0) if n or not p.startswith("repeat without end")]


@pytest.mark.parametrize(
    ("pipeline", "rows"),
    [pytest.param(PIPELINES[p], n, marks=pytest.mark.soak if n == 1 else (), id=f"{p}, {n}") for p, n in SIZES],
)
def test_steps_have_the_elements_of_the_real_dataset(pipeline, rows):
    assert_same(drawn(pipeline(client(rows))), list(pipeline(real(rows)).as_numpy_iterator()))


@ALL
def test_steps_stay_columns(pipeline):
    assert isinstance(pipeline(client()), fc.data.ClientDataset)


@ALL
def test_iterating_in_python_yields_the_elements_of_the_real_dataset(pipeline):
    assert_same(
        [{k: v.numpy() for k, v in e.items()} for e in pipeline(client())], list(pipeline(real()).as_numpy_iterator())
    )


@ALL
def test_the_element_spec_is_the_real_one(pipeline):
    have, want = pipeline(client()).element_spec, pipeline(real()).element_spec
    assert {k: v.dtype for k, v in have.items()} == {k: v.dtype for k, v in want.items()}
    assert all(want[k].is_compatible_with(v) or v.is_compatible_with(want[k]) for k, v in have.items())


STEPS = st.sampled_from(["repeat", "take", "skip", "map"])


@settings(max_examples=12)
@given(st.lists(st.tuples(STEPS, st.integers(0, 5)), max_size=4), st.integers(0, 5), st.booleans())
def test_any_order_of_steps_has_the_elements_of_the_real_dataset(steps, size, drop):
    def built(dataset):
        for name, count in steps:
            dataset = dataset.map(scaled) if name == "map" else getattr(dataset, name)(count)
        return dataset.batch(size, drop_remainder=drop) if size else dataset

    assert_same(drawn(built(client())), list(built(real()).as_numpy_iterator()))


def ys(elements) -> list[int]:
    return [int(y) for e in elements for y in np.ravel(e["y"])]


@pytest.mark.parametrize(
    "pipeline",
    [
        lambda d: d.shuffle(10),
        lambda d: d.shuffle(2),
        lambda d: d.shuffle(10).batch(3),
        lambda d: d.shuffle(10).map(scaled),
    ],
    ids=["all", "small buffer", "then batch", "then map"],
)
def test_a_shuffle_reads_every_element_once(pipeline):
    want = sorted(ys(pipeline(real()).as_numpy_iterator()))
    assert sorted(ys(drawn(pipeline(client())))) == want


def test_a_shuffle_keeps_the_columns_of_an_element_together():
    for element in drawn(client().shuffle(10)):
        np.testing.assert_array_equal(element["x"], COLUMNS["x"][element["y"]])


def test_a_shuffle_depends_on_the_seed_of_the_call():
    orders = {tuple(ys(drawn(client().shuffle(10), seed))) for seed in range(5)}
    assert len(orders) > 1


def test_a_shuffle_of_one_seed_is_one_order():
    assert ys(drawn(client().shuffle(10), 3)) == ys(drawn(client().shuffle(10), 3))


def test_shuffles_of_a_repeated_dataset_cover_all_epochs():
    assert sorted(ys(drawn(client().repeat(3).shuffle(10)))) == sorted(list(range(ROWS)) * 3)


def test_each_repetition_of_a_repeated_endless_repeat_has_an_order_of_its_own():
    order = ys(drawn(client().shuffle(ROWS).repeat().take(2 * ROWS).repeat(4)))
    assert len({tuple(order[i : i + ROWS]) for i in range(0, len(order), ROWS)}) == 8


def test_an_endless_repeat_of_no_batches_ends():
    batches = fc.TensorType(np.float32, [None])
    repeat = Step("repeat", INFINITE)
    assert not Columns(batches, [np.zeros(0, np.float32)], groups=np.zeros(1, np.int64), steps=(repeat,)).is_endless


def test_another_method_makes_the_real_dataset():
    window = client().batch(2).unbatch().filter(lambda e: e["y"] > 3)
    assert [int(e["y"]) for e in window] == [4, 5, 6]


BY_THE_REAL_ONE = {
    "batch of batches": lambda d: d.batch(2, drop_remainder=True).batch(2),
    "filter over batches": lambda d: d.batch(2).filter(lambda b: b["y"][0] > 1),
    "filter without end": lambda d: d.repeat().filter(odd).take(5),
    "enumerate": lambda d: d.enumerate(),
    "window": lambda d: d.padded_batch(3),
}


@pytest.mark.parametrize("pipeline", BY_THE_REAL_ONE.values(), ids=BY_THE_REAL_ONE)
def test_what_columns_cannot_do_the_real_dataset_does(pipeline):
    have, want = pipeline(client()), pipeline(real())
    assert not isinstance(have, fc.data.ClientDataset)
    assert have.element_spec == want.element_spec
    for h, w in zip(have, want, strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, h, w)


def test_a_map_that_draws_is_left_to_the_real_dataset():
    noisy = client().map(lambda e: {"x": e["x"] + tf.random.uniform([2]), "y": e["y"]})
    first, again = (np.stack([e["x"] for e in noisy]) for _ in range(2))
    assert not np.array_equal(first, again)


def test_a_predicate_returns_a_bool():
    with pytest.raises(FedcoreError, match=r"the predicate of a filter returns one bool, not int32"):
        client().filter(lambda e: e["y"])


def test_columns_of_unequal_length_are_refused():
    with pytest.raises(FedcoreError, match="columns have one row per example, all equally many"):
        fc.data.ClientDataset.from_columns({"x": np.zeros(3), "y": np.zeros(4)})


def test_strings_are_columns():
    dataset = fc.data.ClientDataset.from_columns({"s": np.array(["a", "é"])})
    assert [e["s"].numpy() for e in dataset] == [b"a", "é".encode()]


def test_a_map_is_traced_once_for_many_clients():
    traces = []

    def counted(element):
        traces.append(1)
        return element["x"] * 2.0

    datasets = [client(rows).map(counted) for rows in (1, 2, 7, 3)]
    assert len(traces) == 1
    assert len({d.columns.layout for d in datasets}) == 1


def test_maps_of_one_graph_keep_their_own_names():
    pairs = fc.data.ClientDataset.from_columns({"a": np.float32([1]), "b": np.float32([2])})
    results = [
        pairs.map(lambda e: (e["a"], e["b"])),
        pairs.map(lambda e: {"x": e["a"], "y": e["b"]}),
        pairs.map(lambda e: {"y": e["a"], "x": e["b"]}),
    ]
    assert [str(r.element_type) for r in results] == [
        "<float32,float32>",
        "<x=float32,y=float32>",
        "<y=float32,x=float32>",
    ]
    assert [float(r.map(lambda e: e["x"]).reduce(0.0, lambda _, x: x)) for r in results[1:]] == [1.0, 2.0]


@pytest.mark.parametrize(
    "fn",
    [
        lambda e: [e["x"], e["y"]],
        lambda e: ([e["y"], e["y"] + 1], e["x"]),
        lambda e: {"a": [e["x"], e["x"]], "b": (1, 2.5, "c", np.arange(3))},
        lambda e: e["y"],
    ],
)
def test_a_map_makes_the_elements_of_tf_data(fn):
    columns = {"x": np.ones((2, 3), np.float32), "y": np.arange(2, dtype=np.int32)}
    real = tf.data.Dataset.from_tensor_slices(columns).map(fn)
    ours = fc.data.ClientDataset.from_columns(columns).map(fn)
    assert ours.element_spec == real.element_spec
    count = lambda *element: len(element)  # noqa: E731
    assert list(ours.map(count)) == list(real.map(count))

    @fc.tf_computation(fc.SequenceType(fc.to_type(fc.data.ClientDataset.from_columns(columns).element_spec)))
    def inside(dataset):
        mapped = dataset.map(fn)
        assert mapped.element_spec == real.element_spec
        return mapped.map(count).reduce(0, lambda total, n: total + n)

    assert inside(tf.data.Dataset.from_tensor_slices(columns)) == sum(real.map(count).as_numpy_iterator())


ELEMENT = {"x": fc.TensorType("float32", (2,)), "y": "int32"}
CLIENTS_DATA = fc.FederatedType(fc.SequenceType(ELEMENT), fc.CLIENTS)
RAGGED = fc.FederatedType(fc.SequenceType(fc.TensorType("float32", (None,))), fc.CLIENTS)


@fc.tf_computation("int32", ELEMENT)
def added_label(total, element):
    return total + element["y"]


@fc.federated_computation(CLIENTS_DATA)
def labels(data):
    return fc.federated_map(lambda s: fc.sequence_reduce(s, 0, added_label), data)


@fc.tf_computation("float32", fc.TensorType("float32", (None,)))
def added_row(total, row):
    return total * 2.0 + tf.reduce_sum(row)


@fc.federated_computation(RAGGED)
def ragged_sums(data):
    return fc.federated_map(lambda s: fc.sequence_reduce(s, 0.0, added_row), data)


def test_datasets_lists_and_real_datasets_give_the_same():
    rows = list(real().as_numpy_iterator())
    assert labels([client(), rows, real()]) == [21, 21, 21]


def test_clients_of_different_layouts_share_a_block():
    assert labels([client(), client().take(3), client().map(scaled)]) == [21, 3, 28]


def test_an_empty_dataset_reduces_to_zero():
    assert labels([client(0), [], real(0)]) == [0, 0, 0]


@pytest.mark.parametrize("n", [1, 2, 5])
def test_lists_of_ragged_elements_reduce_as_in_python(n):
    data = [[np.arange(size, dtype=np.float32) for size in range(k, 5)] for k in range(n)]

    def expected(rows):
        total = 0.0
        for row in rows:
            total = total * 2 + row.sum()
        return total

    assert ragged_sums(data) == [expected(rows) for rows in data]


def test_tensors_of_an_element_may_differ_in_shape_each_on_its_own():
    row = (fc.TensorType("float32", (None,)), fc.TensorType("str", (None, 2)))

    @fc.tf_computation(fc.SequenceType(row))
    def sizes(rows):
        return rows.reduce(
            tf.zeros([0, 3], tf.int32),
            lambda found, element: tf.concat([found, [[tf.size(element[0]), *tf.unstack(tf.shape(element[1]))]]], 0),
        )

    @fc.tf_computation(fc.SequenceType(row))
    def last(rows):
        return rows.reduce(("", 0.0), lambda before, element: (element[1][-1, 0], tf.reduce_sum(element[0])))

    data = [(np.ones(1, np.float32), [["a", "b"]] * 3), (np.ones(4, np.float32), [["c", "d"]])]
    assert sizes(data).tolist() == [[1, 3, 2], [4, 1, 2]]
    assert last(data) == (b"c", 4.0)


@pytest.mark.parametrize("index", [0, 2])
def test_a_dataset_of_the_wrong_dtype_names_the_client(index):
    data = [client()] * 3
    data[index] = fc.data.ClientDataset.from_columns({"x": COLUMNS["x"], "y": COLUMNS["y"].astype(np.int64)})
    with pytest.raises(TypeMismatch) as raised:
        labels(data)
    text = str(raised.value)
    assert text.startswith(f"data[{index}] does not fit\n")
    assert "<x=float32[2],y=int64>*" in text
    assert "<x=float32[2],y=int32>*" in text


def test_a_list_element_of_the_wrong_dtype_names_the_client():
    with pytest.raises(TypeMismatch, match=re.escape("data[1]")):
        labels([client(), [{"x": np.zeros(2, np.float32), "y": np.int64(1)}]])


@pytest.mark.parametrize(
    "dataset", [client().repeat(), client().repeat().map(scaled), client().repeat().skip(2), real().repeat()]
)
def test_a_sequence_without_end_is_refused_before_it_is_read(dataset):
    with pytest.raises(FedcoreError, match=re.escape("data[0] repeats without end: put .take(n) after .repeat()")):
        labels([dataset])


def test_repeating_without_end_and_taking_is_accepted():
    assert labels([client().repeat().take(9)]) == [22]


def test_what_is_no_sequence_is_refused():
    with pytest.raises(TypeMismatch, match=r"data\[0\] is 3, but a sequence of type .* is wanted: a dataset or a list"):
        labels([3])


def realized_ops(computation, clients) -> set[str]:
    """The kinds of operation in every function that the runtime realized, nested functions too."""
    runtime = fc.runtime.local(workers_per_device=1)
    try:
        with fc.use(runtime):
            computation(clients)
        found = set()
        for function in runtime._clients.devices[0].functions.values():
            graph_def = function.call.graph.as_graph_def()
            found |= {n.op for n in graph_def.node} | {n.op for f in graph_def.library.function for n in f.node_def}
        return found
    finally:
        runtime.close()


def test_no_dataset_op_is_in_a_realized_graph():
    pipeline = client().repeat(2).shuffle(10).map(scaled).prefetch(1)
    ops = realized_ops(labels, [pipeline, client().take(2), client()])
    assert ops & {"While", "StatelessWhile"}
    assert {op for op in ops if "Dataset" in op or "Iterator" in op} == set()


def test_the_data_of_a_client_is_no_constant_of_the_graph():
    layout, tensors = pack(columns_of(client().batch(2), fc.SequenceType(client().batch(2).element_type)), 0)
    (layout,) = layout
    assert layout == client(3).batch(5).columns.layout
    assert len(tensors) == len(layout.specs())


def test_a_batch_of_no_elements_is_refused():
    with pytest.raises(FedcoreError, match="a batch has at least one element, not 0"):
        client().batch(0)


def read_only_view(array):
    view = array[:]
    view.flags.writeable = False
    return view


@pytest.mark.parametrize("given", [lambda a: a, lambda a: {"x": a}, lambda a: (a[::2], a[1::2]), read_only_view])
def test_arrays_that_change_later_do_not_change_a_dataset(given):
    array = np.arange(8, dtype=np.float32)
    dataset = fc.data.ClientDataset.from_columns(given(array))
    before = str(dataset.columns.elements(0))
    array += 100
    assert str(dataset.columns.elements(0)) == before


def test_columns_cannot_be_changed():
    dataset = fc.data.ClientDataset.from_columns(np.arange(4))
    with pytest.raises(ValueError, match="read-only"):
        dataset.columns.arrays[0][0] = 7
    with pytest.raises(ValueError, match="read-only"):
        dataset.stored_rows[0] = 7


def test_arrays_that_nobody_can_change_are_not_copied(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(4))
    for array in (np.load(tmp_path / "x.npy", mmap_mode="r"), np.frombuffer(b"abcd", np.uint8)):
        assert np.shares_memory(fc.data.ClientDataset.from_columns(array).columns.arrays[0], array)


def test_all_programs_see_one_dataset_after_its_array_has_changed():
    array = np.ones((4, 2), np.float32)
    dataset = fc.data.ClientDataset.from_columns({"x": array, "y": np.arange(4, dtype=np.int32)})
    assert labels([dataset] * 2) == [6, 6]
    array[:] = 5
    total = fc.tf_computation(
        lambda ds: ds.reduce(0.0, lambda s, e: s + tf.reduce_sum(e["x"])), fc.SequenceType(ELEMENT)
    )
    assert total(dataset) == 8.0


@pytest.mark.parametrize(
    "build",
    [
        lambda d: d.repeat(10**12).take(7).batch(2),
        lambda d: d.repeat(10**12).skip(3).batch(3).map(lambda x: 2 * x).take(3),
        lambda d: d.batch(2).repeat(10**12).take(4),
    ],
    ids=["examples", "batches", "repeated batches"],
)
def test_repetitions_that_a_take_leaves_out_are_not_read(build):
    @fc.tf_computation(fc.SequenceType(fc.TensorType("int64", [None])))
    def values(batches):
        return batches.reduce(tf.zeros([0], tf.int64), lambda before, batch: tf.concat([before, batch], 0))

    wanted = np.concatenate(list(build(tf.data.Dataset.range(5)).as_numpy_iterator()))
    np.testing.assert_array_equal(values(build(fc.data.ClientDataset.from_columns(np.arange(5)))), wanted)


def test_a_python_loop_over_a_shuffle_behind_a_filter_reads_all_in_tensorflows_order():
    """`tf.data` does not know how many elements a filter leaves, and a buffer of one element kept their order."""
    shuffled = fc.data.ClientDataset.from_columns(np.arange(100)).filter(lambda x: x % 2 == 0).shuffle(seed=3)

    rows = tf.data.Dataset.range(100).filter(lambda x: x % 2 == 0).shuffle(50, seed=3)
    assert [int(x) for x in shuffled] == [int(x) for x in rows]
