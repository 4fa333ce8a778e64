"""How many different strings the clients have, by HyperLogLog: registers whose largest values are kept.

A string's hash names a register by its first bits, and the rank of the first 1 among the others, counted from 1, is
what the register keeps the maximum of. Registers of clients are joined by their maximum, so a string that many clients
have counts once.

Source: Flajolet, Fusy, Gandouet, Meunier 2007, "HyperLogLog: the analysis of a near-optimal cardinality estimation
algorithm", Figure 3 and section 4. The relative standard error is 1.04 / sqrt(2^precision). Hashes have 62 bits, so
that large numbers need no correction.
"""

from collections.abc import Callable

import tensorflow as tf

from fedcore.aggregators import UnweightedAggregationFactory, aggregation_process
from fedcore.computation import Computation, federated_computation, tf_computation
from fedcore.errors import TypeMismatch
from fedcore.graphs.sequences.symbolic_dataset import SymbolicDataset
from fedcore.intrinsics import federated_map, federated_max, federated_secure_sum, federated_value
from fedcore.ir.values import Value
from fedcore.scalars import seed_number, whole_number
from fedcore.templates import AggregationProcess, MeasuredProcessOutput
from fedcore.types import CLIENTS, SERVER, FederatedType, SequenceType, TensorType, Type, member_of, tensor_leaves

__all__ = [
    "HyperLogLogFactory",
    "build_client_hyperloglog_computation",
    "build_federated_secure_max_computation",
    "create_federated_hyperloglog_computation",
]

_HASH_BITS = 62
_BATCH = 1024  # strings that are hashed at once
_STRINGS = SequenceType(TensorType("str"))


class HyperLogLogFactory(UnweightedAggregationFactory):
    """An estimate of how many different strings the clients have together.

    Types:
        next  (<state=<>@SERVER,value={str*}@CLIENTS> -> <state=<>@SERVER,result=int64@SERVER,measurements=<>@SERVER>)

    The relative standard error is 1.04 / sqrt(2^precision): 3.3 % with 10, 0.8 % with 14. Few strings are counted with
    less error, and no strings are 0. Equal strings and seeds give the same estimate on every machine.

    Args:
        precision: from 4 to 16; a client sends 2^precision registers of a byte.
        secure: the maximum is made of a secure sum of which registers have which value, so the server learns how many
            clients have a value in a register, and not which. It is (63 - precision) / 8 times as large, before masks.
        seed: of the hash. Estimates of one seed are wrong by the same amount in every round.
    Raises:
        FedcoreError: a number is outside its range.
        TypeMismatch: by `create`, the values are not sequences of strings.
    Source: Flajolet et al. 2007, "HyperLogLog", Figure 3, with 62 bits of SipHash.
    Example:
        >>> process = fc.analytics.HyperLogLogFactory().create(fc.SequenceType('str'))
        >>> process.next(process.initialize(), [['sun', 'moon'], ['moon', 'moon', 'star']]).result
        np.int64(3)
    """

    def __init__(self, precision: int = 10, *, secure: bool = False, seed: int = 0) -> None:
        self._precision = whole_number("precision", precision, at_least=4, at_most=16)
        self._secure = secure
        self._seed = seed_number("seed", seed)

    def create(self, value_type: Type) -> AggregationProcess:
        if value_type != _STRINGS:
            raise TypeMismatch(f"HyperLogLogFactory aggregates {_STRINGS}, not {value_type}")
        precision, key = self._precision, [self._seed, 0]
        largest = _HASH_BITS - precision + 1

        @tf_computation(value_type)
        def registers(strings: SymbolicDataset) -> tf.Tensor:
            def hash_strings(string: tf.Tensor) -> tf.Tensor:
                return tf.strings.to_hash_bucket_strong(string, 2**_HASH_BITS, key)

            return tf.cast(_registers(strings, hash_strings, precision, _HASH_BITS), tf.uint8)

        @tf_computation(registers.type_signature.result)
        def estimate(register_values: tf.Tensor) -> tf.Tensor:
            m = 2**precision  # the letters of Figure 3; the numbers are its bias corrections
            alpha = {4: 0.673, 5: 0.697, 6: 0.709}.get(precision, 0.7213 / (1 + 1.079 / m))
            ranks = tf.cast(register_values, tf.float64)
            raw = alpha * m * m / tf.reduce_sum(0.5**ranks)
            empty = tf.math.count_nonzero(ranks == 0, dtype=tf.float64)
            small = m * tf.math.log(m / tf.maximum(empty, 1))
            return tf.cast(tf.round(tf.where((raw <= 2.5 * m) & (empty > 0), small, raw)), tf.int64)

        @federated_computation
        def initialize() -> Value:
            return federated_value((), SERVER)

        def body(state: Value, value: Value, _: tuple[()]) -> MeasuredProcessOutput:
            client_registers = federated_map(registers, value)
            joined = _secure_max(client_registers, largest) if self._secure else federated_max(client_registers)
            return MeasuredProcessOutput(state, federated_map(estimate, joined), federated_value((), SERVER))

        return aggregation_process(initialize, value_type, None, body)


def create_federated_hyperloglog_computation(*, use_secagg: bool = False, precision: int = 10) -> Computation:
    """Builds the estimate of how many different strings the clients have together.

    Types:
        ({str*}@CLIENTS -> int64@SERVER)

    Args:
        use_secagg: the registers are joined by a secure sum.
        precision: from 4 to 16; the relative standard error is 1.04 / sqrt(2^precision). TensorFlow Federated has 5.
    Raises:
        FedcoreError: the precision is outside its range.
    Source: Flajolet et al. 2007, "HyperLogLog"; see `HyperLogLogFactory`.
    Example:
        >>> count = fc.analytics.count_distinct.create_federated_hyperloglog_computation()
        >>> count([['sun', 'moon'], ['moon', 'star']])
        np.int64(3)
    """
    process = HyperLogLogFactory(precision, secure=use_secagg).create(_STRINGS)

    @federated_computation(FederatedType(_STRINGS, CLIENTS))
    def count_distinct(client_data: Value) -> Value:
        return process.next(process.initialize(), client_data).result

    return count_distinct


def build_client_hyperloglog_computation(*, precision: int = 5, hash_bits: int = 32) -> Computation:
    """Builds the registers of one client's hashes.

    Types:
        (int64* -> int64[2^precision])

    Args:
        precision: how many first bits of a hash name its register.
        hash_bits: bits of a hash, of which `precision` and more: a hash is from 0 to 2^hash_bits - 1.
    Raises:
        FedcoreError: a number is outside its range.
    Source: Flajolet et al. 2007, "HyperLogLog", Figure 3. A hash whose other bits are all 0 has the rank
        hash_bits - precision + 1.
    Example:
        >>> registers = fc.analytics.count_distinct.build_client_hyperloglog_computation(precision=1, hash_bits=4)
        >>> registers([0b0001, 0b1100])
        array([3, 1])
    """
    precision = whole_number("precision", precision, at_least=1, at_most=16)
    hash_bits = whole_number("hash_bits", hash_bits, at_least=precision + 1, at_most=_HASH_BITS)
    return tf_computation(SequenceType("int64"))(lambda hashes: _registers(hashes, tf.identity, precision, hash_bits))


def build_federated_secure_max_computation(*, precision: int = 5, hash_bits: int = 32) -> Computation:
    """Builds the maximum of the clients' registers by a secure sum.

    Types:
        ({int64[2^precision]}@CLIENTS -> int64[2^precision]@SERVER)

    No clients give zeros.

    Args:
        precision: registers are 2^precision.
        hash_bits: a register is from 0 to hash_bits - precision + 1; greater ones are left out.
    Raises:
        FedcoreError: a number is outside its range.
    Example:
        >>> largest = fc.analytics.count_distinct.build_federated_secure_max_computation(precision=1)
        >>> largest([[3, 0], [1, 2]])
        array([3, 2])
    """
    precision = whole_number("precision", precision, at_least=1, at_most=16)
    hash_bits = whole_number("hash_bits", hash_bits, at_least=precision + 1, at_most=_HASH_BITS)

    @federated_computation(FederatedType(TensorType("int64", [2**precision]), CLIENTS))
    def federated_secure_max(registers: Value) -> Value:
        return _secure_max(registers, hash_bits - precision + 1)

    return federated_secure_max


def _registers(
    values: SymbolicDataset, hash_fn: Callable[[tf.Tensor], tf.Tensor], precision: int, hash_bits: int
) -> tf.Tensor:
    """The registers of one client, int64 [2^precision]: the greatest rank of its hashes in each, 0 for none.

    Args:
        hash_fn: (vector of elements of `values`) -> int64 hashes below 2^hash_bits.
    """
    rank_bits = hash_bits - precision
    powers = tf.constant([2**i for i in range(rank_bits)], tf.int64)

    def update_registers(registers: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
        hashes = hash_fn(batch)
        low_bits = tf.bitwise.bitwise_and(hashes, tf.constant(2**rank_bits - 1, tf.int64))
        ranks = 1 + tf.math.count_nonzero(low_bits[:, None] < powers, 1)  # 1 + the zeros before the first 1
        indices = tf.bitwise.right_shift(hashes, tf.constant(rank_bits, tf.int64))
        return tf.tensor_scatter_nd_max(registers, indices[:, None], ranks)

    return values.batch(_BATCH).reduce(tf.zeros([2**precision], tf.int64), update_registers)


def _secure_max(registers: Value, largest: int) -> Value:
    """The greatest value of each register, by a secure sum of one-hot marks: how many clients have which value.

    Args:
        registers: client value, an integer vector with values of 0 to `largest`; greater ones are left out.
    """
    marks = tf_computation(member_of(registers.type))(lambda x: tf.one_hot(x, largest + 1, dtype=tf.int32))
    (register,) = tensor_leaves(member_of(registers.type))

    @tf_computation(marks.type_signature.result)
    def greatest(sums: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.reduce_max(tf.where(sums > 0, tf.range(largest + 1), 0), 1), register.dtype.name)

    return federated_map(greatest, federated_secure_sum(federated_map(marks, registers), 1))
