"""Heavy hitters in one round: each client sends an invertible Bloom lookup table (IBLT) of its strings.

Tables are vectors of integers whose sum is the table of all clients, so that a secure sum can add them, and only the
server's sum is decoded. `tables` has the encoder and the decoder; this module has the round around them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from fedcore.analytics.data_processing import clipped_counts
from fedcore.analytics.heavy_hitters.iblt.iblt_factory import STRINGS
from fedcore.analytics.heavy_hitters.iblt.tables import (
    DEFAULT_FIELD_SIZE,
    DEFAULT_REPETITIONS,
    IbltTensorEncoder,
    decode_iblt_tensor_tf,
)
from fedcore.computation import Computation, federated_computation, tf_computation
from fedcore.graphs.sequences.symbolic_dataset import SymbolicDataset
from fedcore.intrinsics import (
    federated_eval,
    federated_map,
    federated_secure_modular_sum,
    federated_secure_sum,
    federated_sum,
    federated_zip,
)
from fedcore.ir.values import Value
from fedcore.scalars import whole_number
from fedcore.types import CLIENTS, SERVER, FederatedType


class ServerOutput(NamedTuple):
    """The result of a round of heavy hitters.

    Args:
        clients: int32, how many clients took part.
        heavy_hitters: str[?].
        heavy_hitters_unique_counts: int64[?], how many clients have each string.
        heavy_hitters_counts: int64[?], how often each string was contributed.
        num_not_decoded: int64, how many strings were contributed and not decoded.
        round_timestamp: int64, when the server began, in seconds since 1970-01-01 UTC.
    """

    clients: Any
    heavy_hitters: Any
    heavy_hitters_unique_counts: Any
    heavy_hitters_counts: Any
    num_not_decoded: Any
    round_timestamp: Any


def build_iblt_computation(
    *,
    string_max_bytes: int = 10,
    max_words_per_user: int | None = None,
    multi_contribution: bool = True,
    capacity: int = 1000,
    k_anonymity: int = 1,
    max_heavy_hitters: int | None = None,
    string_postprocessor: Callable[[tf.Tensor], tf.Tensor] | None = None,
    secure_sum_bitwidth: int | None = None,
    decode_iblt_fn: Callable | None = None,
    seed: int = 0,
    batch_size: int = 1,
    repetitions: int = DEFAULT_REPETITIONS,
) -> Computation:
    """Builds a round that finds the strings of the clients, without the server seeing the strings of one client.

    Types:
        ({str[?]*}@CLIENTS -> R@SERVER)
        R is <clients=int32,heavy_hitters=str[?],heavy_hitters_unique_counts=int64[?],heavy_hitters_counts=int64[?],
        num_not_decoded=int64,round_timestamp=int64>

    No clients give no strings. The timestamp is the only part of the result that equal calls do not give again.

    Args:
        string_max_bytes: longer strings are cut after so many bytes, perhaps inside a character.
        max_words_per_user: how many strings a client contributes: with `multi_contribution` the first ones, counted as
            often as they come, otherwise the most frequent different ones. Default: all.
        multi_contribution: whether a string of a client counts as often as it comes, or once.
        capacity: how many different strings of all clients are expected at most; what clients send grows with it.
        k_anonymity: strings of fewer clients than this are left out of the result.
        max_heavy_hitters: only so many strings, those with the greatest counts in falling order. Default: all.
        string_postprocessor: (str[?]) -> str[?], applied to the strings of the result.
        secure_sum_bitwidth: from 1 to 62: tables are added by `fc.federated_secure_modular_sum`, and counts, clipped to
            2^secure_sum_bitwidth - 1 in each cell of a client, by `fc.federated_secure_sum`. Default: plain sums.
        decode_iblt_fn: called as `decode_iblt_tensor_tf` is, which is the default, with arguments by name.
        seed: of the hash functions.
        batch_size: of the clients' datasets, if the first strings are taken.
        repetitions: of the tables, 3 or more.
    Raises:
        FedcoreError: a number is outside its range.
    Source: Goodrich and Mitzenmacher 2011, "Invertible Bloom lookup tables", arXiv:1101.2245. The seed does not give
        the cells that it gives in TensorFlow Federated, and the strings come in an order that does not change.
    Example:
        >>> find = fc.analytics.heavy_hitters.iblt.build_iblt_computation(capacity=10, max_heavy_hitters=1)
        >>> found = find([[['sun'], ['moon']], [['sun']]])
        >>> found.heavy_hitters, found.heavy_hitters_counts
        (array([b'sun'], dtype=object), array([2]))
    """
    options: dict[str, Any] = {
        "capacity": capacity,
        "string_max_bytes": whole_number("string_max_bytes", string_max_bytes, at_least=1),
        "repetitions": repetitions,
        "seed": seed,
    }
    encoder = IbltTensorEncoder([1], **options)
    k_anonymity = whole_number("k_anonymity", k_anonymity, at_least=1)
    batch_size = whole_number("batch_size", batch_size, at_least=1)
    if max_words_per_user is not None:
        max_words_per_user = whole_number("max_words_per_user", max_words_per_user, at_least=1)
    if max_heavy_hitters is not None:
        max_heavy_hitters = whole_number("max_heavy_hitters", max_heavy_hitters, at_least=1)
    if secure_sum_bitwidth is not None:
        secure_sum_bitwidth = whole_number("secure_sum_bitwidth", secure_sum_bitwidth, at_least=1, at_most=62)
    decode = decode_iblt_fn or decode_iblt_tensor_tf

    @tf_computation(STRINGS)
    def compute_sketch(dataset: SymbolicDataset) -> tuple[tf.Tensor, tf.Tensor]:
        strings, counts = clipped_counts(dataset, max_words_per_user, multi_contribution, batch_size, string_max_bytes)
        return encoder.compute_iblt(strings, counts[:, None])

    @tf_computation(*compute_sketch.type_signature.result.types)  # type: ignore[attr-defined]
    def decode_heavy_hitters(sketch: tf.Tensor, table: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        strings, clients, counts, num_not_decoded = decode(iblt=sketch, iblt_values=table, value_shape=(1,), **options)
        counts = tf.squeeze(counts, 1)
        indices = _heavy_hitter_indices(clients, counts, k_anonymity, max_heavy_hitters)
        strings, clients, counts = (tf.gather(x, indices) for x in (strings, clients, counts))
        if string_postprocessor is not None:
            strings = string_postprocessor(strings)
        return strings, clients, counts, num_not_decoded

    now = tf_computation(lambda: tf.cast(tf.timestamp(), tf.int64))
    count_client = tf_computation(lambda: tf.constant(1))

    @federated_computation(FederatedType(STRINGS, CLIENTS))
    def heavy_hitters_round(examples: Value) -> Value:
        began = federated_eval(now, SERVER)
        ones = federated_eval(count_client, CLIENTS)
        sketch, table = federated_map(compute_sketch, examples)
        if secure_sum_bitwidth is None:
            clients, sketch, table = federated_sum(ones), federated_sum(sketch), federated_sum(table)
        else:
            clients = federated_secure_sum(ones, 1)
            sketch = federated_secure_modular_sum(sketch, DEFAULT_FIELD_SIZE)
            table = federated_secure_sum(table, 2**secure_sum_bitwidth - 1)
        heavy_hitters = federated_map(decode_heavy_hitters, (sketch, table))
        return federated_zip(
            ServerOutput(clients, heavy_hitters[0], heavy_hitters[1], heavy_hitters[2], heavy_hitters[3], began)
        )

    return heavy_hitters_round


def _heavy_hitter_indices(
    clients: tf.Tensor, counts: tf.Tensor, k_anonymity: int, max_heavy_hitters: int | None
) -> tf.Tensor:
    """Which decoded strings are in the result, by the clients and the count of each; see `build_iblt_computation`."""
    indices = tf.where(clients >= k_anonymity)[:, 0]
    if max_heavy_hitters is None:
        return indices
    size = tf.minimum(max_heavy_hitters, tf.size(indices))
    return tf.gather(indices, tf.math.top_k(tf.gather(counts, indices), size).indices)
