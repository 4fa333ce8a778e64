"""Entries of the zoo, the columns of their data, and the decorators that declare them."""

from collections.abc import Callable
from typing import Any

import attrs
import keras
import numpy as np

LENGTH = 5
"""Steps of a sequence where nothing else is said."""


@attrs.frozen
class Column:
    """Random rows of one tensor.

    Args:
        draw: (rng, rows, length) -> an array with that many rows; a sequence has that many steps.
        is_sequence: whether the rows have steps, and so may have different lengths.
    """

    draw: Callable[[np.random.Generator, int, int], np.ndarray]
    is_sequence: bool = False


def vectors(*shape: int) -> Column:
    return Column(lambda rng, n, _: rng.normal(size=(n, *shape)).astype(np.float32))


def series(features: int) -> Column:
    return Column(lambda rng, n, t: rng.normal(size=(n, t, features)).astype(np.float32), True)


def words(vocabulary: int) -> Column:
    """Ids of words; each row ends in a few zeros, which masks leave out."""

    def draw(rng, n, t):
        ids = rng.integers(1, vocabulary, (n, t))
        return np.where(np.arange(t) < rng.integers(1, t + 1, (n, 1)), ids, 0).astype(np.int32)

    return Column(draw, True)


def classes(count: int, dtype="int32") -> Column:
    return Column(lambda rng, n, _: rng.integers(0, count, n).astype(dtype))


def class_rows(count: int) -> Column:
    """Labels of shape [N,1]."""
    return Column(lambda rng, n, _: rng.integers(0, count, (n, 1)).astype(np.int32))


def step_classes(count: int) -> Column:
    """A label for each step of a sequence."""
    return Column(lambda rng, n, t: rng.integers(0, count, (n, t)).astype(np.int32), True)


def one_hot(count: int) -> Column:
    return Column(lambda rng, n, _: np.eye(count, dtype=np.float32)[rng.integers(0, count, n)])


def bits(*shape: int, dtype="float32") -> Column:
    return Column(lambda rng, n, _: rng.integers(0, 2, (n, *shape)).astype(dtype))


def counts(*shape: int) -> Column:
    return Column(lambda rng, n, _: rng.integers(0, 5, (n, *shape)).astype(np.float32))


def integers(high: int, *shape: int, dtype="int32") -> Column:
    return Column(lambda rng, n, _: rng.integers(0, high, (n, *shape)).astype(dtype))


def strings(*vocabulary: str) -> Column:
    return Column(lambda rng, n, _: np.array(vocabulary, dtype=np.bytes_)[rng.integers(0, len(vocabulary), n)])


def example_weights() -> Column:
    return Column(lambda rng, n, _: rng.uniform(0, 2, n).astype(np.float32))


def step_weights() -> Column:
    return Column(lambda rng, n, t: rng.uniform(0, 2, (n, t)).astype(np.float32), True)


@attrs.frozen(eq=False)
class Model:
    """A Keras model with the arguments of `compile` and the columns of its batches.

    Args:
        make: () -> the model; with `draws`, (rate) -> the model, where a rate of 0 draws nothing.
        x, y: structures of columns.
        sample_weight: structure of columns; None for batches of pairs.
        loss, loss_weights: as for `compile`.
        metrics, weighted_metrics: () -> the argument of `compile`, since metrics have states.
        is_ragged: whether the model takes sequences of any length.
        batch_size: the number of examples in every batch, where the model fixes it.
        draws: whether training draws random numbers.
        epsilon: of the dtype that the model computes in.
        refusal: a part of fedcore's message if it refuses the model on purpose; it may as well do what Keras does.
    """

    name: str
    make: Callable[..., keras.Model]
    x: Any
    y: Any
    loss: Any
    sample_weight: Any = None
    loss_weights: Any = None
    metrics: Callable[[], Any] | None = None
    weighted_metrics: Callable[[], Any] | None = None
    is_ragged: bool = False
    batch_size: int | None = None
    draws: bool = False
    epsilon: float = float(np.finfo(np.float32).eps)
    refusal: str | None = None

    @property
    def parts(self) -> tuple:
        return (self.x, self.y) if self.sample_weight is None else (self.x, self.y, self.sample_weight)

    def columns(self, rng: np.random.Generator, rows: int, length: int = LENGTH) -> tuple:
        """The arrays of so many examples: (x, y) or (x, y, sample_weight)."""
        return keras.tree.map_structure(lambda column: column.draw(rng, rows, length), self.parts)

    def make_for_comparison(self) -> keras.Model:
        """The model without random numbers in training."""
        return self.make(0.0) if self.draws else self.make()

    def compile_arguments(self) -> dict[str, Any]:
        """Arguments of `compile`; metrics are made anew."""
        arguments = {"loss": self.loss, "loss_weights": self.loss_weights}
        if self.metrics is not None:
            arguments["metrics"] = self.metrics()
        if self.weighted_metrics is not None:
            arguments["weighted_metrics"] = self.weighted_metrics()
        return arguments


@attrs.frozen(eq=False)
class DataKind:
    """How clients' examples come.

    Args:
        sizes: the number of examples of each client.
        source: name of the container of the clients' columns, see `data_kinds.SOURCES`.
        pipeline: dataset of examples -> dataset of batches; runs on fedcore's datasets and on those of tf.data.
        batch_size: of every batch, where all batches have one size.
        is_ragged: whether the rows of a client have sequences of different lengths.
    """

    name: str
    sizes: tuple[int, ...]
    source: str
    pipeline: Callable
    batch_size: int | None = None
    is_ragged: bool = False

    def obstacle(self, model: Model) -> str | None:
        """Why the model does not take this data; None if it does."""
        if model.batch_size is not None and model.batch_size != self.batch_size:
            return f"the model takes batches of {model.batch_size} examples only"
        if self.is_ragged and not model.is_ragged:
            return "the model takes rows of one size only"
        return None


MODELS: dict[str, Model] = {}
DATA_KINDS: dict[str, DataKind] = {}


def _register(registry: dict, entry) -> None:
    if entry.name in registry:
        raise ValueError(f"the zoo has two entries named {entry.name!r}")
    registry[entry.name] = entry


def model(name: str, **fields) -> Callable:
    """Declares the decorated function as a model of the zoo; `fields` are those of `Model`."""

    def declare(make: Callable[..., keras.Model]) -> Callable[..., keras.Model]:
        _register(MODELS, Model(name, make, **fields))
        return make

    return declare


def data_kind(name: str, sizes: tuple[int, ...], source: str = "columns", **fields) -> Callable:
    """Declares the decorated pipeline as a kind of data; `fields` are those of `DataKind`."""

    def declare(pipeline: Callable) -> Callable:
        _register(DATA_KINDS, DataKind(name, sizes, source, pipeline, **fields))
        return pipeline

    return declare
