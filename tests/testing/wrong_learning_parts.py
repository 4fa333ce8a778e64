"""Seeded wrong optimizers, metrics and client data: (kind, mistake, check)."""

import functools

import keras
import numpy as np
import tensorflow as tf

import fedcore as fc
from fedcore.learning.optimizers.optimizer import LeafwiseOptimizer

# Optimizers.


class Descent(LeafwiseOptimizer):
    """Gradient descent with momentum, of which a part is replaced."""

    def __init__(self, step=None, slot=tf.zeros_like):
        super().__init__(learning_rate=0.5)
        self.slot = slot
        self.own_step = step or (lambda velocity, weight, gradient, rate: descend(velocity, weight, gradient, rate))

    def slots(self, weight):
        return {"velocity": self.slot(weight)}

    def step(self, hparams, step, slots, weight, gradient):
        velocity, moved = self.own_step(slots["velocity"], weight, gradient, hparams["learning_rate"])
        return {"velocity": velocity}, moved


def descend(velocity, weight, gradient, rate):
    velocity = 0.5 * velocity - rate * gradient
    return velocity, weight + velocity


MOMENTUM = keras.optimizers.SGD(0.5, momentum=0.5)


def formula(weight, gradients):
    velocity = 0.0
    for gradient in gradients:
        velocity = 0.5 * velocity - 0.5 * gradient
        weight = weight + velocity
    return weight


class Hidden(Descent):
    """Takes smaller steps the longer the process runs."""

    calls = 0

    def next(self, state, weights, gradients):
        self.calls += 1
        state, moved = super().next(state, weights, gradients)
        return state, tf.nest.map_structure(lambda m: m / self.calls, moved)


class Zeros(Descent):
    """Takes None for a gradient of zeros, which momentum moves."""

    def next(self, state, weights, gradients):
        flat = [tf.zeros_like(w) if g is None else g for w, g in zip(
            tf.nest.flatten(weights), tf.nest.flatten(gradients), strict=True)]  # fmt: skip
        state, moved = super().next(state, weights, tf.nest.pack_sequence_as(weights, flat))
        return state, tf.nest.map_structure(lambda m: m * 0.99, moved)


class Fixed(Descent):
    """Forgets hyperparameters that are set."""

    def set_hparams(self, state, hparams):
        return state


OPTIMIZERS = {
    "forgets its velocity": Descent(lambda v, w, g, r: (v, descend(v, w, g, r)[1])),
    "climbs": Descent(lambda v, w, g, r: descend(v, w, -g, r)),
    "scales without epsilon": Descent(lambda v, w, g, r: (v + g * g, w - r * g / tf.sqrt(v + g * g))),
    "computes in float32": Descent(lambda v, w, g, r: tuple(tf.cast(x, tf.float32) for x in descend(v, w, g, r))),
    "rounds to float16": Descent(lambda v, w, g, r: (v, tf.cast(tf.cast(descend(v, w, g, r)[1], tf.float16), w.dtype))),
    "draws noise": Descent(lambda v, w, g, r: descend(v, w, g + tf.random.normal(g.shape, dtype=g.dtype), r)),
    "clips gradients at a million": Descent(lambda v, w, g, r: descend(v, w, tf.clip_by_value(g, -1e6, 1e6), r)),
    "starts at the weights": Descent(slot=lambda w: tf.identity(w)),
    Hidden.__doc__: Hidden(),
    Zeros.__doc__: Zeros(),
    Fixed.__doc__: Fixed(),
}  # fmt: skip

# Metrics.

LABELS, PREDICTIONS = np.float32([0, 1, 2, 3, 4, 5]), np.float32([0.5, 1, 4, 2, -3, 5])


class Distance(keras.metrics.Metric):
    """The mean distance, of which a part is replaced."""

    start = "zeros"

    def __init__(self):
        super().__init__(name="distance")
        self.total = self.add_weight(name="total", initializer=self.start)
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.add(tf.abs(y_true - y_pred))

    def add(self, distances):
        self.total.assign_add(tf.reduce_sum(distances))
        self.count.assign_add(tf.cast(tf.size(distances), tf.float32))

    def result(self):
        return tf.math.divide_no_nan(self.total, self.count)


def distance(labels, predictions):
    return np.abs(labels - predictions).mean()


class Largest(Distance):
    """Keeps the largest distance."""

    def add(self, distances):
        self.total.assign(tf.maximum(self.total, tf.reduce_max(distances)))
        self.count.assign(1.0)


class LastBatch(Distance):
    """Has the last batch only."""

    def add(self, distances):
        self.total.assign(tf.reduce_sum(distances))
        self.count.assign(tf.cast(tf.size(distances), tf.float32))


class Running(Distance):
    """Averages over time."""

    def add(self, distances):
        self.total.assign(0.5 * self.total + tf.reduce_mean(distances))
        self.count.assign(1.0)


class FromOne(Distance):
    """Starts with one."""

    start = "ones"


class OfBatches(Distance):
    """Is the mean of the batches' means."""

    def add(self, distances):
        self.total.assign_add(tf.reduce_mean(distances))
        self.count.assign_add(1.0)


class InPython(Distance):
    """Counts calls in Python."""

    calls = 0

    def add(self, distances):
        type(self).calls += 1
        super().add(distances * float(self.calls))


METRICS = (Largest, LastBatch, Running, FromOne, OfBatches, InPython)

# Client data.

COLUMNS = {f"client {i}": {"x": np.arange(i + 1, dtype=np.int32), "y": np.float32([i] * (i + 1))} for i in range(12)}


class Rows(fc.simulation.datasets.ClientData):
    """The columns' rows, as generators give them; a part is replaced."""

    def __init__(self, columns=None):
        super().__init__(COLUMNS)
        self.columns = COLUMNS if columns is None else columns

    def create_tf_dataset_for_client(self, client_id):
        self._require(client_id)
        return self.dataset(lambda: self.rows(client_id))

    def dataset(self, rows):
        spec = {"x": tf.TensorSpec([], tf.int32), "y": tf.TensorSpec([], tf.float32)}
        return tf.data.Dataset.from_generator(rows, output_signature=spec)

    def rows(self, client_id):
        columns = self.columns[client_id]
        return ({name: column[k] for name, column in columns.items()} for k in range(len(columns["x"])))


class WithoutLast(Rows):
    """Leaves the last row out."""

    def rows(self, client_id):
        return list(super().rows(client_id))[:-1]


class Late(Rows):
    """Has the rows of the client that was asked for last."""

    def create_tf_dataset_for_client(self, client_id):
        self.current = self._require(client_id)
        return self.dataset(lambda: self.rows(self.current))


class Once(Rows):
    """Can be read once."""

    def create_tf_dataset_for_client(self, client_id):
        rows = self.rows(self._require(client_id))
        return self.dataset(lambda: rows)


class Shuffled(Rows):
    """Is in another order each time."""

    def rows(self, client_id):
        rows = list(super().rows(client_id))
        return [rows[i] for i in np.random.default_rng().permutation(len(rows))]


class OneCursor(Rows):
    """Has one position for all readers."""

    def rows(self, client_id):
        self.rows_left = list(super().rows(client_id))
        while self.rows_left:
            yield self.rows_left.pop(0)


class WithoutColumns(Rows):
    """Pickles without its rows."""

    def __getstate__(self):
        return {**super().__getstate__(), "columns": {i: {"x": [], "y": []} for i in COLUMNS}}


class ByNumber(Rows):
    """Has its ids in the order of their numbers."""

    @property
    def client_ids(self):
        return list(COLUMNS)


class Lent(Rows):
    """Lends its own list of ids."""

    @property
    def client_ids(self):
        return self._ids


class Anybody(Rows):
    """Has a data set for every id."""

    def _require(self, client_id):
        return client_id if client_id in COLUMNS else "client 0"


class Sorted(Rows):
    """Has its cohorts in the order of the ids."""

    def cohort(self, client_ids):
        return super().cohort(sorted(client_ids))


DATA = (WithoutLast, Late, Once, Shuffled, OneCursor, WithoutColumns, ByNumber, Lent, Anybody, Sorted)


def check_data(data):
    fc.testing.check_client_data(data(), COLUMNS)


PARTS = [
    *(
        ("optimizer", mistake, functools.partial(fc.testing.check_optimizer, optimizer, formula))
        for mistake, optimizer in OPTIMIZERS.items()
    ),
    *(
        ("metric", m.__doc__, functools.partial(fc.testing.check_metric, m, LABELS, PREDICTIONS, meaning=distance))
        for m in METRICS
    ),
    *(("client data", d.__doc__, functools.partial(check_data, d)) for d in DATA),
]
