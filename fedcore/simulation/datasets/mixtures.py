"""Data sets made from the examples of others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedcore.errors import InvalidValue, brief
from fedcore.scalars import real_number, seed_number, whole_number
from fedcore.simulation.datasets.client_data import ClientData

if TYPE_CHECKING:
    import tensorflow as tf

_DRAWS = 1 << 32  # tf.data.Dataset.random draws whole numbers below it


def build_dataset_mixture(
    a: tf.data.Dataset, b: tf.data.Dataset, a_probability: float, seed: int | None = None
) -> tf.data.Dataset:
    """A data set that takes each example from `a` or from `b`, by chance.

    It is as long as the shorter one: from each position either the example of `a` or that of `b` is taken.

    Args:
        a, b: data sets with one element type.
        a_probability: of an example of `a`, from 0 to 1.
        seed: seed of the choices. Default: each iteration draws others.
    Raises:
        FedcoreError: `a_probability` is no number from 0 to 1, or `seed` no whole number.
    Example:
        >>> mixture = build_dataset_mixture(tf.data.Dataset.range(5), tf.data.Dataset.range(10, 15), 0.5, seed=1)
        >>> [int(x) % 10 for x in mixture]
        [0, 1, 2, 3, 4]
    """
    import tensorflow as tf

    probability = real_number("a_probability", a_probability)
    if not 0 <= probability <= 1:
        raise InvalidValue(f"a_probability is a number from 0 to 1, not {brief(probability)}")
    limit = int(probability * _DRAWS)
    draws = tf.data.Dataset.random(seed=None if seed is None else seed_number("seed", seed))

    def pick(first: tf.Tensor, other: tf.Tensor, draw: tf.Tensor) -> tf.Tensor:
        return tf.cond(draw < limit, lambda: first, lambda: other)

    return tf.data.Dataset.zip((a, b, draws)).map(pick)


def build_single_label_dataset(dataset: tf.data.Dataset, label_key: str, desired_label: Any) -> tf.data.Dataset:
    """The examples whose field `label_key` is `desired_label`.

    Example:
        >>> clients = TestClientData({"a": {"x": [1.0, 2.0, 3.0], "y": [0, 1, 0]}})
        >>> ones = build_single_label_dataset(clients.create_tf_dataset_for_client("a"), "y", 1)
        >>> [float(example["x"]) for example in ones]
        [2.0]
    """
    return dataset.filter(lambda example: example[label_key] == desired_label)


def build_synthethic_iid_datasets(
    client_data: ClientData, client_dataset_size: int, shuffle_buffer_size: int = 10000
) -> tf.data.Dataset:
    """An endless data set of data sets, each with examples drawn from those of all clients.

    Args:
        client_dataset_size: examples of each of the data sets.
        shuffle_buffer_size: examples among which the next one is drawn.
    Raises:
        FedcoreError: a size is no whole number of at least 1.
    Example:
        >>> data = TestClientData({"a": [1, 2], "b": [3]})
        >>> [len(list(dataset)) for dataset in build_synthethic_iid_datasets(data, 2).take(3)]
        [2, 2, 2]
    """
    size = whole_number("client_dataset_size", client_dataset_size, at_least=1)
    buffer = whole_number("shuffle_buffer_size", shuffle_buffer_size, at_least=1)
    everything = client_data.create_tf_dataset_from_all_clients()
    return everything.shuffle(buffer, reshuffle_each_iteration=True).repeat().window(size)
