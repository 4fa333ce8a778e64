"""Aggregators that find the strings of all clients by sums of invertible Bloom lookup tables."""

from typing import Any, NamedTuple

import tensorflow as tf

from fedcore.aggregators import UnweightedAggregationFactory, aggregation_process
from fedcore.aggregators.factory import check_factory
from fedcore.aggregators.sum import sum_or_default
from fedcore.analytics.data_processing import clipped_counts, to_stacked_tensor
from fedcore.analytics.heavy_hitters.iblt.chunkers import CharacterEncoding
from fedcore.analytics.heavy_hitters.iblt.tables import IbltTensorDecoder, IbltTensorEncoder
from fedcore.computation import federated_computation, tf_computation
from fedcore.errors import TypeMismatch
from fedcore.graphs.sequences.symbolic_dataset import SymbolicDataset
from fedcore.intrinsics import federated_map, federated_zip
from fedcore.ir.values import Value
from fedcore.scalars import whole_number
from fedcore.templates import AggregationProcess, MeasuredProcessOutput
from fedcore.types import SequenceType, StructType, TensorType, Type

STRINGS = SequenceType(TensorType("str", [None]))
DATASET_KEY, DATASET_VALUE = "key", "value"


class IbltOutput(NamedTuple):
    """The result of an `IbltFactory`.

    Args:
        output_strings: str[?], each decoded string once.
        string_values: int64[?,n], the sums of each string's values.
        num_not_decoded: int64, how many strings of clients were not decoded, each counted for each of its clients.
    """

    output_strings: Any
    string_values: Any
    num_not_decoded: Any


class IbltFactory(UnweightedAggregationFactory):
    """The strings of all clients and the sums of their values, from two sums of integers that show no client's strings.

    A client adds its strings to an invertible Bloom lookup table, and their values to a table of the same cells. Both
    tables are summed, with a `SecureSumFactory` without showing a client's, and the server decodes the sums.

    Types, for strings with n values each:
        next  (<state=S@SERVER,value={V}@CLIENTS> -> <state=S@SERVER,result=R@SERVER,measurements=M@SERVER>)
        V is <key=str,value=int64[n]>*, each string at most once
        R is <output_strings=str[?],string_values=int64[?,n],num_not_decoded=int64>
        M is <num_not_decoded=int64,sketch=…,value_tensor=…>

    No clients give no strings. If more strings come than the capacity holds, some or all are not decoded, and counted
    by `num_not_decoded`; which strings are decoded is always right.

    Args:
        capacity: how many different strings of all clients are expected at most.
        string_max_bytes: the greatest number of bytes of a string.
        encoding: of the strings. Default: UTF-8.
        repetitions: of a table, 3 or more; with more of them, decoding a fuller table fails less often.
        seed: of the hash functions. Change it from round to round: what failed to decode may decode then.
        sketch_agg_factory: sums the tables of strings, whose elements are from 0 to 2^31 - 2 for each client. Default:
            `SumFactory`. The bound of a `SecureSumFactory` is at least that.
        value_tensor_agg_factory: sums the tables of values. Default: `SumFactory`.
    Raises:
        FedcoreError: a number is outside its range.
        TypeMismatch: by `create`, the values are not such sequences, or a factory aggregates no integers.
        ClientError: by `next`, a string is longer than `string_max_bytes`.
    Source: Goodrich and Mitzenmacher 2011, "Invertible Bloom lookup tables", arXiv:1101.2245.
    Example:
        >>> factory = fc.analytics.IbltFactory(capacity=10, string_max_bytes=8, repetitions=3)
        >>> process = factory.create(fc.SequenceType({'key': 'str', 'value': fc.TensorType('int64', [1])}))
        >>> client = [{'key': 'sun', 'value': [3]}]
        >>> process.next(process.initialize(), [client, client]).result.string_values
        array([[6]])
    """

    def __init__(
        self,
        *,
        capacity: int,
        string_max_bytes: int,
        encoding: CharacterEncoding = CharacterEncoding.UTF8,
        repetitions: int,
        seed: int = 0,
        sketch_agg_factory: UnweightedAggregationFactory | None = None,
        value_tensor_agg_factory: UnweightedAggregationFactory | None = None,
    ) -> None:
        self._options: dict[str, Any] = {
            "capacity": capacity,
            "string_max_bytes": whole_number("string_max_bytes", string_max_bytes, at_least=1),
            "encoding": encoding,
            "repetitions": repetitions,
            "seed": seed,
        }
        IbltTensorEncoder([1], **self._options)  # checks the options
        self._sketches = sum_or_default("sketch_agg_factory", sketch_agg_factory)
        self._values = sum_or_default("value_tensor_agg_factory", value_tensor_agg_factory)

    def create(self, value_type: Type) -> AggregationProcess:
        value_shape = [_values_per_string(value_type)]

        @tf_computation(value_type)
        def encode_iblt(dataset: SymbolicDataset) -> tuple[tf.Tensor, tf.Tensor]:
            rows = to_stacked_tensor(dataset)
            strings = _check_lengths(rows[DATASET_KEY], self._options["string_max_bytes"])
            return IbltTensorEncoder(value_shape, **self._options).compute_iblt(strings, rows[DATASET_VALUE])

        result_type: Any = encode_iblt.type_signature.result
        sketch_type, table_type = result_type
        sketches, values = self._sketches.create(sketch_type), self._values.create(table_type)

        @tf_computation(sketch_type, table_type)
        def decode_iblt(sketch: tf.Tensor, table: tf.Tensor) -> IbltOutput:
            decoder = IbltTensorDecoder(sketch, table, value_shape, **self._options)
            strings, _, sums, num_not_decoded = decoder.get_freq_estimates_tf()
            return IbltOutput(strings, sums, num_not_decoded)

        @federated_computation
        def initialize() -> Value:
            return federated_zip((sketches.initialize(), values.initialize()))

        def body(state: Value, value: Value, _: tuple[()]) -> MeasuredProcessOutput:
            encoded = federated_map(encode_iblt, value)
            sketch = sketches.next(state[0], encoded[0])
            table = values.next(state[1], encoded[1])
            result = federated_map(decode_iblt, (sketch.result, table.result))
            measurements = {
                "num_not_decoded": result.num_not_decoded,
                "sketch": sketch.measurements,
                "value_tensor": table.measurements,
            }
            return MeasuredProcessOutput(
                federated_zip((sketch.state, table.state)), result, federated_zip(measurements)
            )

        return aggregation_process(initialize, value_type, None, body)


class ClippingIbltFactory(UnweightedAggregationFactory):
    """Counts and bounds each client's strings before an `IbltFactory` aggregates them.

    Types, for the result R and the measurements M of the inner factory:
        next  (<state=S@SERVER,value={str[?]*}@CLIENTS> -> <state=S@SERVER,result=R@SERVER,measurements=M@SERVER>)

    Args:
        inner_iblt_agg: takes <key=str,value=int64[n]>*, n being 2 with `unique_counts` and 1 otherwise.
        max_words_per_user: how many strings a client contributes: with `multi_contribution` the first ones, counted as
            often as they come, otherwise the most frequent different ones. Default: all.
        multi_contribution: whether a string counts as often as it comes, or once.
        batch_size: of the clients' datasets, if the first strings are taken.
        string_max_bytes: longer strings are cut after so many bytes.
        unique_counts: whether the values of a string are its count and the number of clients that have it, in place of
            the count alone.
    Raises:
        FedcoreError: a number is less than 1.
        TypeMismatch: by `create`, the values are not batches of strings.
    Example:
        >>> inner = fc.analytics.IbltFactory(capacity=10, string_max_bytes=10, repetitions=3)
        >>> factory = fc.analytics.heavy_hitters.iblt.ClippingIbltFactory(inner, multi_contribution=False)
        >>> process = factory.create(fc.SequenceType(fc.TensorType('str', [None])))
        >>> process.next(process.initialize(), [[['sun', 'sun']], [['sun']]]).result.string_values
        array([[2]])
    """

    def __init__(
        self,
        inner_iblt_agg: UnweightedAggregationFactory,
        max_words_per_user: int | None = None,
        multi_contribution: bool = True,
        batch_size: int = 1,
        string_max_bytes: int = 10,
        unique_counts: bool = False,
    ) -> None:
        if max_words_per_user is not None:
            max_words_per_user = whole_number("max_words_per_user", max_words_per_user, at_least=1)
        check_factory("inner_iblt_agg", inner_iblt_agg, without_weights=True)
        self._inner, self._unique_counts = inner_iblt_agg, unique_counts
        # The arguments of `clipped_counts` behind the dataset.
        self._clip = (
            max_words_per_user,
            multi_contribution,
            whole_number("batch_size", batch_size, at_least=1),
            whole_number("string_max_bytes", string_max_bytes, at_least=1),
        )

    def create(self, value_type: Type) -> AggregationProcess:
        if value_type != STRINGS:
            raise TypeMismatch(f"ClippingIbltFactory aggregates {STRINGS}, not {value_type}")

        @tf_computation(value_type)
        def count_strings(dataset: SymbolicDataset) -> tf.data.Dataset:
            strings, counts = clipped_counts(dataset, *self._clip)
            values = [counts, tf.ones_like(counts)] if self._unique_counts else [counts]
            rows = {DATASET_KEY: strings, DATASET_VALUE: tf.stack(values, 1)}
            return tf.data.Dataset.from_tensor_slices(rows)

        inner = self._inner.create(count_strings.type_signature.result)
        return aggregation_process(
            inner.initialize,
            value_type,
            None,
            lambda state, value, _: inner.next(state, federated_map(count_strings, value)),
        )


def _check_lengths(strings: tf.Tensor, max_bytes: int) -> tf.Tensor:
    """The strings of a client; computing them fails if one is longer than `max_bytes`."""
    fits = tf.debugging.Assert(
        tf.reduce_all(tf.strings.length(strings) <= max_bytes),
        [f"IbltFactory: each string has at most {max_bytes} bytes (string_max_bytes)"],
    )
    with tf.control_dependencies([fits]):
        return tf.identity(strings)


def _values_per_string(value_type: Type) -> int:
    """The n of <key=str,value=int64[n]>*.

    Raises:
        TypeMismatch: `value_type` is another type, or its n is unknown or 0.
    """
    element = value_type.element if isinstance(value_type, SequenceType) else None
    if isinstance(element, StructType) and element.names == (DATASET_KEY, DATASET_VALUE):
        key, value = element.types
        if key == TensorType("str") and isinstance(value, TensorType) and value.dtype == TensorType("int64").dtype:
            (size,) = value.sizes if len(value.sizes) == 1 else (None,)
            if size:
                return size
    raise TypeMismatch(f"IbltFactory aggregates <key=str,value=int64[n]>* with a known n, not {value_type}")
