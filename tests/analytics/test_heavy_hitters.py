"""Heavy hitters: tables that are added, decoded and never wrong, by plain and by secure sums."""

import collections

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.analytics.heavy_hitters import iblt
from fedcore.analytics.heavy_hitters.iblt.hyperedge_hashers import keyed_hash
from fedcore.errors import ClientError, FedcoreError, TypeMismatch

CLIENTS = [
    ["tide", "tide", "tide", "fog", "海風"],
    ["fog", "tide", "a rather long string"],
    ["fog", "gull", "gull"],
    [],
]
COUNTS = collections.Counter(word for words in CLIENTS for word in words)
HOLDERS = collections.Counter(word for words in CLIENTS for word in set(words))


def batches(words, size=1):
    return tf.data.Dataset.from_tensor_slices(tf.constant(words, tf.string)).batch(size)


def found_by(computation, clients=CLIENTS):
    output = computation([batches(words) for words in clients])
    names = [name.decode("utf-8", "ignore") for name in output.heavy_hitters]
    return output, dict(zip(names, output.heavy_hitters_counts.tolist(), strict=True))


@pytest.fixture(scope="module")
def plain():
    return iblt.build_iblt_computation(capacity=10, string_max_bytes=20)


def test_the_strings_of_all_clients_are_found_with_counts_and_holders(plain):
    output, counts = found_by(plain)
    holders = dict(zip(counts, output.heavy_hitters_unique_counts.tolist(), strict=True))
    assert counts == COUNTS
    assert holders == HOLDERS
    assert (output.clients, output.num_not_decoded) == (4, 0)
    assert output.round_timestamp > 1_600_000_000


def test_the_runtime_agrees_with_the_reference(plain):
    with fc.use(fc.runtime.reference()):
        assert found_by(plain)[1] == COUNTS


def test_no_clients_give_no_strings(plain):
    output, counts = found_by(plain, [])
    assert counts == {}
    assert (output.clients, output.num_not_decoded) == (0, 0)


def test_the_type_is_that_of_tensorflow_federated(plain):
    result = (
        "<clients=int32,heavy_hitters=str[?],heavy_hitters_unique_counts=int64[?],heavy_hitters_counts=int64[?],"
        "num_not_decoded=int64,round_timestamp=int64>@SERVER"
    )
    assert str(plain.type_signature).replace(
        "fedcore.analytics.heavy_hitters.iblt.iblt_computation.ServerOutput", ""
    ) == (f"({{str[?]*}}@CLIENTS -> {result})")


def test_the_tutorial_of_private_heavy_hitters_runs_with_masked_sums():
    computation = fc.analytics.heavy_hitters.iblt.build_iblt_computation(
        capacity=100,
        string_max_bytes=20,
        max_words_per_user=8,
        max_heavy_hitters=2,
        secure_sum_bitwidth=32,
        multi_contribution=False,
        batch_size=5,
    )
    with fc.use(fc.runtime.local(secure_aggregation="masked")):
        output = computation([batches(words, 5) for words in CLIENTS])
    words = [word.decode("utf-8", "ignore") for word in output.heavy_hitters]
    found = {words[i]: output.heavy_hitters_counts[i] for i in range(len(words))}
    assert (output.clients, found) == (4, {"fog": 3, "tide": 2})


def test_few_holders_are_left_out_long_strings_cut_and_results_processed():
    computation = iblt.build_iblt_computation(
        capacity=10,
        string_max_bytes=3,
        k_anonymity=2,
        max_heavy_hitters=1,
        max_words_per_user=3,
        string_postprocessor=lambda x: tf.strings.upper(x),
    )
    assert found_by(computation)[1] == {"TID": 4}  # of the first client the first three words only


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"string_max_bytes": 0}, "string_max_bytes is a whole number, 1 or more, not 0"),
        ({"repetitions": 2}, "repetitions is a whole number, 3 or more, not 2"),
        ({"max_heavy_hitters": 0}, "max_heavy_hitters is a whole number, 1 or more, not 0"),
        ({"max_words_per_user": -1}, "max_words_per_user is a whole number, 1 or more, not -1"),
        ({"k_anonymity": 0}, "k_anonymity is a whole number, 1 or more, not 0"),
        ({"secure_sum_bitwidth": 63}, "secure_sum_bitwidth is a whole number, 1 to 62, not 63"),
        ({"batch_size": 0}, "batch_size is a whole number, 1 or more, not 0"),
        ({"capacity": 0}, "capacity is a whole number, 1 or more, not 0"),
    ],
)
def test_arguments_outside_their_ranges_are_named(options, message):
    with pytest.raises(FedcoreError, match=message):
        iblt.build_iblt_computation(**options)


def decoded(encoder_options, strings, counts=None):
    table = iblt.IbltEncoder(**encoder_options).compute_iblt(strings, counts)
    return iblt.IbltDecoder(table, **encoder_options).get_freq_estimates()


def test_hashes_are_the_same_bits_everywhere():
    assert keyed_hash(["tide", "fog", ""], 2**31 - 1, 7, -1).numpy().tolist() == [2080842872, 1392769430, 2068568819]
    assert iblt.IbltEncoder(2, 4, seed=3).compute_iblt(["ab"]).numpy().sum(axis=(0, 1)).tolist() == [
        75555,
        0,
        3,
        234517077,
    ]


def test_tables_subtract():
    encoder = iblt.IbltEncoder(10, 8)
    table = encoder.compute_iblt(["a", "b"], [5, 2]) - encoder.compute_iblt(["a", "b"], [1, 2])
    assert iblt.IbltDecoder(table, 10, 8).get_freq_estimates() == {"a": 4}


@pytest.mark.parametrize("family", ["random", "coupled"])
def test_a_full_table_decodes(family):
    words = {f"word {i}": i + 1 for i in range(100)}
    options = {"capacity": 100, "string_max_bytes": 9, "hash_family": family, "seed": 1}
    assert decoded(options, list(words), list(words.values())) == words


def test_what_is_too_much_is_counted_and_not_made_up():
    words = {f"word {i}": 1 for i in range(200)}
    found = decoded({"capacity": 20, "string_max_bytes": 9}, list(words))
    left = found.pop(None)
    assert left + len(found) == 200
    assert found.items() <= words.items()


def test_a_table_whose_repetitions_contradict_each_other_is_decoded_in_finite_time():
    table = iblt.IbltEncoder(4, 4).compute_iblt(["a"]).numpy()
    table[1] = 0
    assert iblt.IbltDecoder(table, 4, 4).get_freq_estimates()[None] is not None


def test_a_count_may_be_anything_below_the_prime_and_a_string_empty():
    assert decoded({"capacity": 2, "string_max_bytes": 4}, ["", "x"], [2**31 - 2, 3]) == {"": 2**31 - 2, "x": 3}


def test_any_bytes_are_kept_with_an_unknown_encoding():
    options = {"capacity": 4, "string_max_bytes": 6, "encoding": iblt.CharacterEncoding.UNKNOWN}
    table = iblt.IbltEncoder(**options).compute_iblt([b"\0", b"\0\0", b"\xff\0\xfe"])
    strings, counts, left = iblt.decode_iblt_tf(table, **options)
    assert sorted(strings.numpy()) == [b"\0", b"\0\0", b"\xff\0\xfe"]
    assert (counts.numpy().tolist(), int(left)) == ([1, 1, 1], 0)


def test_long_strings_are_cut_or_left_out():
    assert decoded({"capacity": 2, "string_max_bytes": 3}, ["fog", "foggy"]) == {"fog": 2}
    encoder = iblt.IbltTensorEncoder([1], 2, 3, drop_strings_above_max_length=True)
    tables = encoder.compute_iblt(["fog", "foggy"], [[1], [5]])
    assert iblt.IbltTensorDecoder(*tables, [1], 2, 3).get_freq_estimates() == ({"fog": 1}, {"fog": [1]})


def test_tensors_of_values_are_added():
    encoder = iblt.IbltTensorEncoder([2, 1], 4, 3)
    one, two = encoder.compute_iblt(["a"], [[[1.5], [2.0]]]), encoder.compute_iblt(["b", "a"], [[[0], [1]], [[1], [1]]])
    counts, values = iblt.IbltTensorDecoder(
        one[0] + two[0], one[1] + tf.cast(two[1], tf.float32), [2, 1], 4, 3
    ).get_freq_estimates()
    assert (counts, values) == ({"a": 2, "b": 1}, {"a": [[2.5], [3.0]], "b": [[0.0], [1.0]]})
    table, nothing = iblt.IbltTensorEncoder([], 4, 3).compute_iblt(["a"], [])
    assert iblt.decode_iblt_tensor_tf(table, nothing, 4, 3, [])[2].shape == [0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: iblt.IbltEncoder(2, 4, hash_family="sha"), "hash_family is 'random' or 'coupled', not 'sha'"),
        (lambda: iblt.IbltEncoder(2, 4, field_size=2**31 - 3), "field_size is a prime of at most 2\\^31 - 1"),
        (
            lambda: iblt.IbltEncoder(2, 4).compute_iblt([1]),
            "takes strings of shape \\[n\\], not int32 of shape \\(1,\\)",
        ),
        (
            lambda: iblt.IbltTensorEncoder([2], 2, 4).compute_iblt(["a"], [[1]]),
            "of shape \\[2\\] each, but .* \\(1, 1\\)",
        ),
        (lambda: iblt.IbltDecoder(tf.zeros([3, 1, 1]), 2, 4), "of these arguments is of shape \\[3, 10, 4\\], not"),
        (lambda: iblt.create_chunker(string_max_bytes=4, max_chunk_value=100), "max_chunk_value is 100: a byte"),
        (lambda: iblt.create_chunker(string_max_bytes=4, dtype=tf.int8), "dtype is tf.int32 or tf.int64"),
        (lambda: iblt.create_chunker(string_max_bytes=4, encoding="utf-8"), "encoding is a CharacterEncoding"),
        (lambda: iblt.CoupledHyperEdgeHasher(0, 4, 3, 3.5), "rescale_factor is at most table_size - 1 = 3, not 3.5"),
        (lambda: iblt.RandomHyperEdgeHasher(0, 0, 3), "table_size is a whole number, 1 or more, not 0"),
    ],
)
def test_wrong_arguments_of_tables_are_named(call, message):
    with pytest.raises(FedcoreError, match=message):
        call()


def test_hashers_give_cells_in_the_shape_of_sparse_indices():
    words = [str(i) for i in range(50)]
    for hasher in (iblt.RandomHyperEdgeHasher(1, 20, 3), iblt.CoupledHyperEdgeHasher(1, 20, 3, 4.0)):
        found = hasher.get_hash_indices_tf(words).numpy()
        assert (found[:, :, 0] == np.arange(50)[:, None]).all()
        assert (found[:, :, 1] == np.arange(3)).all()
        assert set(np.unique(found[:, :, 2])) <= set(range(20))
    spread = np.ptp(found[:, :, 2], axis=1)
    assert spread.max() <= 20 / 5 + 1 < np.ptp(found[:, :, 2])


VALUES = fc.SequenceType({"key": "str", "value": fc.TensorType("int64", [2])})


def test_the_factory_adds_values_by_secure_sums():
    factory = fc.analytics.IbltFactory(
        capacity=10,
        string_max_bytes=4,
        repetitions=3,
        sketch_agg_factory=fc.aggregators.SecureSumFactory(2**31, 0),
        value_tensor_agg_factory=fc.aggregators.SecureSumFactory(10),
    )
    process = factory.create(VALUES)
    clients = [
        [{"key": "a", "value": [1, -2]}, {"key": "b", "value": [3, 4]}],
        [{"key": "a", "value": [5, 99]}],
    ]
    output = process.next(process.initialize(), clients)
    found = dict(zip(output.result.output_strings, output.result.string_values.tolist(), strict=True))
    assert found == {b"a": [6, 8], b"b": [3, 4]}
    assert output.measurements["num_not_decoded"] == output.result.num_not_decoded == 0
    assert output.measurements["value_tensor"]["secure_upper_clipped_count"] == 1


def test_the_factory_refuses_long_strings_and_other_types():
    factory = fc.analytics.IbltFactory(capacity=10, string_max_bytes=2, repetitions=3)
    process = factory.create(VALUES)
    with pytest.raises(ClientError, match=r"at most 2 bytes \(string_max_bytes\)"):
        process.next(process.initialize(), [[{"key": "abc", "value": [1, 1]}]])
    for other in ("str", fc.SequenceType("str"), fc.SequenceType({"key": "str", "value": "int64"})):
        with pytest.raises(TypeMismatch, match="IbltFactory aggregates <key=str,value=int64"):
            factory.create(fc.to_type(other))


def test_the_clipping_factory_counts_strings_and_their_holders():
    inner = fc.analytics.IbltFactory(capacity=10, string_max_bytes=20, repetitions=3)
    factory = iblt.ClippingIbltFactory(inner, string_max_bytes=20, unique_counts=True)
    process = factory.create(fc.SequenceType(fc.TensorType("str", [None])))
    result = process.next(process.initialize(), [batches(words) for words in CLIENTS]).result
    found = {s.decode(): v for s, v in zip(result.output_strings, result.string_values.tolist(), strict=True)}
    assert found == {word: [COUNTS[word], HOLDERS[word]] for word in COUNTS}
    with pytest.raises(TypeMismatch, match=r"ClippingIbltFactory aggregates str\[\?\]\*, not str\*"):
        factory.create(fc.SequenceType("str"))


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ([1.7, 5.2], "compute_iblt takes counts that are integers, not float32"),
        ([True, False], "compute_iblt takes counts that are integers, not bool"),
        ([-1, 5], r"counts from 0 to below the field_size 2147483647, not \[-1, 5\]"),
        ([2**31 - 1, 5], r"counts from 0 to below the field_size 2147483647, not \[2147483647, 5\]"),
        (
            np.uint64([2**64 - 1, 5]),
            r"counts from 0 to below the field_size 2147483647, not \[18446744073709551615, 5\]",
        ),
        ([1], r"strings are of shape \(2,\) and counts of shape \(1,\)"),
    ],
)
def test_counts_that_a_table_cannot_hold_are_refused(counts, says):
    with pytest.raises(FedcoreError, match=says):
        iblt.IbltEncoder(10, string_max_bytes=8).compute_iblt(["a", "b"], counts)


def test_counts_in_a_graph_are_checked_when_it_runs():
    encode = tf.function(lambda counts: iblt.IbltEncoder(10, string_max_bytes=8).compute_iblt(["a"], counts))
    assert iblt.IbltDecoder(encode(tf.constant([7])), 10, string_max_bytes=8).get_freq_estimates() == {"a": 7}
    with pytest.raises(tf.errors.InvalidArgumentError, match="counts from 0 to below the field_size"):
        encode(tf.constant([-7]))


def test_tables_and_values_that_are_no_numbers_are_refused():
    table = iblt.IbltEncoder(10, string_max_bytes=8).compute_iblt(["a"])
    with pytest.raises(FedcoreError, match="a sum of tables is of integers, not float32"):
        iblt.IbltDecoder(tf.cast(table, tf.float32), 10, string_max_bytes=8)
    with pytest.raises(FedcoreError, match="takes values that are numbers, not string"):
        iblt.IbltTensorEncoder([1], 10, string_max_bytes=8).compute_iblt(["a"], [["x"]])


def test_an_empty_list_is_no_strings():
    assert not iblt.IbltEncoder(10, string_max_bytes=8).compute_iblt([], []).numpy().any()


def test_no_strings_have_an_empty_list_of_counts():
    table = iblt.IbltEncoder(10, string_max_bytes=8).compute_iblt(tf.constant([], tf.string), [])
    assert not np.any(table.numpy())
