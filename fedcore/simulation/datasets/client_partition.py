"""Data sets without clients, whose examples a partitioner gives to clients."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np
from numpy.typing import ArrayLike

from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.simulation import partition
from fedcore.simulation.datasets.client_data import ArrayClientData, ClientData, numbered_ids
from fedcore.simulation.datasets.conversions import (
    array_columns,
    frame_columns,
    huggingface_reader,
    rows_at_clients,
    torch_reader,
)
from fedcore.simulation.datasets.structures import Structure, num_rows, rows_of

_NAME = "split_over_clients"  # for messages
_PARTITIONERS = ("iid", "dirichlet", "shards", "quantity_skew", "power_law")
_WITHOUT_LABELS = (partition.iid, partition.quantity_skew, partition.power_law)
"""Partitioners that look at the number of labels only."""


def split_over_clients(
    examples: Any,
    num_clients: int,
    by: str | Callable[..., partition.Parts] = "iid",
    *,
    labels: str | ArrayLike | None = None,
    seed: int = 0,
    **options: Any,
) -> ClientData:
    """Client data from a data set without clients: each example goes to one of `num_clients` clients.

    Args:
        examples: arrays in a pair (x, y), a dict or alone; a `pandas.DataFrame`; a `datasets.Dataset` of Hugging Face;
            a `tf.data.Dataset` of examples, not of batches; or a map-style data set of PyTorch. Those of Hugging Face
            and PyTorch are read client by client, when a client is asked for. The others are held in memory, in the
            order of the clients: besides `examples` itself, once.
        num_clients: number of clients, named `client_0`, `client_1`, …, with as many digits as sort them.
        by: a partitioner of `fc.simulation.partition` or its name: `iid`, `dirichlet` (`alpha=`), `shards`
            (`shards_per_client=`), `quantity_skew` (`alpha=`) or `power_law` (`exponent=`); or a function
            (labels, num_clients, seed=…) -> the indices of each client's examples.
        labels: for partitioners that look at labels: the name of a column, or an array with the label of each example.
            Default: y of a pair (x, y).
        seed, options: further arguments of the partitioner.
    Raises:
        TypeMismatch: `examples` is nothing of these, or the partitioner does not take the options.
        InvalidValue: there are fewer examples than clients, no labels, or not one label for each example.
    Example:
        >>> x, y = np.zeros((60, 2), np.float32), np.repeat([0, 1, 2], 20)
        >>> data = split_over_clients((x, y), 30, "shards", shards_per_client=1)
        >>> [int(label) for _, label in data.create_tf_dataset_for_client("client_07")]
        [0, 0]
    """
    partitioner = _partitioner(by)
    source = _source(examples)
    arguments = _labels_of(source, labels, partitioner), num_clients
    try:
        inspect.signature(partitioner).bind(*arguments, seed=seed, **options)
    except TypeError as error:
        takes = ", ".join(inspect.signature(partitioner).parameters)
        raise TypeMismatch(f"{_NAME}: {partitioner.__name__} takes {takes}: {error}") from None
    parts = partitioner(*arguments, seed=seed, **options)
    return source.at_clients(dict(zip(numbered_ids(len(parts)), parts, strict=True)))


@attrs.frozen
class _Source:
    """Examples without clients.

    Args:
        size: number of examples.
        names: of the columns that `column` reads.
        column: name -> the column.
        at_clients: makes client data of the rows of each client, by its id.
        labels: y of a pair (x, y); None for other examples.
    """

    size: int
    names: list[str]
    column: Callable[[str], Any]
    at_clients: Callable[[Mapping[str, np.ndarray]], ClientData]
    labels: np.ndarray | None = None


def _source(examples: Any) -> _Source:
    """The examples of `split_over_clients`, by what they are; TypeMismatch if they are nothing that it takes."""
    if hasattr(examples, "element_spec"):  # a tf.data.Dataset
        return _in_memory(rows_of(examples, "leave .batch(n) out, or pad examples to one shape"))
    if hasattr(examples, "column_names"):  # a datasets.Dataset
        read = huggingface_reader(_NAME, examples)
        names, plain = list(examples.column_names), examples.with_format(None)
        return _Source(len(examples), names, lambda name: plain[name][:], lambda parts: rows_at_clients(parts, read))
    if hasattr(examples, "columns"):  # a data frame
        return _in_memory(frame_columns(_NAME, examples))
    if isinstance(examples, Mapping | tuple | np.ndarray) or hasattr(examples, "__array__"):
        return _in_memory(array_columns(examples))
    if hasattr(examples, "__getitem__") and hasattr(examples, "__len__") and not isinstance(examples, list | str):
        read = torch_reader(_NAME, examples)
        return _Source(len(examples), [], lambda name: None, lambda parts: rows_at_clients(parts, read))
    fix = "; fix: a pair of arrays is a tuple (x, y)" if isinstance(examples, list) and len(examples) == 2 else ""
    raise TypeMismatch(
        f"{_NAME} takes arrays, a data frame, a tf.data.Dataset, a datasets.Dataset or a map-style data set of PyTorch,"
        f" not {brief(examples)}{fix}"
    )


def _in_memory(columns: Structure) -> _Source:
    """Examples that are arrays in memory."""
    named = columns if isinstance(columns, Mapping) else {}
    is_pair = isinstance(columns, tuple) and len(columns) >= 2 and isinstance(columns[1], np.ndarray)
    return _Source(
        num_rows(columns, f"{_NAME}: "),
        [name for name, column in named.items() if isinstance(column, np.ndarray)],
        lambda name: named[name],
        lambda parts: ArrayClientData.from_partition(columns, parts),
        columns[1] if is_pair else None,
    )


def _partitioner(by: Any) -> Callable[..., partition.Parts]:
    """The partitioner that `by` is or names."""
    if callable(by):
        return by
    if by not in _PARTITIONERS:
        raise InvalidValue(
            f"{_NAME}: by is a function (labels, num_clients, seed=…) or one of {', '.join(_PARTITIONERS)}, "
            f"not {brief(by)}"
        )
    return getattr(partition, by)


def _labels_of(source: _Source, labels: Any, partitioner: Callable) -> np.ndarray:
    """[examples]: the labels that the user gives or names; zeros if there are none, for `_WITHOUT_LABELS`."""
    if isinstance(labels, str):
        if labels not in source.names:
            has = ", ".join(map(repr, source.names)) or "none with names"
            raise InvalidValue(f"{_NAME}: there is no column {labels!r}; there are {has}")
        labels = source.column(labels)
    if labels is None and partitioner in _WITHOUT_LABELS:
        return np.zeros(source.size, np.int32)
    vector = source.labels if labels is None else np.asarray(labels)
    if vector is None:
        has = f"the name of its column, one of {', '.join(map(repr, source.names))}" if source.names else "an array"
        raise InvalidValue(f"{_NAME}: {partitioner.__name__} looks at labels; fix: labels={has}")
    if vector.shape == (source.size, 1):
        return vector[:, 0]
    if vector.shape != (source.size,):
        is_one_hot = vector.ndim == 2 and len(vector) == source.size
        fix = "; fix: labels=y.argmax(-1) for one-hot labels y" if is_one_hot else ""
        raise InvalidValue(
            f"{_NAME}: there are {source.size} examples, and labels have the shape {list(vector.shape)}{fix}"
        )
    return vector
