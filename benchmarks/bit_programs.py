"""Computations of `benchmarks.bits` that are no trainings: operations, sequences, kernels, and folds."""

import functools
from collections.abc import Callable, Sequence

import attrs
import numpy as np
import tensorflow as tf

import fedcore as fc
from benchmarks.bit_configuration import AVX2, SLOW, SSE, Arrays, Configuration, named_arrays
from benchmarks.bit_operations import (
    COLUMNS,
    OPERATIONS,
    OPERATIONS_OF_TENSORS,
    ROWS,
    WITHOUT_REFERENCE,
    normal,
    products,
)

CLIENTS = 5


@attrs.frozen
class Program(Configuration):
    """A computation.

    Args:
        make: () -> (the computation, its arguments), in Keras' float type.
    """

    make: Callable

    def results(self) -> Arrays:
        computation, arguments = self.make()
        return named_arrays("result", computation(*arguments))


def client_datasets(*sizes: int) -> list[fc.data.ClientDataset]:
    return [fc.data.ClientDataset.from_columns(normal(size, COLUMNS, seed=size)) for size in sizes]


def at_clients(*types) -> list[fc.FederatedType]:
    return [fc.FederatedType(type_, fc.CLIENTS) for type_ in types]


# --- operations ---


def with_gradient(operations: Callable) -> Callable:
    """The results of operations of x, and the gradient of a sum of them by x."""

    def results(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = operations(x)
            loss = tf.add_n([tf.reduce_sum(tf.tanh(tf.cast(t, x.dtype))) for t in outputs if t.dtype.is_floating])
        return [*outputs, tf.convert_to_tensor(tape.gradient(loss, x))]

    return results


def own_rows(number: tf.Tensor, results: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Tensors [CLIENTS, …] with the results of one client, and zeros in the rows of the others.

    So a sum over clients has the bits of each client.
    """
    rows = []
    for result in results:
        result = tf.cast(result, tf.int32) if result.dtype == tf.bool else result
        is_own = tf.reshape(tf.range(CLIENTS) == number, [CLIENTS] + [1] * result.shape.rank)
        rows.append(tf.where(is_own, result[tf.newaxis], tf.zeros([], result.dtype)))
    return rows


def of_tensors(operations: Callable) -> tuple:
    """Operations of a tensor of each client."""
    values = normal(CLIENTS, ROWS, COLUMNS)

    @fc.tf_computation("int32", (values.dtype.name, [ROWS, COLUMNS]))
    def of_client(number, x):
        return own_rows(number, with_gradient(operations)(x))

    @fc.federated_computation(*at_clients(*of_client.type_signature.parameter))
    def total(numbers, clients):
        return fc.federated_sum(fc.federated_map(of_client, (numbers, clients)))

    return total, [[*range(CLIENTS)], [*values]]


def of_batches(operations: Callable) -> tuple:
    """Operations of batches of each client, whose results are added up over rows and batches."""
    batch = fc.TensorType(normal(1).dtype.name, [None, COLUMNS])

    @fc.tf_computation(batch)
    def of_batch(x):
        results = [tf.cast(t, x.dtype) for t in with_gradient(operations)(x)]
        return [tf.reduce_sum(t, [i for i, size in enumerate(t.shape) if size is None]) for t in results]

    @fc.tf_computation("int32", of_batch.type_signature.result)
    def of_client(number, sums):
        return own_rows(number, sums)

    @fc.federated_computation(*at_clients("int32", fc.SequenceType(batch)))
    def total(numbers, clients):
        sums = fc.federated_map(lambda batches: fc.sequence_sum(fc.sequence_map(of_batch, batches)), clients)
        return fc.federated_sum(fc.federated_map(of_client, (numbers, sums)))

    return total, [[*range(CLIENTS)], [d.batch(4) for d in client_datasets(7, 0, 4, 1, 10)]]


# --- sequences ---


def two_sequences() -> tuple:
    """Two sequences of each client, of batches and of single examples."""
    float_type = normal(1).dtype.name
    batch, example = fc.TensorType(float_type, [None, COLUMNS]), fc.TensorType(float_type, [COLUMNS])

    @fc.tf_computation(example, batch)
    def add_batch(total, x):
        return tf.tanh(total + tf.reduce_mean(x, 0))

    @fc.tf_computation(example, example)
    def add_example(total, x):
        return total * 0.9 + tf.sin(x)

    @fc.federated_computation(*at_clients((fc.SequenceType(batch), fc.SequenceType(example))))
    def total(clients):
        def of_client(client):
            zeros = np.zeros(COLUMNS, float_type)
            return fc.sequence_reduce(client[0], zeros, add_batch), fc.sequence_reduce(client[1], zeros, add_example)

        return fc.federated_sum(fc.federated_map(of_client, clients))

    return total, [[(d.batch(3), d.shuffle(20, seed=2)) for d in client_datasets(7, 0, 4, 1, 10)]]


def lists_of_batches() -> tuple:
    """Batches of different sizes, some of them empty, that no data set has made."""

    @fc.tf_computation((normal(1).dtype.name, [COLUMNS]), (normal(1).dtype.name, [None, COLUMNS]))
    def add(total, x):
        return total * 0.5 + tf.reduce_sum(x, 0) + tf.cast(tf.shape(x)[0], x.dtype)

    @fc.federated_computation(*at_clients(fc.SequenceType(add.type_signature.parameter[1])))
    def total(clients):
        zeros = np.zeros(COLUMNS, normal(1).dtype)
        return fc.federated_sum(fc.federated_map(lambda batches: fc.sequence_reduce(batches, zeros, add), clients))

    return total, [[[normal(rows, COLUMNS, seed=rows) for rows in sizes] for sizes in ((3, 0, 2), (5, 1), (0, 4), ())]]


def matrices() -> tuple:
    """A matrix that each client makes of its examples and of a factor; a small cache does not hold several of them."""
    factors = normal(3)
    example, matrix = (fc.TensorType(factors.dtype.name, shape) for shape in ([COLUMNS], [300, 200]))

    @fc.tf_computation(matrix, example)
    def add(total, x):
        return total * 0.5 + tf.sin(tf.reshape(tf.range(60_000, dtype=x.dtype) / 9999, [300, 200]) * x[0])

    @fc.tf_computation(matrix, factors.dtype.name)
    def scaled(total, factor):
        return total * factor

    @fc.federated_computation(*at_clients(fc.SequenceType(example), factors.dtype.name))
    def total(clients, of_clients):
        zeros = np.zeros([300, 200], factors.dtype)
        sums = fc.federated_map(lambda rows: fc.sequence_reduce(rows, zeros, add), clients)
        return fc.federated_sum(fc.federated_map(scaled, (sums, of_clients)))

    return total, [client_datasets(7, 0, 4), [*factors]]


# --- kernels that are trained by products of batches ---


def kernels(
    of_change: Callable = lambda change, is_finite: change, *, from_zeros: bool = False, batch_size: int = 8
) -> tuple:
    """Four kernels of each client: changed by one product a step, changed by two products, scaled, and squared.

    Args:
        of_change: the change of the first kernel, and whether it is finite -> the values of a client.
        from_zeros: the first kernel begins with zeros, and is added to the shared one.
    """
    examples = [(normal(n, 256, seed=n), normal(n, 64, seed=n + 1)) for n in (16, 9, 24)]
    float_type = examples[0][0].dtype.name
    batch = fc.to_type(((float_type, [None, 256]), (float_type, [None, 64])))
    kernel = fc.TensorType(float_type, [256, 64])
    four_kernels = fc.to_type((kernel,) * 4)

    @fc.tf_computation(kernel, four_kernels, batch)
    def step(start, state, rows):
        (one, two, scaled, squared), (x, y) = state, rows
        difference = tf.matmul(x, one) + (tf.matmul(x, start) if from_zeros else 0) - y
        product = tf.matmul(x, difference, transpose_a=True)
        other_product = tf.matmul(tf.tanh(x), tf.tanh(difference), transpose_a=True)
        one -= product / 100.0 + one * 0.001
        return one, two - product * 0.01 - other_product * 0.01, scaled * 0.9, squared * squared

    @fc.tf_computation(four_kernels, kernel)
    def values(state, start):
        change = state[0] - start
        is_finite = tf.cast(tf.math.is_finite(tf.reduce_sum(change)), tf.int32)
        return of_change(change, is_finite), [tf.reduce_sum(other, 0) for other in state[1:]]

    @fc.federated_computation(fc.FederatedType(four_kernels, fc.SERVER), *at_clients(fc.SequenceType(batch)))
    def total(weights, clients):
        def of_client(batches, state):
            first = np.zeros([256, 64], float_type) if from_zeros else state[0]
            end = fc.sequence_reduce(batches, (first, *state[1:]), lambda s, b: step(state[0], s, b))
            return values(end, state[0])

        return fc.federated_sum(fc.federated_map(of_client, (clients, fc.federated_broadcast(weights))))

    first_kernels = tuple(normal(256, 64, seed=i) / 16 for i in range(4))
    return total, [first_kernels, [fc.data.ClientDataset.from_columns(e).batch(batch_size) for e in examples]]


def convolutions() -> tuple:
    """A convolution and a large kernel behind it, which each client trains on batches that a function has scaled."""
    examples = [(normal(n, 6, 6, 1, seed=n), normal(n, 512, seed=n + 1)) for n in (16, 9, 24)]
    float_type = examples[0][0].dtype.name
    batch = fc.to_type(((float_type, [None, 6, 6, 1]), (float_type, [None, 512])))
    kernels_type = fc.to_type(((float_type, [3, 3, 1, 4]), (float_type, [144, 512])))

    @fc.tf_computation(batch)
    def scaled(rows):
        return rows[0] * 0.5, rows[1]

    @fc.tf_computation(kernels_type, batch)
    def step(state, rows):
        (filters, w), (x, y) = state, rows
        with tf.GradientTape() as tape:
            tape.watch(filters)
            hidden = tf.reshape(tf.nn.relu(tf.nn.conv2d(x, filters, 1, "SAME")), [-1, 144])
            difference = tf.matmul(hidden, w) - y
            loss = tf.reduce_mean(difference**2)
        change = tf.matmul(hidden, difference, transpose_a=True)
        return filters - 0.1 * tape.gradient(loss, filters), w - 0.001 * change

    @fc.federated_computation(fc.FederatedType(kernels_type, fc.SERVER), *at_clients(fc.SequenceType(batch)))
    def total(weights, clients):
        start = fc.federated_broadcast(weights)
        ends = fc.federated_map(
            lambda batches, state: fc.sequence_reduce(fc.sequence_map(scaled, batches), state, step), (clients, start)
        )
        return fc.federated_sum(ends)

    first = (normal(3, 3, 1, 4), normal(144, 512) / 16)
    return total, [first, [fc.data.ClientDataset.from_columns(e).batch(8) for e in examples]]


# --- folds ---


def folds(start: float, merge: Callable, *, has_maximum: bool = False) -> tuple:
    """Sums of small and large leaves from an initial value, and maybe a maximum.

    Args:
        merge: joins two sums.
    """
    clients = normal(19)
    clients[::5] = -0.0  # whose sums are negative zeros
    zeros = [np.full(5000, start, clients.dtype), clients.dtype.type(start), np.int32(start)]
    zeros += [np.full(2, -9, clients.dtype)] if has_maximum else []

    @fc.tf_computation(clients.dtype.name)
    def spread(x):
        large = tf.sin(x * tf.range(5000, dtype=x.dtype) / 1000)
        return [large, x, tf.cast(x * 10, tf.int32), tf.stack([x, -x])][: len(zeros)]

    partial = spread.type_signature.result

    def leaf_by_leaf(of_sums: Callable) -> Callable:
        @fc.tf_computation(partial, partial)
        def joined(left, right):
            functions = [of_sums, of_sums, of_sums, tf.maximum]
            return [fn(a, b) for fn, a, b in zip(functions, left, right, strict=False)]

        return joined

    @fc.tf_computation(partial)
    def report(total):
        return total

    @fc.federated_computation(*at_clients(clients.dtype.name))
    def total(values):
        spreads = fc.federated_map(spread, values)
        return fc.federated_aggregate(spreads, zeros, leaf_by_leaf(tf.add), leaf_by_leaf(merge), report)

    return total, [[*clients]]


def _named(kind: str, make: Callable, operations: Sequence[Callable]) -> dict[str, Program]:
    def program(fn: Callable) -> Program:
        return Program(functools.partial(make, fn), has_reference=fn not in WITHOUT_REFERENCE)

    return {f"{kind}-{fn.__name__.replace('_', '-')}": program(fn) for fn in operations}


PROGRAMS = {
    **_named("tensors", of_tensors, [*OPERATIONS, *OPERATIONS_OF_TENSORS]),
    **_named("batches", of_batches, OPERATIONS),
    "tensors-products-sse": Program(functools.partial(of_tensors, products), settings={"target": SSE}),
    "batches-products-avx2": Program(functools.partial(of_batches, products), settings={"target": AVX2}),
    "two-sequences": Program(two_sequences),
    "lists-of-batches": Program(lists_of_batches),
    "matrices-slow-memory": Program(matrices, settings={"target": SLOW}),
    "kernels": Program(functools.partial(kernels, lambda change, is_finite: (change, is_finite))),
    "kernels-counted": Program(functools.partial(kernels, lambda change, is_finite: is_finite)),
    "kernels-from-zeros": Program(functools.partial(kernels, from_zeros=True, batch_size=32)),
    "kernels-avx2": Program(functools.partial(kernels, lambda change, _: change * 2), settings={"target": AVX2}),
    "convolutions": Program(convolutions),
    "kernels-xla": Program(kernels, settings={"xla": True}),
    "folds": Program(functools.partial(folds, 0.0, tf.add, has_maximum=True)),
    "folds-blocks-of-12": Program(functools.partial(folds, 0.5, tf.add, has_maximum=True), settings={"block_size": 12}),
    "sums": Program(functools.partial(folds, 0.0, tf.add)),
    "sums-parted-blocks": Program(functools.partial(folds, 0.0, tf.add), settings={"vectorize": 12}),
    "sums-two-blocks-a-group": Program(functools.partial(folds, 0.5, tf.add), settings={"vectorize": 16}),
    "sums-merged-by-maxima": Program(functools.partial(folds, 0.5, tf.maximum), settings={"vectorize": 8}),
}
