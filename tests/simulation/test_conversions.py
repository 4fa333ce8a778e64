"""Client data from arrays, data frames, Hugging Face and PyTorch data sets."""

import doctest

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.data import ClientDataset
from fedcore.errors import FedcoreError
from fedcore.simulation.datasets import (
    conversions,
    from_arrays,
    from_clients,
    from_huggingface,
    from_pandas,
    from_torch,
)

COLUMNS = {"user": ["b", "a", "b"], "x": [1.0, 2.0, 3.0], "text": ["one", "é", ""], "v": [[1, 2], [3, 4], [5, 6]]}


def rows(data, client_id):
    dataset = data.create_tf_dataset_for_client(client_id)
    assert isinstance(dataset, ClientDataset)
    return list(dataset.as_numpy_iterator())


def test_arrays_are_split_by_the_client_of_each_example_in_order():
    data = from_arrays((np.arange(4), ["p", "q", "r", "s"]), np.array([7, 10, 7, 7]))
    assert data.client_ids == ["10", "7"]
    assert rows(data, "7") == [(0, b"p"), (2, b"r"), (3, b"s")]


def test_a_list_of_pairs_has_clients_named_by_position():
    data = from_clients([(np.full(i + 1, i), np.zeros(i + 1, np.float32)) for i in range(11)])
    assert data.client_ids[:2] == ["client_00", "client_01"]
    assert rows(data, "client_10")[10] == (10, 0.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: from_arrays(np.zeros(3), ["a", "b"]), "3 examples and 2 client ids"),
        (lambda: from_arrays(np.zeros(2), ["a", None]), "from_arrays: client_ids has 1 missing values"),
        (lambda: from_arrays(np.zeros(2), np.array(["a", 1], object)), "mixes text with numbers"),
        (lambda: from_arrays(np.array(["2026-01-01"], "M8[D]"), ["a"]), r"dtype datetime64\[D\], which no tensor has"),
        (lambda: from_arrays(np.zeros(2), [(1, 2), (3, 4)]), "client_ids has not one text or number for each example"),
        (lambda: from_arrays(np.zeros(2), [1, (3, 4)]), "client_ids has not one text or number for each example"),
        (lambda: from_arrays(np.zeros(0), []), "client_ids is empty: no examples, so no clients"),
        (lambda: from_arrays(np.zeros(1), [b"\xff"]), r"client_ids has b'\\xff', which is no text in UTF-8"),
        (lambda: from_clients([3]), "a column has a row for each example"),
        (lambda: from_clients([]), "at least one client"),
        (lambda: from_clients({"a": np.zeros(1), "b": np.zeros(1, int)}), "clients 'a' and 'b' differ"),
        (lambda: from_torch(iter([]), []), "map-style data set"),
        (lambda: from_torch([1, 2], ["a"]), "2 examples and 1 client ids"),
        (lambda: from_huggingface([1], "user"), r"one datasets\.Dataset"),
    ],
)
def test_what_does_not_fit_is_named(make, message):
    with pytest.raises(FedcoreError, match=message):
        make()


class Frame(dict):
    """The part of a data frame that is used."""

    columns = property(lambda self: list(self))

    def __getitem__(self, name):
        return type("Column", (), {"to_numpy": lambda _: np.asarray(self.get(name))})()


def test_any_data_frame_with_columns_and_to_numpy_is_taken():
    data = from_pandas(Frame(user=["b", "a"], x=[1.0, 2.0]), "user")
    assert rows(data, "a") == [{"x": 2.0}]


def test_any_list_of_examples_is_taken_as_a_map_style_data_set():
    examples = [{"x": [1.0, 2.0], "y": 1}, {"x": [3.0, 4.0], "y": 2}]
    data = from_torch(examples, ["b", "b"])
    assert data.element_type_structure == {
        "x": (tf.TensorSpec([], tf.float64),) * 2,
        "y": tf.TensorSpec([], tf.int64),
    }


class TestPandas:
    @pytest.fixture
    def pandas(self):
        return pytest.importorskip("pandas")

    def test_numbers_text_and_arrays_are_columns(self, pandas):
        data = from_pandas(pandas.DataFrame(COLUMNS), client_column="user")
        assert data.client_ids == ["a", "b"]
        assert data.element_type_structure == {
            "x": tf.TensorSpec([], tf.float64),
            "text": tf.TensorSpec([], tf.string),
            "v": tf.TensorSpec([2], tf.int64),
        }
        np.testing.assert_array_equal([e["v"] for e in rows(data, "b")], [[1, 2], [5, 6]])
        assert [e["text"] for e in rows(data, "a")] == ["é".encode()]

    def test_lists_of_several_lengths_are_ragged_for_all_clients(self, pandas):
        frame = pandas.DataFrame(
            {"user": list("abbc"), "tokens": [[1, 2], [], [3, 4, 5], []], "words": [["é"], [], ["a"] * 2, []]}
        )
        data = from_pandas(frame, "user")
        want = {"tokens": tf.TensorSpec([None], tf.int64), "words": tf.TensorSpec([None], tf.string)}
        for client_id in "abc":
            assert data.create_tf_dataset_for_client(client_id).element_spec == want
        assert [(e["tokens"].tolist(), e["words"].tolist()) for e in rows(data, "b")] == [
            ([], []),
            ([3, 4, 5], [b"a", b"a"]),
        ]
        assert [e["tokens"].tolist() for e in rows(data, "c")] == [[]]

    def test_columns_are_chosen_and_ordered(self, pandas):
        data = from_pandas(pandas.DataFrame(COLUMNS), client_column="user", columns=["text", "x"])
        assert list(data.element_type_structure) == ["text", "x"]

    @pytest.mark.parametrize(("names", "repeated"), [(["user", "x", "x"], "'x'"), (["user", "user", "x"], "'user'")])
    def test_columns_of_one_name_are_refused(self, pandas, names, repeated):
        with pytest.raises(FedcoreError, match=f"2 columns are named {repeated}; fix: rename them"):
            from_pandas(pandas.DataFrame([[1, 2, 3]], columns=names), "user")

    @pytest.mark.parametrize(
        ("column", "message"),
        [
            (["one", None, "two"], "the column 'z' has missing values; fix: fill or drop them"),
            (
                [[[1]], [[1, 2]], [[3]]],
                r"'z' has values of different shapes, such as \[\(1, 1\), \(1, 2\)\]; fix: pad or resize",
            ),
            ([[1], 2, [3]], "holds int and list, which are no tensors of one dtype"),
            ([[1], [[2], [3, 4]], [5]], "'z' has values of different shapes, such as .*; fix: pad or resize"),
            ([[[1], [2, 3]]] * 3, "'z' has values of different shapes in lists; fix: pad or resize"),
            ([["a"], [1, 2], []], "'z' holds numbers and text, which are no tensors of one dtype"),
            ([["a"], ["b", None], []], "the column 'z' has missing values"),
            ([1, "a", 2.0], "holds float and int and str"),
        ],
    )
    def test_values_that_are_no_tensors_are_named(self, pandas, column, message):
        with pytest.raises(FedcoreError, match=message):
            from_pandas(pandas.DataFrame({"user": ["a"] * 3, "z": column}), "user")

    @pytest.mark.parametrize(
        ("values", "dtype"),
        [
            ([1.0, float("nan")], "float32"),
            ([1, None], "Int64"),
            ([1.0, None], "Float32"),
            ([True, None], "boolean"),
            (["a", None], "string"),
            (["a", None], "object"),
            (["2020-01-01", None], "datetime64[ns]"),
            (["a", None], "category"),
        ],
        ids=str,
    )
    def test_missing_values_are_refused_in_every_dtype(self, pandas, values, dtype):
        frame = pandas.DataFrame({"user": ["a", "a"], "z": pandas.Series(values, dtype=dtype)})
        with pytest.raises(FedcoreError, match="the column 'z' has missing values; fix: fill or drop them"):
            from_pandas(frame, "user")

    @pytest.mark.parametrize(
        ("values", "dtype", "tensor"),
        [
            ([1, 2], "Int64", tf.int64),
            ([True, False], "boolean", tf.bool),
            ([1.0, float("inf")], "float32", tf.float32),
        ],
        ids=str,
    )
    def test_columns_without_missing_values_keep_their_dtypes(self, pandas, values, dtype, tensor):
        frame = pandas.DataFrame({"user": ["a", "a"], "z": pandas.Series(values, dtype=dtype)})
        assert from_pandas(frame, "user").element_type_structure == {"z": tf.TensorSpec([], tensor)}

    def test_missing_columns_and_client_ids_are_named(self, pandas):
        frame = pandas.DataFrame({"user": ["a", None], "x": [1, 2]})
        with pytest.raises(FedcoreError, match="the column 'user' has 1 missing values"):
            from_pandas(frame, "user")
        with pytest.raises(FedcoreError, match="there is no column 'client'; there are 'user', 'x'"):
            from_pandas(frame, "client")
        with pytest.raises(FedcoreError, match="at least one column beside 'user'"):
            from_pandas(frame[["user"]], "user")

    def test_the_example_of_the_docs_runs(self, pandas):
        assert run_example(from_pandas, pandas=pandas) == 0


class TestHuggingFace:
    @pytest.fixture
    def datasets(self):
        return pytest.importorskip("datasets")

    def test_a_client_is_read_when_it_is_asked_for(self, datasets):
        data = from_huggingface(datasets.Dataset.from_dict(COLUMNS), client_column="user")
        assert data.client_ids == ["a", "b"]
        assert list(data.element_type_structure) == ["x", "text", "v"]
        assert [(e["x"], e["text"], e["v"].tolist()) for e in rows(data, "b")] == [
            (1, b"one", [1, 2]),
            (3, b"", [5, 6]),
        ]

    def test_lists_of_several_lengths_are_ragged_for_all_clients(self, datasets):
        columns = {"user": list("abbc"), "tokens": [[1, 2], [], [3, 4, 5], []], "words": [["é"], [], ["a"] * 2, []]}
        data = from_huggingface(datasets.Dataset.from_dict(columns).shuffle(seed=1), "user")
        want = {"tokens": tf.TensorSpec([None], tf.int64), "words": tf.TensorSpec([None], tf.string)}
        for client_id in "abc":
            assert data.create_tf_dataset_for_client(client_id).element_spec == want
        found = [(e["tokens"].tolist(), e["words"].tolist()) for e in rows(data, "b")]
        assert sorted(found) == [([], []), ([3, 4, 5], [b"a", b"a"])]

    def test_missing_lists_are_named(self, datasets):
        dataset = datasets.Dataset.from_dict({"user": ["a"] * 3, "tokens": [[1], None, [1, 2]]})
        with pytest.raises(FedcoreError, match="the column 'tokens' has missing values; fix: fill or drop them"):
            from_huggingface(dataset, "user").create_tf_dataset_for_client("a")

    def test_a_dict_of_splits_is_refused_with_the_fix(self, datasets):
        splits = datasets.DatasetDict({"train": datasets.Dataset.from_dict(COLUMNS)})
        with pytest.raises(FedcoreError, match=r"a dict of train; fix: dataset\['train'\]"):
            from_huggingface(splits, "user")

    def test_the_example_of_the_docs_runs(self, datasets):
        assert run_example(from_huggingface, datasets=datasets) == 0


class TestTorch:
    @pytest.fixture
    def torch(self):
        return pytest.importorskip("torch")

    def test_tensors_in_dicts_and_tuples_are_columns(self, torch):
        class Own(torch.utils.data.Dataset):
            def __len__(self):
                return 3

            def __getitem__(self, i):
                return {"x": torch.full((2,), float(i)), "y": i, "name": "n" * i}

        data = from_torch(Own(), [1, 1, 2])
        assert data.element_type_structure == {
            "x": tf.TensorSpec([2], tf.float32),
            "y": tf.TensorSpec([], tf.int64),
            "name": tf.TensorSpec([], tf.string),
        }
        assert [(e["y"], e["name"]) for e in rows(data, "2")] == [(2, b"nn")]

    def test_examples_of_different_shapes_are_named(self, torch):
        data = from_torch([torch.zeros(1), torch.zeros(2)], ["a", "a"])
        with pytest.raises(FedcoreError, match=r"examples differ in shape, such as \[\(1,\), \(2,\)\]; fix: pad them"):
            data.create_tf_dataset_for_client("a")

    def test_the_example_of_the_docs_runs(self, torch):
        assert run_example(from_torch, torch=torch) == 0


# Lists of several lengths.

TEXTS = [[3, 1, 2], [], [5], [2, 2], [4, 4, 4, 4, 4], [1]]


@pytest.fixture
def texts():
    return from_arrays({"tokens": TEXTS, "y": np.arange(6, dtype=np.int32)}, list("abbbcc"))


def padded(dataset):
    return dataset.map(lambda e: (e["tokens"], e["y"])).padded_batch(2)


def test_ragged_examples_are_padded_batch_by_batch(texts):
    batches = list(texts.preprocess(padded).create_tf_dataset_for_client("b").as_numpy_iterator())
    assert [x.tolist() for x, _ in batches] == [[[0], [5]], [[2, 2]]]


def test_a_model_trains_on_ragged_examples_as_on_padded_ones(texts):
    data = texts.preprocess(padded)
    spec = data.element_type_structure
    assert spec == (tf.TensorSpec([None, None], tf.int64), tf.TensorSpec([None], tf.int32))

    def model_fn():
        model = keras.Sequential(
            [
                keras.Input((None,), dtype="int64"),
                keras.layers.Embedding(
                    6, 4, mask_zero=True, embeddings_initializer=keras.initializers.RandomNormal(seed=1)
                ),
                keras.layers.GlobalAveragePooling1D(),
                keras.layers.Dense(6, kernel_initializer=keras.initializers.RandomNormal(seed=2)),
            ]
        )
        return fc.learning.from_keras_model(model, keras.losses.SparseCategoricalCrossentropy(from_logits=True), spec)

    process = fc.learning.algorithms.build_weighted_fed_avg(model_fn, fc.learning.optimizers.build_sgdm(0.1))
    numbers = {"a": [[0]], "b": [[1, 2], [3]], "c": [[4, 5]]}
    by_hand = {i: [_padded_by_keras(batch) for batch in batches] for i, batches in numbers.items()}
    state = process.initialize.invoke(seed=1)
    ragged = process.next(state, [data.create_tf_dataset_for_client(i) for i in "abc"]).state.global_model_weights
    padded_ = process.next(state, [by_hand[i] for i in "abc"]).state.global_model_weights
    for have, want in zip(ragged.trainable, padded_.trainable, strict=True):
        np.testing.assert_array_equal(have, want)


def _padded_by_keras(numbers):
    tokens = keras.utils.pad_sequences([TEXTS[i] for i in numbers], padding="post", dtype="int64")
    return tokens, np.array(numbers, np.int32)


def test_ragged_client_data_are_selected_split_and_held(texts):
    train, validation = texts.train_validation_split(0.34)
    tokens = lambda data, i: [e["tokens"].tolist() for e in rows(data, i)]  # noqa: E731
    assert sorted(tokens(train, "b") + tokens(validation, "b")) == [[], [2, 2], [5]]
    assert tokens(texts.select(["c"]), "c") == tokens(texts.in_memory(), "c") == [[4] * 5, [1]]
    assert tokens(texts.preprocess(lambda d: d.take(1)), "a") == [[3, 1, 2]]
    assert tokens(train.in_memory(), "b") == tokens(train, "b")
    every = texts.create_tf_dataset_from_all_clients(seed=0)
    assert sorted(e["tokens"].tolist() for e in every.as_numpy_iterator()) == sorted(TEXTS)


def test_a_computation_makes_padded_data_sets_of_ids(texts):
    with pytest.raises(FedcoreError, match="only some of the leaves have a first dimension that is unknown; pad those"):
        _ = texts.dataset_computation
    data = texts.preprocess(lambda dataset: dataset.padded_batch(2, {"tokens": [5], "y": []}))

    @fc.tf_computation(data.dataset_computation.type_signature.result)
    def total(dataset):
        return dataset.reduce(np.int64(0), lambda total, e: total + tf.reduce_sum(e["tokens"]))

    @fc.federated_computation(fc.FederatedType(data.dataset_computation.type_signature.result, fc.CLIENTS))
    def totals(data):
        return fc.federated_sum(fc.federated_map(total, data))

    by_id = fc.simulation.compose_dataset_computation_with_computation(data.dataset_computation, totals)
    assert int(by_id(["a", "c"])) == 3 + 1 + 2 + 20 + 1


@pytest.mark.parametrize("save", [fc.simulation.datasets.save_hdf5, fc.simulation.datasets.save_sqlite])
def test_files_do_not_hold_ragged_examples_and_say_what_to_do(texts, save, tmp_path):
    with pytest.raises(
        FedcoreError, match=r"'tokens' differ in length; fix: pad them before, as keras\.utils\.pad_seq"
    ):
        save(texts, tmp_path / "data")


def test_lists_of_one_client_that_differ_are_ragged_for_all():
    data = from_clients({"a": ([[1], [2, 3]], [0, 1]), "b": ([[4, 5], [6, 7]], [2, 3]), "c": ([[]], [4])})
    for client_id in "abc":
        spec = data.create_tf_dataset_for_client(client_id).element_spec
        assert spec == (tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.int64))
    assert [x.tolist() for x, _ in rows(data, "b") + rows(data, "c")] == [[4, 5], [6, 7], []]
    with pytest.raises(FedcoreError, match="clients 'a' and 'b' differ"):
        from_clients({"a": ([[1], [2, 3]], [0, 1]), "b": [[4, 5], [6, 7]]})


# Data sets of clients.


def test_data_sets_of_clients_are_client_data():
    batches = [tf.data.Dataset.range(n).batch(2) for n in (3, 5)]
    data = from_clients(batches)
    assert data.client_ids == ["client_0", "client_1"]
    assert data.create_tf_dataset_for_client("client_1") is batches[1]
    by_name = from_clients({"ann": ClientDataset.from_columns(np.arange(3))})
    assert rows(by_name, "ann") == [0, 1, 2]


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        (
            [tf.data.Dataset.range(3), np.zeros(3)],
            r"client 'client_1' has .*; fix: fc\.data\.ClientDataset\.from_columns",
        ),
        (
            {"a": tf.data.Dataset.range(3), "b": tf.data.Dataset.from_tensors((1.0, 2))},
            r"clients 'a' and 'b' differ\n  'a'  has int64\n  'b'  has \('float32', 'int32'\)",
        ),
    ],
)
def test_data_sets_of_clients_that_differ_are_named(clients, message):
    with pytest.raises(TypeError, match=message):
        from_clients(clients)


def run_example(function, **names) -> int:
    (test,) = doctest.DocTestFinder().find(function, function.__name__, globs={function.__name__: function, **names})
    return doctest.DocTestRunner().run(test).failed


@pytest.mark.parametrize("function", [conversions.from_arrays, conversions.from_clients])
def test_the_examples_of_the_docs_run(function):
    assert run_example(function, np=np) == 0


def test_a_table_whose_columns_are_no_names_is_refused_by_its_kind():
    class Table:
        """As a pyarrow.Table has them: the columns themselves."""

        columns = property(lambda self: [Frame(x=[1.0])["x"]])

    with pytest.raises(TypeError) as raised:
        from_pandas(Table(), "user")
    problem = "from_pandas takes a pandas.DataFrame, not a test_conversions.Table"
    assert str(raised.value) == f"{problem}; fix: its to_pandas()"
