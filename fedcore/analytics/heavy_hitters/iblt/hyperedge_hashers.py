"""Hash functions that give each string one cell in each of a table's repetitions.

All hashes are SipHash with a key of the seed, so they are the same bits on every machine.

Decision 0159.
"""

import abc

import tensorflow as tf

from fedcore.errors import InvalidValue
from fedcore.scalars import real_number, seed_number, whole_number

_BUCKETS = 2**31  # of a hash that becomes a fraction from 0 to 1


def keyed_hash(strings: tf.types.experimental.TensorLike, num_buckets: int, seed: int, stream: int) -> tf.Tensor:
    """int64: the SipHash of each string by the key (`seed`, `stream`), modulo `num_buckets`."""
    return tf.strings.to_hash_bucket_strong(strings, num_buckets, [seed, stream])


class HyperEdgeHasher(abc.ABC):
    """One cell of each repetition for each string."""

    def __init__(self, seed: int, table_size: int, repetitions: int) -> None:
        self._seed = seed_number("seed", seed)
        self._table_size = whole_number("table_size", table_size, at_least=1)
        self._repetitions = whole_number("repetitions", repetitions, at_least=3)

    @abc.abstractmethod
    def cells(self, strings: tf.types.experimental.TensorLike) -> tf.Tensor:
        """int64 of shape [strings, repetitions]: the cell of each string in each repetition."""

    def get_hash_indices_tf(self, input_strings: tf.types.experimental.TensorLike) -> tf.Tensor:
        """int64 of shape [strings, repetitions, 3]: the number of the string, the repetition and the cell."""
        cells = self.cells(input_strings)
        rows, columns = tf.meshgrid(
            tf.range(tf.shape(cells, tf.int64)[0]), tf.range(self._repetitions, dtype=tf.int64), indexing="ij"
        )
        return tf.stack([rows, columns, cells], 2)


class RandomHyperEdgeHasher(HyperEdgeHasher):
    """Cells that are independent of each other.

    Types:
        get_hash_indices_tf  (str[n] -> int64[n,repetitions,3]), of (string, repetition, cell)

    Args:
        seed: of the hash functions.
        table_size: cells of a repetition.
        repetitions: 3 or more.
    Raises:
        FedcoreError: a number is outside its range.
    Source: Goodrich and Mitzenmacher 2011, "Invertible Bloom lookup tables", arXiv:1101.2245, section 2.
    Example:
        >>> hasher = fc.analytics.heavy_hitters.iblt.RandomHyperEdgeHasher(seed=0, table_size=10, repetitions=3)
        >>> hasher.get_hash_indices_tf(['a', 'b']).shape
        TensorShape([2, 3, 3])
    """

    def cells(self, strings: tf.types.experimental.TensorLike) -> tf.Tensor:
        return tf.stack([keyed_hash(strings, self._table_size, self._seed, r) for r in range(self._repetitions)], 1)


class CoupledHyperEdgeHasher(HyperEdgeHasher):
    """Cells of a string near each other, so that large tables decode when they are fuller.

    Types:
        get_hash_indices_tf  (str[n] -> int64[n,repetitions,3]), of (string, repetition, cell)

    Args:
        seed: of the hash functions.
        table_size: cells of a repetition.
        repetitions: 3 or more.
        rescale_factor: z in the paper: the cells of a string are within 1 / (z + 1) of a table.
    Raises:
        FedcoreError: a number is outside its range.
    Source: Walzer 2021, "Peeling close to the orientability threshold", arXiv:2001.10500.
    Example:
        >>> hasher = fc.analytics.heavy_hitters.iblt.CoupledHyperEdgeHasher(
        ...     seed=0, table_size=10, repetitions=3, rescale_factor=4)
        >>> hasher.get_hash_indices_tf(['a', 'b']).shape
        TensorShape([2, 3, 3])
    """

    def __init__(self, seed: int, table_size: int, repetitions: int, rescale_factor: float) -> None:
        super().__init__(seed, table_size, repetitions)
        self._rescale_factor = float(real_number("rescale_factor", rescale_factor, above=0))
        if rescale_factor > table_size - 1:
            raise InvalidValue(f"rescale_factor is at most table_size - 1 = {table_size - 1}, not {rescale_factor}")

    def cells(self, strings: tf.types.experimental.TensorLike) -> tf.Tensor:
        def fraction(stream: int) -> tf.Tensor:
            return tf.cast(keyed_hash(strings, _BUCKETS, self._seed, stream), tf.float64) / _BUCKETS

        position = fraction(self._repetitions) * self._rescale_factor
        scale = self._table_size / (self._rescale_factor + 1)
        return tf.stack(
            [tf.cast(tf.floor((position + fraction(r)) * scale), tf.int64) for r in range(self._repetitions)], 1
        )
