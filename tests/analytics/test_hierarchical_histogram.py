"""Hierarchical histograms: bins, clipping, noise, and what the decoder answers."""

import math

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import FedcoreError, TypeMismatch

histograms = fc.analytics.hierarchical_histogram
build = histograms.build_hierarchical_histogram_computation
CLIENTS = [[0.0, 0.5, 1.0], [2.9, 3.0, -0.1, math.nan], [math.inf, 1.2], []]


def nodes(computation, clients=CLIENTS):
    return computation(clients).aggregated_hierarchical_histogram["flat_values"]


def test_records_are_counted_at_each_layer_and_those_outside_left_out():
    computation = build(0.0, 4.0, num_bins=4, arity=2, enable_secure_sum=False)
    assert nodes(computation).tolist() == [6, 4, 2, 2, 2, 1, 1]
    assert nodes(computation, []).tolist() == [0] * 7


def test_the_result_is_a_ragged_tensor_in_parts_and_padded_to_a_power_of_the_arity():
    result = build(0.0, 4.0, num_bins=4, arity=3)(CLIENTS)
    ragged = tf.RaggedTensor.from_nested_row_splits(**result.aggregated_hierarchical_histogram)
    assert ragged.to_list() == [[6], [5, 1, 0], [2, 2, 1, 1, 0, 0, 0, 0, 0]]
    assert result.round_timestamp > 1_600_000_000


def test_the_tree_keeps_the_laws_of_aggregators():
    fc.testing.check_aggregator(histograms.TreeSumFactory(3, scale=2), fc.TensorType("int32", [4]))


def test_a_decoder_takes_the_result_of_a_computation_and_of_a_process():
    options = {"lower_bound": 0.0, "upper_bound": 4.0, "num_bins": 4}
    result = histograms.build_hierarchical_histogram_computation(**options)(CLIENTS)
    state, _ = (process := fc.analytics.build_hierarchical_histogram_process(**options)).next(
        process.initialize(), CLIENTS
    )
    tree = result.aggregated_hierarchical_histogram
    totals = [fc.analytics.HierarchicalHistogramDecoder(h, 0.0, 4.0).node_query(0, 0) for h in (result, state, tree)]
    assert totals == [tree["flat_values"][0]] * 3


def test_the_process_has_the_last_result_as_its_state():
    process = fc.analytics.build_hierarchical_histogram_process(0.0, 4.0, 2, max_records_per_user=9)
    state = process.initialize()
    assert state.aggregated_hierarchical_histogram["flat_values"].tolist() == [0, 0, 0]
    assert state.aggregated_hierarchical_histogram["nested_row_splits"][0].tolist() == [0, 1, 3]
    state, _ = process.next(state, CLIENTS)
    state, _ = process.next(state, CLIENTS[:1])
    assert state.aggregated_hierarchical_histogram["flat_values"].tolist() == [3, 3, 0]


def clipping(*args, **options):
    return histograms.HistogramClippingSumFactory(*args, **options).create(fc.TensorType("int32", [3]))


def test_the_state_of_a_process_with_noise_is_float():
    process = fc.analytics.build_hierarchical_histogram_process(
        0.0, 4.0, num_bins=3, arity=3, dp_mechanism="central-gaussian", noise_multiplier=1.0, enable_secure_sum=False
    )
    assert "<flat_values=float32[4],nested_row_splits=list<int64[3]>>" in str(process.state_type)


def test_sub_sampling_keeps_each_record_as_likely_as_another():
    process = clipping("sub-sampling", 3)
    with fc.use(seed=5):
        result = process.next(process.initialize(), [[1, 4, 7]] * 400).result
    assert result.sum() == 1200
    expected, deviation = np.array([1, 4, 7]) * 100, 20  # of a hypergeometric sum: below sqrt(400 * 3 / 4)
    assert (np.abs(result - expected) < 4 * deviation).all()


def test_fewer_records_than_allowed_are_kept_and_distinct_counts_a_bin_once():
    few = clipping("sub-sampling", 12, cast_to_float=True)
    result = few.next(few.initialize(), [[1, 4, 7]]).result
    assert (result.tolist(), result.dtype) == ([1, 4, 7], np.float32)
    distinct = clipping("distinct", 2)
    with fc.use(seed=1):
        result = distinct.next(distinct.initialize(), [[9, 9, 9]] * 300).result
    assert result.sum() == 600
    assert (np.abs(result - 200) < 4 * math.sqrt(300 * 2 / 9)).all()


@pytest.mark.parametrize("other", ["int32", fc.TensorType("float32", [3]), fc.TensorType("int32", [None])])
def test_histograms_are_integer_vectors(other):
    with pytest.raises(TypeMismatch, match=r"HistogramClippingSumFactory aggregates (integer )?vectors"):
        histograms.HistogramClippingSumFactory().create(fc.to_type(other))
    with pytest.raises(TypeMismatch, match="TreeSumFactory aggregates histograms"):
        histograms.TreeSumFactory().create(fc.to_type("int32"))


@pytest.mark.parametrize(
    "options",
    [
        {"dp_mechanism": "central-gaussian", "enable_secure_sum": False, "clip_mechanism": "distinct"},
        pytest.param({"dp_mechanism": "distributed-discrete-gaussian", "clients_per_round": 4}, marks=pytest.mark.slow),
    ],
)
def test_noise_has_the_deviation_that_was_asked_for(options):
    records = 2
    layers = [records**2] * 7  # of the squares of a client's nodes; distinct records are in bins of their own
    norm = math.sqrt(sum([*layers[1:], records] if "clip_mechanism" in options else layers))
    computation = build(0.0, 64.0, num_bins=64, max_records_per_user=records, noise_multiplier=2.0, **options)
    with fc.use(seed=3):
        found = nodes(computation, [[], [], [], []])
    assert found.shape == (127,)
    assert 0.8 < found.std() / (2.0 * norm) < 1.2
    assert abs(found.mean()) < 4 * 2.0 * norm / math.sqrt(127)


def test_without_noise_a_private_tree_is_the_tree():
    central = build(0.0, 4.0, num_bins=4, dp_mechanism="central-gaussian", enable_secure_sum=False)
    assert nodes(central).tolist() == [6, 4, 2, 2, 2, 1, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lower_bound": 5.0}, "lower_bound is below upper_bound, but they are 5.0 and 4.0"),
        ({"num_bins": 0}, "num_bins is a whole number, 1 or more, not 0"),
        ({"arity": 1}, "arity is a whole number, 2 or more, not 1"),
        ({"clip_mechanism": "x"}, "clip_mechanism is 'sub-sampling' or 'distinct', not 'x'"),
        ({"max_records_per_user": 0}, "max_records_per_user is a whole number, 1 or more, not 0"),
        ({"dp_mechanism": "x"}, "dp_mechanism is 'no-noise', 'central-gaussian' or .*, not 'x'"),
        ({"noise_multiplier": -0.1}, "noise_multiplier is a finite number, 0 or more, not -0.1"),
        ({"noise_multiplier": 1.5}, r"noise_multiplier=1.5 adds no noise with dp_mechanism='no-noise'\n  fix: dp_mech"),
        ({"dp_mechanism": "distributed-discrete-gaussian"}, "needs enable_secure_sum=True and clients_per_round"),
        ({"clients_per_round": 3}, "clients_per_round goes with 'distributed-discrete-gaussian', not 'no-noise'"),
    ],
)
def test_arguments_outside_their_ranges_are_named(change, message):
    with pytest.raises(FedcoreError, match=message):
        build(**{"lower_bound": 0.0, "upper_bound": 4.0, "num_bins": 4, **change})


@pytest.mark.parametrize(("bins", "arity", "layers"), [(1, 2, 1), (2, 2, 2), (125, 5, 4), (126, 5, 5), (8, 2, 4)])
def test_the_tree_has_no_more_layers_than_it_needs(bins, arity, layers):
    tree = histograms.create_hierarchical_histogram(np.arange(bins), arity)
    assert [len(layer) for layer in tree] == [arity**i for i in range(layers)]
    assert tree[0] == [sum(range(bins))]


def counting_tree(arity, depth):
    return histograms.create_hierarchical_histogram(list(range(arity ** (depth - 1))), arity)


def decoder(tree, **options):
    return histograms.HierarchicalHistogramDecoder(tree, 0.0, float(len(tree[-1])), **options)


@pytest.mark.parametrize("arity", [2, 3])
@pytest.mark.parametrize("efficient", [False, True])
def test_ranges_and_nodes_of_a_consistent_tree_are_sums_of_bins(arity, efficient):
    found = decoder(counting_tree(arity, 4), use_efficient=efficient)
    size = arity**3
    for left in range(size):
        for right in range(left, size):
            assert math.isclose(found.range_query(left, right), sum(range(left, right + 1)), abs_tol=1e-9)
    assert math.isclose(found.node_query(1, 1), sum(range(arity**2, 2 * arity**2)))


def test_a_range_takes_as_few_nodes_as_possible():
    tree = [[100], [10, 20], [1, 2, 3, 4]]
    assert decoder(tree).range_query(0, 3) == 100
    assert decoder(tree).range_query(1, 3) == 2 + 20
    assert decoder(tree).range_query(1, 2) == 2 + 3


@pytest.mark.parametrize(
    ("arity", "q", "bin_index"),
    [
        *((2, q / 4, bin_index) for q, bin_index in enumerate([0, 4, 5, 6, 7])),
        *((3, q / 4, bin_index) for q, bin_index in enumerate([0, 13, 19, 23, 26])),
    ],
)
def test_quantiles_are_those_of_tensorflow_federated(arity, q, bin_index):
    assert decoder(counting_tree(arity, 4)).quantile_query(q) == (bin_index, bin_index + 1)


def test_bounds_are_divided_by_the_bins_that_were_asked_for():
    tree = histograms.create_hierarchical_histogram([1, 1, 2], 2)
    found = histograms.HierarchicalHistogramDecoder(tree, 0.0, 3.0, num_bins=3)
    assert found.quantile_query(0.9) == (2.0, 3.0)


def test_consistency_is_the_least_squares_estimate_and_so_is_the_efficient_query():
    tree = [np.asarray(layer) for layer in counting_tree(3, 3)]
    noisy = [layer + np.random.default_rng(0).normal(size=len(layer)) for layer in tree]
    matrix = np.concatenate([np.kron(np.eye(3**i), np.ones(3 ** (2 - i))) for i in range(3)])
    best = np.linalg.lstsq(matrix, np.concatenate(noisy), rcond=None)[0]
    efficient, enforced = decoder(noisy, use_efficient=True), decoder(noisy)
    with pytest.raises(FedcoreError, match="call enforce_consistency"):
        enforced.quantile_query(0.5)
    enforced.enforce_consistency()
    for i in range(9):
        assert math.isclose(efficient.node_query(2, i), best[i], abs_tol=1e-9)
        assert math.isclose(enforced.node_query(2, i), best[i], abs_tol=1e-9)
    assert math.isclose(enforced.node_query(0, 0), best.sum())
    enforced.quantile_query(0.5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: d.node_query(-1, 0), "the histogram has the layers 0 to 1, not -1"),
        (lambda d: d.node_query(2, 0), "the histogram has the layers 0 to 1, not 2"),
        (lambda d: d.node_query(1, 2), "layer 1 has the nodes 0 to 1, not 2"),
        (lambda d: d.range_query(-1, 0), "a range is of bins 0 to 1 in order, not -1 to 0"),
        (lambda d: d.range_query(1, 0), "a range is of bins 0 to 1 in order, not 1 to 0"),
        (lambda d: d.quantile_query(1.1), "q is from 0 to 1, not 1.1"),
        (lambda d: decoder([[1, 2], [3]]), "layers of a hierarchical histogram are 1, n, n², … wide, not"),
        (lambda d: histograms.HierarchicalHistogramDecoder(7, 0.0, 1.0), "is a tf.RaggedTensor or a list of layers"),
    ],
)
def test_wrong_questions_are_named(call, message):
    with pytest.raises(FedcoreError, match=message):
        call(decoder(counting_tree(2, 2)))


@pytest.mark.parametrize(
    ("epsilon", "delta", "norm", "expected"),
    [(1.0, 1e-5, 1.0, 3.73063), (0.1, 1e-5, 2.0, 61.49913), (10.0, 1e-6, 1.0, 0.54109), (0.0, 0.1, 1.0, 3.97895)],
)
def test_the_analytic_gaussian_spends_delta(epsilon, delta, norm, expected):
    found = fc.analytics.differential_privacy.analytic_gauss_stddev(epsilon, delta, norm)
    phi = lambda x: math.erfc(-x / math.sqrt(2)) / 2  # noqa: E731
    sigma = found / norm
    spent = phi(0.5 / sigma - epsilon * sigma) - math.exp(epsilon) * phi(-0.5 / sigma - epsilon * sigma)
    assert math.isclose(spent, delta, rel_tol=1e-4)
    assert math.isclose(found, expected, rel_tol=1e-4)


def test_the_analytic_gaussian_has_ends():
    stddev = fc.analytics.differential_privacy.analytic_gauss_stddev
    assert (stddev(1.0, 1.0, 1.0), stddev(1.0, 0.1, 0.0), stddev(1.0, 0.0, 1.0)) == (0.0, 0.0, math.inf)
    for wrong in ((-1.0, 0.1, 1.0), (1.0, 1.1, 1.0), (1.0, -0.1, 1.0), (1.0, 0.1, -1.0)):
        with pytest.raises(FedcoreError):
            stddev(*wrong)
