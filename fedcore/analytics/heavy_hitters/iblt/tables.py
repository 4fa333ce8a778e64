"""Invertible Bloom lookup tables: sums of strings and counts from which the strings can be read again.

A table has some repetitions, and a repetition has cells. A string with a count adds to one cell of each repetition:
count times the string's integers, the count, and count times a checksum of the string, all modulo a prime. Tables are
added cell by cell. A cell that only one string added to tells the string and its count; taking them from the other
repetitions frees other cells, until the table is empty.

Source: Goodrich and Mitzenmacher 2011, "Invertible Bloom lookup tables", arXiv:1101.2245, Table 1 for the sizes.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fedcore.analytics.heavy_hitters.iblt.chunkers import CharacterEncoding, create_chunker
from fedcore.analytics.heavy_hitters.iblt.hyperedge_hashers import (
    CoupledHyperEdgeHasher,
    HyperEdgeHasher,
    RandomHyperEdgeHasher,
    keyed_hash,
)
from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.scalars import seed_number, whole_number

DEFAULT_REPETITIONS = 3
DEFAULT_FIELD_SIZE = 2**31 - 1
_CELLS_PER_STRING = {3: 1.222, 4: 1.295, 5: 1.425, 6: 1.570}  # of all repetitions together, where decoding is likely
_LARGE_CAPACITY = 100_000  # from here on, a coupled hasher decodes fuller tables than a random one
_CHECK_STREAM = -1  # of the checksums; hashers take the streams from 0 on


class _Table:
    """The layout of a table, which its encoder and its decoder compute alike, and the work of both.

    A table is int64 of shape [repetitions, table_size, num_chunks + 2]. A cell has, modulo `field_size`, the sum of
    count times each of the string's `num_chunks` integers, then that of the counts, then that of count times checksum.
    """

    def __init__(
        self,
        capacity: int,
        string_max_bytes: int,
        encoding: CharacterEncoding,
        seed: int,
        repetitions: int,
        hash_family: str | None,
        hash_family_params: Mapping[str, Any] | None,
        field_size: int,
    ) -> None:
        self.capacity = whole_number("capacity", capacity, at_least=1)
        self.seed = seed_number("seed", seed)
        self.repetitions = whole_number("repetitions", repetitions, at_least=3)
        self.field_size = whole_number("field_size", field_size, at_least=257)
        if field_size > DEFAULT_FIELD_SIZE or any(field_size % n == 0 for n in range(2, math.isqrt(field_size) + 1)):
            raise InvalidValue(f"field_size is a prime of at most 2^31 - 1, not {field_size}")
        self.chunker = create_chunker(
            string_max_bytes=string_max_bytes, encoding=encoding, max_chunk_value=self.field_size
        )
        self.num_chunks = self.chunker.get_num_chunks()
        cells = _CELLS_PER_STRING.get(self.repetitions, self.repetitions / 4) * self.capacity
        self.table_size = int(1.1 * cells / self.repetitions + 10)  # of a repetition, with some to spare
        self.shape = (self.repetitions, self.table_size, self.num_chunks + 2)
        self.hasher = self._hasher(hash_family, dict(hash_family_params or {}))

    def _hasher(self, family: str | None, options: dict) -> HyperEdgeHasher:
        if family is None:
            family = "coupled" if self.capacity >= _LARGE_CAPACITY else "random"
        if family == "random":
            return RandomHyperEdgeHasher(self.seed, self.table_size, self.repetitions, **options)
        if family == "coupled":
            options.setdefault("rescale_factor", 0.25 * self.capacity**0.5)
            return CoupledHyperEdgeHasher(self.seed, self.table_size, self.repetitions, **options)
        raise InvalidValue(f"hash_family is 'random' or 'coupled', not {brief(family)}")

    def checksums(self, strings: tf.Tensor) -> tf.Tensor:
        """int64 of shape [strings], from 0 to below the prime."""
        return keyed_hash(strings, self.field_size, self.seed, _CHECK_STREAM)

    def positions(self, strings: tf.Tensor) -> tf.Tensor:
        """int64 of shape [strings * repetitions, 2]: the repetition and the cell, string by string."""
        return tf.reshape(self.hasher.get_hash_indices_tf(strings)[:, :, 1:], [-1, 2])

    def entries(self, strings: tf.Tensor, chunks: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
        """int64 of shape [strings * repetitions, chunks + 2]: what each string adds to its cells, string by string."""
        rows = tf.concat([chunks, tf.ones_like(chunks[:, :1]), self.checksums(strings)[:, None]], 1)
        return tf.repeat(rows * counts[:, None] % self.field_size, self.repetitions, axis=0)

    def encode(
        self, strings: tf.Tensor, counts: tf.Tensor, cut_long_strings: bool
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """(the table of strings; their `positions`; bool [strings], which of them are in it).

        Args:
            cut_long_strings: whether strings that are too long are cut; otherwise they are left out.
        """
        chunks, prefixes = self.chunker.encode_tensorflow(strings)
        mask = tf.ones_like(counts, tf.bool) if cut_long_strings else tf.equal(prefixes, strings)
        counts = tf.where(mask, counts % self.field_size, 0)
        positions = self.positions(prefixes)
        table = tf.scatter_nd(positions, self.entries(prefixes, chunks, counts), self.shape) % self.field_size
        return table, positions, mask

    def peel(self, table: tf.Tensor, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Decodes repetition by repetition, until none has a cell of one string.

        It also ends when there are more strings than cells: then the tables of the repetitions contradict each other.

        Args:
            values: the sums of the values of each cell's strings, of shape [repetitions, table_size, n].
        Returns:
            The strings, their counts, their values of shape [strings, n], and the sum of the counts that are left.
        """
        count_at, prime = self.num_chunks, self.field_size  # in a cell, the count stands behind the chunks

        def inverse(counts: tf.Tensor) -> tf.Tensor:
            """1 / counts modulo the prime, by Fermat: counts^(prime - 2)."""
            power, result = counts, tf.ones_like(counts)
            for bit in range((prime - 2).bit_length()):
                if prime - 2 >> bit & 1:
                    result = result * power % prime
                power = power * power % prime
            return result

        def step(turn: tf.Tensor, idle: tf.Tensor, table: tf.Tensor, values: tf.Tensor, *results: tf.Tensor) -> tuple:
            """Moves the strings that are alone in a cell of one repetition from the table to the results.

            Args:
                turn: number of the step; each step takes the next repetition.
                idle: how many steps before this one, without a break, moved no string.
                values: as for `peel`.
                results: the strings that were moved, their counts and their values.
            Returns:
                The arguments of the next step.
            """
            repetition = turn % self.repetitions
            cells = table[repetition]
            counts = cells[:, count_at]
            chunks = cells[:, :count_at] * inverse(counts)[:, None] % prime
            strings = self.chunker.decode_tensorflow(chunks)
            cell_numbers = tf.range(self.table_size, dtype=tf.int64)
            is_single = (  # in a `tf.Graph()` == compares objects
                tf.not_equal(counts, 0)
                & tf.equal(cells[:, count_at + 1], counts * self.checksums(strings) % prime)
                & tf.equal(tf.gather(self.hasher.cells(strings), repetition, axis=1), cell_numbers)
            )
            single_cells = tf.where(is_single)[:, 0]
            strings, counts = tf.gather(strings, single_cells), tf.gather(counts, single_cells)
            chunks = tf.gather(chunks, single_cells)
            sums = tf.gather(values[repetition], single_cells)
            positions = self.positions(strings)
            table = tf.tensor_scatter_nd_sub(table, positions, self.entries(strings, chunks, counts)) % prime
            values = tf.tensor_scatter_nd_sub(values, positions, tf.repeat(sums, self.repetitions, axis=0))
            extended = [tf.concat([a, b], 0) for a, b in zip(results, (strings, counts, sums), strict=True)]
            return turn + 1, tf.where(tf.size(single_cells) > 0, 0, idle + 1), table, values, *extended

        table = tf.ensure_shape(tf.cast(table, tf.int64) % prime, self.shape)
        width = values.shape[2]
        nothing = (tf.constant([], tf.string), tf.constant([], tf.int64), tf.zeros([0, width], values.dtype))
        most_strings, row = self.repetitions * self.table_size, tf.TensorShape([None])
        _, _, left, _, strings, counts, sums = tf.while_loop(
            lambda turn, idle, table, values, strings, *rest: (
                (idle < self.repetitions) & (tf.size(strings) <= most_strings)
            ),
            step,
            (tf.constant(0), tf.constant(0), table, values, *nothing),
            shape_invariants=(
                tf.TensorShape([]),
                tf.TensorShape([]),
                table.shape,
                values.shape,
                row,
                row,
                tf.TensorShape([None, width]),
            ),
            parallel_iterations=1,
        )
        # Each string that is left counts in every repetition; rounded up, so that 0 means that no count is left.
        return strings, counts, sums, -(-tf.reduce_sum(left[:, :, count_at]) // self.repetitions)


class IbltEncoder:
    """Makes the table of one client's strings.

    Types, for `num_chunks` integers of a string:
        compute_iblt  (<str[n],int64[n]> -> int64[repetitions,table_size,num_chunks+2])

    Tables of equal arguments are added: element by element, in int64 or modulo `field_size`.

    Args:
        capacity: how many different strings the sum of all tables shall hold. With more of them decoding is likely to
            fail.
        string_max_bytes: longer strings are cut after so many bytes.
        encoding: of the strings. Default: UTF-8.
        drop_strings_above_max_length: longer strings are left out in place of cut.
        seed: of the hash functions.
        repetitions: 3 or more.
        hash_family: 'random' or 'coupled'. Default: coupled from a capacity of 100,000.
        hash_family_params: further arguments of the hasher, such as `rescale_factor` of a coupled one.
        field_size: the prime; greater than any count, and than 256.
    Raises:
        FedcoreError: a number is outside its range; by `compute_iblt`, there is not one count for each string, or a
            count is not from 0 to below `field_size` (in a graph a `tf.errors.InvalidArgumentError`).
        TypeMismatch: by `compute_iblt`, the strings are no strings, or the counts no integers.
    Source: Goodrich and Mitzenmacher 2011, "Invertible Bloom lookup tables", arXiv:1101.2245; the hashes and the
        bits of the integers are ours, so that tables of TensorFlow Federated cannot be read.
    Example:
        >>> iblt = fc.analytics.heavy_hitters.iblt
        >>> table = iblt.IbltEncoder(10, string_max_bytes=8).compute_iblt(['a', 'b'], [1, 5])
        >>> sorted(iblt.IbltDecoder(table, 10, string_max_bytes=8).get_freq_estimates().items())
        [('a', 1), ('b', 5)]
    """

    def __init__(
        self,
        capacity: int,
        string_max_bytes: int,
        *,
        encoding: CharacterEncoding = CharacterEncoding.UTF8,
        drop_strings_above_max_length: bool = False,
        seed: int = 0,
        repetitions: int = DEFAULT_REPETITIONS,
        hash_family: str | None = None,
        hash_family_params: Mapping[str, Any] | None = None,
        field_size: int = DEFAULT_FIELD_SIZE,
    ) -> None:
        self._table = _Table(
            capacity, string_max_bytes, encoding, seed, repetitions, hash_family, hash_family_params, field_size
        )
        self._cuts_long_strings = not drop_strings_above_max_length

    def compute_chunks(self, input_strings: tf.types.experimental.TensorLike) -> tuple[tf.Tensor, tf.Tensor]:
        """The integers of strings, of shape [strings, chunks], and the strings cut to the bytes that they hold."""
        return self._table.chunker.encode_tensorflow(_strings(input_strings))

    def compute_iblt(self, input_strings: Any, input_counts: Any = None) -> tf.Tensor:
        """The table; without counts each string counts once."""
        strings = _strings(input_strings)
        if input_counts is None:
            counts = tf.ones_like(strings, tf.int64)
        else:
            counts = _counts(input_counts, strings, self._table.field_size)
        return self._table.encode(strings, counts, self._cuts_long_strings)[0]


class IbltTensorEncoder:
    """Makes the table of one client's strings, each of which counts once, and a table of values of the strings.

    Types, for `num_chunks` integers of a string and values of dtype D, whose elements are as many as `size`:
        compute_iblt  (<str[n],D[n,…]> -> <int64[repetitions,table_size,num_chunks+2],D[repetitions,table_size,size]>)

    Without a shape of values there is no second table: it is an empty int64.

    Args:
        value_shape: of the values of one string.
        args, options: those of an `IbltEncoder`.
    Raises:
        FedcoreError: a number is outside its range, or by `compute_iblt`, there is not one value for each string.
        TypeMismatch: by `compute_iblt`, the strings are no strings, or the values no numbers.
    Example:
        >>> iblt = fc.analytics.heavy_hitters.iblt
        >>> tables = iblt.IbltTensorEncoder([2], 10, string_max_bytes=8).compute_iblt(['a'], [[1, 2]])
        >>> strings, counts, values, left = iblt.decode_iblt_tensor_tf(*tables, 10, 8, value_shape=[2])
        >>> values.numpy()
        array([[1, 2]], dtype=int32)
    """

    def __init__(self, value_shape: Sequence[int], *args: Any, **options: Any) -> None:
        self._encoder = IbltEncoder(*args, **options)
        self._value_shape = _shape(value_shape)

    def compute_iblt(
        self, input_strings: tf.types.experimental.TensorLike, input_values: tf.types.experimental.TensorLike
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The table of the strings and the table of the values."""
        strings, table = _strings(input_strings), self._encoder._table
        counts = tf.ones_like(strings, tf.int64)
        sketch, positions, mask = table.encode(strings, counts, self._encoder._cuts_long_strings)
        if not self._value_shape:
            return sketch, tf.constant([], tf.int64)
        values = tf.convert_to_tensor(input_values)
        if not (values.dtype.is_integer or values.dtype.is_floating):
            raise TypeMismatch(f"compute_iblt takes values that are numbers, not {values.dtype.name}")
        if not values.shape.is_compatible_with([strings.shape[0], *self._value_shape]):
            raise InvalidValue(
                f"compute_iblt: {strings.shape[0]} strings have values of shape {list(self._value_shape)} each, "
                f"but input_values is of shape {values.shape}"
            )
        rows = tf.reshape(values, [-1, math.prod(self._value_shape)])
        rows = tf.where(mask[:, None], rows, tf.zeros_like(rows))
        shape = [table.repetitions, table.table_size, rows.shape[1]]
        return sketch, tf.scatter_nd(positions, tf.repeat(rows, table.repetitions, axis=0), shape)


class IbltDecoder:
    """Reads the strings and their counts from a sum of tables.

    Types:
        get_freq_estimates_tf  (-> <str[?],int64[?],int64>), the strings, their counts, the number that was not decoded

    The strings are in no particular order, but always in the same one. The number that was not decoded is the sum of
    the counts that are left.

    Args:
        iblt: the sum of the tables of `IbltEncoder`s with equal arguments.
        args, options: those of an `IbltEncoder`.
    Raises:
        FedcoreError: a number is outside its range, or the table is not of the shape that the arguments give.
        TypeMismatch: the table is not of integers.
    Source: Goodrich and Mitzenmacher 2011, arXiv:1101.2245, section 2. Of a repetition all cells of a single string are
        taken at once, so that decoding takes about as many steps as the logarithm of the capacity.
    Example:
        >>> iblt = fc.analytics.heavy_hitters.iblt
        >>> encoder = iblt.IbltEncoder(10, string_max_bytes=8)
        >>> table = encoder.compute_iblt(['a', 'b']) + encoder.compute_iblt(['a'])
        >>> sorted(iblt.IbltDecoder(table, 10, string_max_bytes=8).get_freq_estimates().items())
        [('a', 2), ('b', 1)]
    """

    def __init__(self, iblt: tf.types.experimental.TensorLike, *args: Any, **options: Any) -> None:
        self._table = IbltEncoder(*args, **options)._table
        self._sums = tf.convert_to_tensor(iblt)
        if not self._sums.shape.is_compatible_with(self._table.shape):
            raise InvalidValue(
                f"the table of these arguments is of shape {list(self._table.shape)}, not {self._sums.shape}"
            )
        if not self._sums.dtype.is_integer:
            raise TypeMismatch(f"a sum of tables is of integers, not {self._sums.dtype.name}")

    def get_freq_estimates_tf(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The strings, their counts, and the number that was not decoded."""
        nothing = tf.zeros([*self._table.shape[:2], 1], tf.int64)
        strings, counts, _, left = self._table.peel(self._sums, nothing)
        return strings, counts, left

    def decode_string_from_chunks(self, chunks: tf.types.experimental.TensorLike) -> tf.Tensor:
        """The string of the integers that an encoder's `compute_chunks` makes of it."""
        return self._table.chunker.decode_tensorflow(chunks)[0]

    def get_freq_estimates(self) -> dict[str | None, int]:
        """The counts by string, in Python; what was not decoded is at None, if there is any."""
        strings, counts, left = (x.numpy() for x in self.get_freq_estimates_tf())
        return _by_string(strings, counts) | _undecoded_count(left)


class IbltTensorDecoder:
    """Reads the strings, their counts and the sums of their values from sums of tables.

    Types, for values of dtype D and shape `value_shape`:
        get_freq_estimates_tf  (-> <str[?],int64[?],D[?,…],int64>), with the number that was not decoded last

    Args:
        iblt: the sum of the first tables of `IbltTensorEncoder`s with equal arguments.
        iblt_values: the sum of their second tables.
        value_shape: of the values of one string.
        args, options: those of an `IbltEncoder`.
    Raises:
        FedcoreError: a number is outside its range, or a table is not of the shape that the arguments give.
    Example:
        >>> iblt = fc.analytics.heavy_hitters.iblt
        >>> tables = iblt.IbltTensorEncoder([1], 10, string_max_bytes=8).compute_iblt(['a'], [[7]])
        >>> iblt.IbltTensorDecoder(*tables, [1], 10, string_max_bytes=8).get_freq_estimates()
        ({'a': 1}, {'a': [7]})
    """

    def __init__(
        self,
        iblt: tf.types.experimental.TensorLike,
        iblt_values: tf.types.experimental.TensorLike,
        value_shape: Sequence[int],
        *args: Any,
        **options: Any,
    ) -> None:
        self._decoder = IbltDecoder(iblt, *args, **options)
        self._value_shape = _shape(value_shape)
        self._values = tf.convert_to_tensor(iblt_values)
        expected = [*self._decoder._table.shape[:2], math.prod(self._value_shape)]
        if self._value_shape and not self._values.shape.is_compatible_with(expected):
            raise InvalidValue(f"the values of these arguments are of shape {expected}, not {self._values.shape}")

    def get_freq_estimates_tf(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """The strings, their counts, the sums of their values, and the number that was not decoded."""
        if not self._value_shape:
            strings, counts, left = self._decoder.get_freq_estimates_tf()
            return strings, counts, tf.constant([], tf.int64), left
        table = self._decoder._table
        values = tf.ensure_shape(self._values, [*table.shape[:2], math.prod(self._value_shape)])
        strings, counts, sums, left = table.peel(self._decoder._sums, values)
        return strings, counts, tf.reshape(sums, [-1, *self._value_shape]), left

    def get_freq_estimates(self) -> tuple[dict[str | None, int], dict[str | None, list]]:
        """The counts and the sums of the values by string, in Python; what was not decoded is counted at None."""
        strings, counts, values, left = (x.numpy() for x in self.get_freq_estimates_tf())
        return _by_string(strings, counts) | _undecoded_count(left), _by_string(strings, values)


def decode_iblt_tf(
    iblt: tf.types.experimental.TensorLike, capacity: int, string_max_bytes: int, **options: Any
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The strings of a sum of tables, their counts, and the number that was not decoded.

    Types:
        (int64[repetitions,table_size,num_chunks+2] -> <str[?],int64[?],int64>)

    Args:
        iblt: the sum of the tables of `IbltEncoder`s with equal arguments.
        options: those of an `IbltEncoder`.
    Raises:
        FedcoreError: a number is outside its range, or the table is not of the shape that the arguments give.
    Example:
        >>> iblt = fc.analytics.heavy_hitters.iblt
        >>> strings, counts, left = iblt.decode_iblt_tf(iblt.IbltEncoder(10, 8).compute_iblt(['a', 'a']), 10, 8)
        >>> strings.numpy(), counts.numpy(), int(left)
        (array([b'a'], dtype=object), array([2]), 0)
    """
    return IbltDecoder(iblt, capacity, string_max_bytes, **options).get_freq_estimates_tf()


def decode_iblt_tensor_tf(
    iblt: tf.types.experimental.TensorLike,
    iblt_values: tf.types.experimental.TensorLike,
    capacity: int,
    string_max_bytes: int,
    value_shape: Sequence[int],
    **options: Any,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """The strings of sums of tables, their counts, the sums of their values, and the number that was not decoded.

    Types, for values of dtype D:
        (<int64[repetitions,table_size,num_chunks+2],D[repetitions,table_size,size]> -> <str[?],int64[?],D[?,…],int64>)

    Args:
        iblt: the sum of the first tables of `IbltTensorEncoder`s with equal arguments.
        iblt_values: the sum of their second tables.
        value_shape: of the values of one string.
        options: those of an `IbltEncoder`.
    Raises:
        FedcoreError: a number is outside its range, or a table is not of the shape that the arguments give.
    Example:
        >>> iblt = fc.analytics.heavy_hitters.iblt
        >>> tables = iblt.IbltTensorEncoder([1], 10, 8).compute_iblt(['a'], [[7]])
        >>> strings, counts, values, left = iblt.decode_iblt_tensor_tf(*tables, 10, 8, [1])
        >>> values.numpy()
        array([[7]], dtype=int32)
    """
    decoder = IbltTensorDecoder(iblt, iblt_values, value_shape, capacity, string_max_bytes, **options)
    return decoder.get_freq_estimates_tf()


def _strings(value: tf.types.experimental.TensorLike) -> tf.Tensor:
    """A vector of strings as a tensor.

    Raises:
        TypeMismatch: it is none.
    """
    strings = tf.convert_to_tensor(value)
    if strings.shape == [0]:
        strings = tf.zeros([0], tf.string)  # an empty list is of floats
    if strings.dtype != tf.string or strings.shape.rank != 1:
        raise TypeMismatch(
            f"compute_iblt takes strings of shape [n], not {strings.dtype.name} of shape {strings.shape}"
        )
    return strings


def _counts(value: tf.types.experimental.TensorLike, strings: tf.Tensor, field_size: int) -> tf.Tensor:
    """The user's counts of strings as int64, each below the prime, so that a table can hold it.

    Raises:
        TypeMismatch: they are no integers.
        InvalidValue: there is not one for each string; or one is out of range, outside of a graph.
    """
    counts = tf.convert_to_tensor(value)
    if counts.shape.num_elements() == 0:
        counts = tf.cast(counts, tf.int64)  # an empty list is of floats
    if not counts.dtype.is_integer:
        raise TypeMismatch(f"compute_iblt takes counts that are integers, not {counts.dtype.name}")
    if not counts.shape.is_compatible_with(strings.shape):
        raise InvalidValue(
            f"compute_iblt takes one count for each string, but strings are of shape {strings.shape} and counts of "
            f"shape {counts.shape}"
        )
    wide = tf.cast(counts, tf.int64)
    fits = tf.reduce_all((wide >= 0) & (wide < field_size))
    message = f"compute_iblt takes counts from 0 to below the field_size {field_size}"
    if not tf.is_symbolic_tensor(fits) and not fits:
        raise InvalidValue(f"{message}, not {brief(counts.numpy().tolist())}")
    with tf.control_dependencies([tf.debugging.Assert(fits, [message])]):
        return tf.identity(wide)


def _shape(value: Sequence[int]) -> tuple[int, ...]:
    """The user's `value_shape`, checked."""
    return tuple(whole_number("value_shape, of each axis,", n, at_least=1) for n in value)


def _by_string(strings: np.ndarray, numbers: np.ndarray) -> dict:
    """String -> its number or numbers. Leaves out a cut character at a string's end, as TensorFlow Federated does."""
    return {s.decode("utf-8", "ignore"): n for s, n in zip(strings.tolist(), numbers.tolist(), strict=True)}


def _undecoded_count(number: np.integer) -> dict[None, int]:
    """The entry of what was not decoded in a dict by strings; empty if all was decoded."""
    return {None: int(number)} if number else {}
