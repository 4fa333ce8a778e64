"""Functions of one client's strings: all, the first, the most frequent, with counts."""

from typing import TYPE_CHECKING

import tensorflow as tf

from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.graphs.sequences.symbolic_dataset import Dataset
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.scalars import whole_number
from fedcore.tff_names import tff_names

__all__ = [
    "clipped_counts",
    "get_all_elements",
    "get_capped_elements",
    "get_capped_elements_with_counts",
    "get_top_elements",
    "get_top_elements_with_counts",
    "get_top_multi_elements",
    "get_unique_elements",
    "get_unique_elements_with_counts",
    "to_stacked_tensor",
]


def get_all_elements(dataset: Dataset, string_max_bytes: int | None = None) -> tf.Tensor:
    """The strings of all batches, in order.

    Types:
        (str[?]* -> str[?])

    Args:
        string_max_bytes: longer strings are cut after so many bytes. Default: none is.
    Raises:
        FedcoreError: a number is less than 1.
        TypeMismatch: the dataset is not of batches of strings.
    Example:
        >>> import tensorflow as tf
        >>> words = tf.data.Dataset.from_tensor_slices(['to', 'be', 'or', 'not', 'to', 'be']).batch(4)
        >>> fc.analytics.data_processing.get_all_elements(words).numpy()
        array([b'to', b'be', b'or', b'not', b'to', b'be'], dtype=object)
    """
    spec = getattr(dataset, "element_spec", None)
    if not isinstance(spec, tf.TensorSpec) or spec.dtype != tf.string or spec.shape.rank != 1:
        raise TypeMismatch(f"the dataset's elements are batches of strings, str[?], not {brief(spec)}")
    if string_max_bytes is not None:
        string_max_bytes = whole_number("string_max_bytes", string_max_bytes, at_least=1)

    def append_batch(strings: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
        if string_max_bytes is not None:
            batch = tf.strings.substr(batch, 0, string_max_bytes)
        return tf.concat([strings, batch], 0)

    return dataset.reduce(tf.constant([], tf.string), append_batch)


def get_capped_elements(
    dataset: Dataset, max_user_contribution: int, batch_size: int = 1, string_max_bytes: int | None = None
) -> tf.Tensor:
    """The strings of the first max_user_contribution // batch_size batches.

    Types:
        (str[?]* -> str[?])

    Args:
        max_user_contribution: no more strings than this, if `batch_size` is right.
        batch_size: of the dataset; a batch is taken whole or not at all.
        string_max_bytes: longer strings are cut after so many bytes. Default: none is.
    Raises:
        FedcoreError: a number is less than 1.
        TypeMismatch: the dataset is not of batches of strings.
    Example:
        >>> import tensorflow as tf
        >>> words = tf.data.Dataset.from_tensor_slices(['to', 'be', 'or', 'not']).batch(2)
        >>> fc.analytics.data_processing.get_capped_elements(words, 3, batch_size=2).numpy()
        array([b'to', b'be'], dtype=object)
    """
    return get_all_elements(_cap_dataset(dataset, max_user_contribution, batch_size), string_max_bytes)


def get_capped_elements_with_counts(
    dataset: Dataset, max_user_contribution: int, batch_size: int = 1, string_max_bytes: int | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """The different strings of the first max_user_contribution // batch_size batches, and their counts in these.

    Types:
        (str[?]* -> <str[?],int64[?]>)

    Args:
        max_user_contribution: the counts add up to no more than this, if `batch_size` is right.
        batch_size: of the dataset; a batch is taken whole or not at all.
        string_max_bytes: longer strings are cut after so many bytes. Default: none is.
    Raises:
        FedcoreError: a number is less than 1.
        TypeMismatch: the dataset is not of batches of strings.
    Example:
        >>> import tensorflow as tf
        >>> words = tf.data.Dataset.from_tensor_slices(['to', 'to', 'be']).batch(1)
        >>> strings, counts = fc.analytics.data_processing.get_capped_elements_with_counts(words, 2)
        >>> strings.numpy(), counts.numpy()
        (array([b'to'], dtype=object), array([2]))
    """
    return get_unique_elements_with_counts(_cap_dataset(dataset, max_user_contribution, batch_size), string_max_bytes)


def get_unique_elements(dataset: Dataset, string_max_bytes: int | None = None) -> tf.Tensor:
    """The different strings, in the order in which they come first.

    Types:
        (str[?]* -> str[?])

    Args:
        string_max_bytes: longer strings are cut after so many bytes. Default: none is.
    Raises:
        FedcoreError: a number is less than 1.
        TypeMismatch: the dataset is not of batches of strings.
    Example:
        >>> import tensorflow as tf
        >>> words = tf.data.Dataset.from_tensor_slices(['to', 'be', 'to']).batch(2)
        >>> fc.analytics.data_processing.get_unique_elements(words).numpy()
        array([b'to', b'be'], dtype=object)
    """
    return get_unique_elements_with_counts(dataset, string_max_bytes)[0]


def get_unique_elements_with_counts(
    dataset: Dataset, string_max_bytes: int | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """The different strings, in the order in which they come first, and their counts.

    Types:
        (str[?]* -> <str[?],int64[?]>)

    Args:
        string_max_bytes: longer strings are cut after so many bytes, before they are counted. Default: none is.
    Raises:
        FedcoreError: a number is less than 1.
        TypeMismatch: the dataset is not of batches of strings.
    Example:
        >>> import tensorflow as tf
        >>> words = tf.data.Dataset.from_tensor_slices(['to', 'be', 'to']).batch(2)
        >>> strings, counts = fc.analytics.data_processing.get_unique_elements_with_counts(words)
        >>> strings.numpy(), counts.numpy()
        (array([b'to', b'be'], dtype=object), array([2, 1]))
    """
    unique = tf.unique_with_counts(get_all_elements(dataset, string_max_bytes), tf.int64)
    return unique.y, unique.count


def get_top_elements_with_counts(
    dataset: Dataset, max_user_contribution: int, string_max_bytes: int | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """The most frequent strings and their counts, in falling order; of equal counts the string that comes first.

    Types:
        (str[?]* -> <str[?],int64[?]>)

    Args:
        max_user_contribution: how many strings at most.
        string_max_bytes: longer strings are cut after so many bytes, before they are counted. Default: none is.
    Raises:
        FedcoreError: a number is less than 1.
        TypeMismatch: the dataset is not of batches of strings.
    Example:
        >>> import tensorflow as tf
        >>> words = tf.data.Dataset.from_tensor_slices(['or', 'be', 'to', 'be']).batch(2)
        >>> strings, counts = fc.analytics.data_processing.get_top_elements_with_counts(words, 2)
        >>> strings.numpy(), counts.numpy()
        (array([b'be', b'or'], dtype=object), array([2, 1]))
    """
    most = whole_number("max_user_contribution", max_user_contribution, at_least=1)
    strings, counts = get_unique_elements_with_counts(dataset, string_max_bytes)
    top = tf.math.top_k(counts, tf.minimum(most, tf.size(counts)))
    return tf.gather(strings, top.indices), top.values


def get_top_elements(dataset: Dataset, max_user_contribution: int, string_max_bytes: int | None = None) -> tf.Tensor:
    """The most frequent strings, in falling order of their counts, each once.

    Types:
        (str[?]* -> str[?])

    Args:
        max_user_contribution: how many strings at most.
        string_max_bytes: longer strings are cut after so many bytes, before they are counted. Default: none is.
    Raises:
        FedcoreError: a number is less than 1.
        TypeMismatch: the dataset is not of batches of strings.
    Example:
        >>> import tensorflow as tf
        >>> words = tf.data.Dataset.from_tensor_slices(['or', 'be', 'to', 'be']).batch(2)
        >>> fc.analytics.data_processing.get_top_elements(words, 1).numpy()
        array([b'be'], dtype=object)
    """
    return get_top_elements_with_counts(dataset, max_user_contribution, string_max_bytes)[0]


def get_top_multi_elements(
    dataset: Dataset, max_user_contribution: int, string_max_bytes: int | None = None
) -> tf.Tensor:
    """The most frequent strings, each as often as in the dataset.

    Types:
        (str[?]* -> str[?])

    Args:
        max_user_contribution: how many different strings at most.
        string_max_bytes: longer strings are cut after so many bytes, before they are counted. Default: none is.
    Raises:
        FedcoreError: a number is less than 1.
        TypeMismatch: the dataset is not of batches of strings.
    Example:
        >>> import tensorflow as tf
        >>> words = tf.data.Dataset.from_tensor_slices(['or', 'be', 'to', 'be']).batch(2)
        >>> fc.analytics.data_processing.get_top_multi_elements(words, 1).numpy()
        array([b'be', b'be'], dtype=object)
    """
    return tf.repeat(*get_top_elements_with_counts(dataset, max_user_contribution, string_max_bytes))


def to_stacked_tensor(ds: Dataset) -> TensorStructure:
    """The elements of a dataset, stacked leaf by leaf along a new first axis.

    Types, for T of known shapes:
        (T* -> T[?]), each leaf with one axis more

    Raises:
        FedcoreError: a shape is not known: of batches, drop the remainder.
    Example:
        >>> import tensorflow as tf
        >>> fc.analytics.data_processing.to_stacked_tensor(tf.data.Dataset.range(3)).numpy()
        array([0, 1, 2])
    """
    if not hasattr(ds, "element_spec"):
        raise TypeMismatch(f"to_stacked_tensor takes a dataset, not {brief(ds)}")
    if not all(spec.shape.is_fully_defined() for spec in tf.nest.flatten(ds.element_spec)):
        raise InvalidValue(
            f"to_stacked_tensor: the dataset's elements are of known shapes, not {brief(ds.element_spec)}; batch with "
            "drop_remainder=True"
        )
    nothing = tf.nest.map_structure(lambda spec: tf.zeros([0, *spec.shape], spec.dtype), ds.element_spec)
    return ds.reduce(
        nothing, lambda rows, row: tf.nest.map_structure(lambda a, b: tf.concat([a, b[None]], 0), rows, row)
    )


def clipped_counts(
    dataset: Dataset,
    max_words_per_user: int | None = None,
    multi_contribution: bool = True,
    batch_size: int = 1,
    string_max_bytes: int = 10,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The different strings and counts that one client contributes to heavy hitters.

    Types:
        (str[?]* -> <str[?],int64[?]>)

    Args:
        max_words_per_user: how many strings a client contributes: with `multi_contribution` the first ones, counted as
            often as they come, otherwise the most frequent different ones. Default: all.
        multi_contribution: whether a string counts as often as it comes, or once.
        batch_size: of the dataset, if the first strings are taken.
        string_max_bytes: longer strings are cut after so many bytes, before they are counted.
    Raises:
        FedcoreError: a number is less than 1.
        TypeMismatch: the dataset is not of batches of strings.
    Example:
        >>> import tensorflow as tf
        >>> words = tf.data.Dataset.from_tensor_slices(['to', 'be', 'to']).batch(1)
        >>> strings, counts = fc.analytics.data_processing.clipped_counts(words, multi_contribution=False)
        >>> counts.numpy()
        array([1, 1])
    """
    if max_words_per_user is None:
        strings, counts = get_unique_elements_with_counts(dataset, string_max_bytes)
    elif multi_contribution:
        strings, counts = get_capped_elements_with_counts(dataset, max_words_per_user, batch_size, string_max_bytes)
    else:
        strings, counts = get_top_elements_with_counts(dataset, max_words_per_user, string_max_bytes)
    return strings, counts if multi_contribution else tf.ones_like(counts)


def _cap_dataset(dataset: Dataset, max_user_contribution: int, batch_size: int) -> Dataset:
    """The first max_user_contribution // batch_size batches."""
    most = whole_number("max_user_contribution", max_user_contribution, at_least=1)
    size = whole_number("batch_size", batch_size, at_least=1)
    return dataset.take(most // size) if hasattr(dataset, "take") else dataset  # get_all_elements refuses others


if not TYPE_CHECKING:
    __getattr__ = tff_names("fedcore.analytics.data_processing")
