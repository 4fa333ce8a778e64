"""What is given in place of a client's dataset is named, with what makes a dataset of it."""

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import FedcoreError, TracingError, TypeMismatch

X, Y = np.ones([6, 4], np.float32), np.arange(6)
BATCHES = fc.SequenceType((fc.TensorType("float32", [None, 4]), fc.TensorType("int64", [None])))
FLOATS = fc.SequenceType("float32")


@fc.tf_computation(BATCHES)
def examples(batches):
    return batches.reduce(0, lambda n, b: n + tf.size(b[1]))


@fc.tf_computation(FLOATS)
def total(xs):
    return xs.reduce(0.0, lambda a, b: a + b)


count = fc.federated_computation(lambda data: fc.federated_map(examples, data), fc.FederatedType(BATCHES, fc.CLIENTS))
totals = fc.federated_computation(lambda data: fc.federated_map(total, data), fc.FederatedType(FLOATS, fc.CLIENTS))


class Frame:
    """As much of a DataFrame of pandas as is looked at: it iterates over the names of its columns."""

    def __init__(self, **columns):
        self._columns = columns
        self.columns = list(columns)

    def __len__(self):
        return len(next(iter(self._columns.values())))

    def __iter__(self):
        return iter(self.columns)

    def __getitem__(self, name):
        return self._columns[name]

    def items(self):
        return self._columns.items()

    def to_numpy(self):
        return np.stack(list(self._columns.values()), axis=1)


def client(columns) -> fc.data.ClientDataset:
    return fc.data.ClientDataset.from_columns(columns)


FROM_COLUMNS = "fix: fc.data.ClientDataset.from_columns(data[0])"
MISFITS = {
    "a dict": (count, {"x": X, "y": Y}, "data[0] is a dict of arrays, and no dataset", f"{FROM_COLUMNS}.batch(n)"),
    "a pair": (count, (X, Y), "data[0] is an (X, y) pair of arrays, and no dataset", f"{FROM_COLUMNS}.batch(n)"),
    "a list of two": (count, [X, Y], "data[0] is an (X, y) pair of arrays, and no dataset", f"{FROM_COLUMNS}.batch(n)"),
    "a pair of another dtype": (
        count,
        (X.astype(np.float64), Y),
        "data[0] is an (X, y) pair of arrays, and no dataset",
        "argument   has    <float64[?,4],int64[?]>*",
    ),
    "an array": (count, X, "data[0] is an array of type float32[6,4], and no dataset", "makes a dataset of its rows"),
    "a tensor": (count, tf.constant(X), "data[0] is an array of type float32[6,4]", "makes a dataset of its rows"),
    "an array of vectors": (totals, X, "data[0] is an array of type float32[6,4]", "makes a dataset of its rows"),
    "a data frame": (
        count,
        Frame(x=np.float32([1, 2]), y=np.arange(2)),
        "data[0] is a Frame of 2 rows, and no dataset",
        "fc.data.ClientDataset.from_columns(dict(data[0])) makes a dataset of its rows",
    ),
    "a forgotten batch": (count, client((X, Y)), "data[0] does not fit", "fix: data[0] is not batched: put .batch(n)"),
    "a forgotten batch of tf.data": (
        count,
        tf.data.Dataset.from_tensor_slices((X, Y)),
        "data[0] does not fit",
        "fix: data[0] is not batched: put .batch(n) after it",
    ),
    "a list of examples": (
        count,
        [(X[0], Y[0]), (X[1], Y[1])],
        "data[0] does not fit",
        "fix: data[0] is not batched: put .batch(n) after it",
    ),
    "a batch too many": (
        totals,
        client(X[:, 0]).batch(2),
        "data[0] does not fit",
        "fix: data[0] is batched: leave .batch(n) out, or put .unbatch() after it",
    ),
    "numbers of other dtypes": (
        count,
        client((X.astype(np.float64), np.arange(len(X), dtype=np.int16))).batch(2),
        "data[0] does not fit",
        "fix: tf.cast in a .map() of the data; or give the model their type: from_keras_model(…, input_spec=)",
    ),
    "text": (count, "abc", "data[0] is 'abc', but a sequence of type", "a dataset or a list of elements"),
    "nothing": (count, None, "data[0] is None, but a sequence of type", "a dataset or a list of elements"),
    "sparse elements": (
        totals,
        tf.data.Dataset.from_tensor_slices(tf.sparse.from_dense(X)),
        "data[0] does not fit",
        "SparseTensor<indices=int64[?,1],values=float32[?],dense_shape=int64[1]>*",
    ),
    "ragged elements": (
        totals,
        tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1.0], [2.0, 3.0]], ragged_rank=1)).batch(2),
        "a RaggedTensorSpec is no value of a computation",
        ".to_tensor()",
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_what_is_no_dataset_is_named_with_the_fix(name):
    computation, given, title, fix = MISFITS[name]
    with pytest.raises(TypeMismatch) as raised:
        computation([given])
    text = str(raised.value)
    assert text.startswith(title)
    assert fix in text
    assert len(text.splitlines()) <= 6
    assert len(text) < 500


def test_the_fix_works():
    assert count([client((X, Y)).batch(4), client({"x": X, "y": Y}).batch(4)]) == [6, 6]


@pytest.mark.parametrize("given", [client((X, Y)).batch(2), Frame(x=Y), {"x": X}])
def test_one_client_in_place_of_a_list_of_them_is_named(given):
    with pytest.raises(TypeMismatch, match=f"give a list with one element per client, not {type(given).__name__}"):
        count(given)


def test_a_learning_process_names_them_too():
    def model_fn():
        layers = [tf.keras.layers.Input([4]), tf.keras.layers.Dense(2)]
        spec = (tf.TensorSpec([None, 4], tf.float32), tf.TensorSpec([None], tf.int64))
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return fc.learning.models.from_keras_model(tf.keras.Sequential(layers), loss=loss, input_spec=spec)

    process = fc.learning.algorithms.build_weighted_fed_avg(
        model_fn, client_optimizer_fn=fc.learning.optimizers.build_sgdm(0.1)
    )
    state = process.initialize()
    for given, text in (((X, Y), r"data\[0\] is an \(X, y\) pair"), (client((X, Y)), r"put \.batch\(n\) after it")):
        with pytest.raises(TypeMismatch, match=text):
            process.next(state, [given])


COLUMNS = {
    "unequal": ((X, Y[:5]), "these are 6 rows, 5 rows"),
    "no rows": (3, "these are '3', which has no rows"),
    "nothing": ({}, "these are no columns"),
    "sparse": (tf.sparse.from_dense(X), "columns hold dense rows; a SparseTensor is no dense tensor"),
    "ragged": (tf.ragged.constant([[1.0], [2.0, 3.0]]), "columns hold dense rows; a RaggedTensor is no value"),
    "objects": (np.array([object(), object()]), "a column is no tensor: .* is neither number nor text"),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_that_are_none_are_refused(name):
    columns, text = COLUMNS[name]
    with pytest.raises(FedcoreError, match=text):
        client(columns)


def ragged(x):
    return tf.RaggedTensor.from_row_lengths(x, [1, 3])


def test_a_function_that_returns_a_ragged_tensor_is_refused():
    for trace in (fc.tf_computation(fc.TensorType("float32", [4])), client(X).map):
        with pytest.raises(TracingError, match=r"`ragged` .* returns what is no tensor: a .*Tensor .*\.to_tensor\(\)"):
            trace(ragged)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (tf.sparse.from_dense(X), "a SparseTensor is no dense tensor: make it dense"),
        (tf.ragged.constant([[1.0], [2.0, 3.0]]), "a RaggedTensor is no value of a computation"),
    ],
)
def test_a_sparse_or_ragged_argument_is_refused_where_a_dense_one_is_wanted(given, text):
    double = fc.tf_computation(fc.TensorType("float32", [None, None]))(lambda x: x * 2.0)
    with pytest.raises(TypeMismatch, match=f"x: {text}"):
        double(given)


def test_a_function_that_does_not_tell_its_shape_gets_the_fix():
    def double(x):
        return tf.numpy_function(lambda v: 2 * v, [x], tf.float32)

    @fc.federated_computation(fc.FederatedType(fc.SequenceType(fc.TensorType("float32", (None, 4))), fc.CLIENTS))
    def batches(data):
        return fc.federated_map(fc.tf_computation(lambda d: d.reduce(0, lambda n, _: n + 1)), data)

    dataset = tf.data.Dataset.from_tensor_slices(X).batch(2).map(double)
    with pytest.raises(TypeMismatch) as caught:
        batches([dataset])
    assert "float32[...]" in str(caught.value)
    assert str(caught.value).endswith(
        "\n  fix: tf.ensure_shape in a .map() of the data, behind what does not tell its shape, as tf.numpy_function"
    )
    assert batches([dataset.map(lambda x: tf.ensure_shape(x, [None, 4]))]) == [3]
