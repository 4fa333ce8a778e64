"""Private sums: their noise against the theory, clipping, keys, and what is refused."""

import attrs
import numpy as np
import pytest
import tensorflow as tf
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

import fedcore as fc
from fedcore import aggregators as agg
from fedcore.aggregators import differential_privacy
from fedcore.aggregators.private_noise import OperatingSystemKey, TreeNoise
from fedcore.aggregators.private_noise.banded import mean_square_error, optimal_coefficients
from fedcore.aggregators.private_noise.chacha20 import chacha20
from fedcore.aggregators.private_noise.normal import normal_from_key, normal_from_seed
from fedcore.errors import FedcoreError, InvalidValue, TypeMismatch

DP = agg.DifferentiallyPrivateFactory
NUMBER = fc.to_type("float32")
DRAWS, ROUNDS = 100_000, 7
UNLIKELY = 5.9  # standard deviations: p < 1e-6 for each of some 300 numbers together


def joined(left, right, level, efficient):
    """A node of a tree as a row over the noises of all nodes: its own, joined with its children's."""
    weight = 1 / (2 - 2.0**-level) if efficient else 1.0
    return lambda own: weight * own + (1 - weight) * (left + right)


def tree_prefixes(rounds, efficient):
    """The prefix sums of a tree as rows over the noises of its nodes, by recursion over its shape."""
    owns = {}

    def own(first, after):
        return owns.setdefault((first, after), len(owns))

    def node(first, after):
        row = np.zeros(4 * rounds)
        row[own(first, after)] = 1.0
        if after - first == 1:
            return row
        middle = (first + after) // 2
        level = (after - first).bit_length() - 1
        return joined(node(first, middle), node(middle, after), level, efficient)(row)

    def prefix(count):
        total, first = np.zeros(4 * rounds), 0
        for level in reversed(range(count.bit_length())):
            if count >> level & 1:
                total, first = total + node(first, first + (1 << level)), first + (1 << level)
        return total

    return np.array([prefix(t) for t in range(rounds + 1)])


def tree_rows(efficient, restart):
    blocks = [np.diff(tree_prefixes(min(restart, ROUNDS - i), efficient), axis=0) for i in range(0, ROUNDS, restart)]
    width = sum(b.shape[1] for b in blocks)
    rows, at, start = np.zeros((ROUNDS, width)), 0, 0
    for block in blocks:
        rows[at : at + len(block), start : start + block.shape[1]] = block
        at, start = at + len(block), start + block.shape[1]
    return rows


def toeplitz_inverse(c):
    matrix = sum(np.diag(np.full(ROUNDS - k, x), -k) for k, x in enumerate(c))
    return np.linalg.inv(matrix)


MECHANISMS = {
    "independent": (lambda **o: DP.gaussian_fixed(2.0, 4, 0.5, **o), lambda: np.eye(ROUNDS)),
    "tree": (lambda **o: DP.tree_aggregation(2.0, 4, 0.5, 5, efficient=False, **o), lambda: tree_rows(False, 5)),
    "efficient tree": (lambda **o: DP.tree_aggregation(2.0, 4, 0.5, 5, **o), lambda: tree_rows(True, 5)),
    "banded": (
        lambda **o: DP.banded_matrix_factorization(2.0, 4, 0.5, rounds=20, bands=3, **o),
        lambda: toeplitz_inverse(optimal_coefficients(20, 3)),
    ),
}


def noises(factory):
    """The results of rounds without clients, times the divisor."""
    process = factory.create(fc.to_type(("float32", [DRAWS])))
    state, found = process.initialize(), []
    for _ in range(ROUNDS):
        output = process.next(state, [])
        state = output.state
        found.append(4 * output.result.astype(np.float64))
    return np.array(found)


@pytest.mark.parametrize("name", MECHANISMS)
def test_the_noise_of_rounds_has_the_mean_and_the_covariance_of_the_theory(name):
    make, rows = MECHANISMS[name]
    found, theory = noises(make()), rows() @ rows().T  # noise_multiplier · clip = 1
    spread = np.sqrt(np.diag(theory))
    assert (np.abs(found.mean(1)) < UNLIKELY * spread / DRAWS**0.5).all()
    errors = np.sqrt((np.outer(spread, spread) ** 2 + theory**2) / DRAWS)
    assert (np.abs(np.cov(found) - theory) < UNLIKELY * errors).all()


@pytest.mark.parametrize("draw", [normal_from_seed, normal_from_key(tf.constant(range(1, 9), tf.uint32))])
def test_numbers_are_normal_and_their_tails_are_not_cut(draw):
    tf.random.set_seed(3)
    x = np.sort(draw(0, 8 * DRAWS).numpy().astype(np.float64))
    from scipy.special import ndtr

    distance = np.abs(ndtr(x) - (np.arange(x.size) + 0.5) / x.size).max()
    assert distance < 2.7 / x.size**0.5  # Kolmogorov and Smirnov: p < 1e-6
    assert np.abs(x).max() > 4


def test_the_tails_of_a_normal_number_reach_beyond_8_standard_deviations():
    from fedcore.aggregators.private_noise.normal import _normal

    assert abs(_normal(tf.constant([[0], [0]], tf.int64), 1).numpy()[0]) > 8.4


@pytest.mark.parametrize("efficient", [False, True])
def test_tree_noise_is_the_direct_sum_of_its_nodes(efficient):
    tree, drawn, size = TreeNoise(6, efficient), [], 3
    rng = np.random.default_rng(1)

    def draw(level, count):
        drawn.append((int(level), rng.normal(size=count).astype(np.float32)))
        return tf.constant(drawn[-1][1])

    state, prefix, nodes = tree.initialize(size), np.zeros(size), {}
    for t in range(1, 15):
        drawn.clear()
        noise, state = tree.next(state, size, draw)
        leaves = (t - 1) % 6 + 1
        if leaves == 1:
            prefix, nodes = np.zeros(size), {}
        for level, own in drawn:
            before = [nodes[leaves - (1 << level - 1), level - 1], nodes[leaves, level - 1]] if level else None
            weight = 1 / (2 - 2.0**-level) if efficient else 1.0
            nodes[leaves, level] = weight * own + (1 - weight) * sum(before) if before else own
        prefix, direct, end = prefix + noise.numpy(), 0, leaves
        for level in range(4):
            if leaves >> level & 1:
                direct, end = direct + nodes[end, level], end - (1 << level)
        np.testing.assert_allclose(prefix, direct, atol=1e-5)


def test_an_efficient_tree_has_less_noise():
    plain, efficient = (np.linalg.norm(tree_prefixes(15, e), axis=1).max() for e in (False, True))
    assert efficient < 0.85 * plain


@pytest.mark.parametrize(("rounds", "bands"), [(50, 1), (50, 4), (200, 20)])
def test_banded_coefficients_are_a_minimum(rounds, bands):
    c = np.array(optimal_coefficients(rounds, bands))
    assert len(c) == bands
    np.testing.assert_allclose(np.linalg.norm(c), 1)
    assert (np.diff(np.append(c, 0)) <= 0).all()
    root = np.cumprod(np.append(1, (2 * np.arange(1, bands) - 1) / (2 * np.arange(1, bands))))
    best = mean_square_error(c, rounds)
    assert best <= mean_square_error(root / np.linalg.norm(root), rounds) * (1 + 1e-12)
    for step in np.eye(bands)[1:] * 1e-3:
        for moved in (c + step, c - step):
            assert mean_square_error(moved / np.linalg.norm(moved), rounds) > best * (1 - 1e-9)


def test_the_error_of_banded_noise_is_that_of_its_matrices():
    c, prefix = optimal_coefficients(ROUNDS, 3), np.tril(np.ones((ROUNDS, ROUNDS)))
    np.testing.assert_allclose(mean_square_error(c, ROUNDS), np.sum((prefix @ toeplitz_inverse(c)) ** 2) / ROUNDS)


def test_equal_privacy_costs_banded_noise_less_than_a_tree():
    tree = np.mean(np.linalg.norm(tree_prefixes(63, True), axis=1)[1:] ** 2) * 6  # a client is below 6 nodes
    assert mean_square_error(optimal_coefficients(63, 63), 63) < 0.6 * tree


PAIR = fc.to_type({"w": ("float32", [3]), "b": "float64"})


def pair(*numbers):
    return {"w": np.array(numbers[:3], np.float32), "b": np.float64(numbers[3])}


@pytest.fixture(scope="module")
def without_noise():
    return DP.gaussian_fixed(0.0, clients_per_round=2, clip=1.5).create(PAIR)


def test_values_are_clipped_at_the_norm_and_divided_by_the_fixed_number(without_noise):
    values = [pair(0.1, 0.2, 0.3, 0.4), pair(3, 0, 0, 4), pair(1e30, -1e30, 1e30, 2e30)]
    output = without_noise.next(without_noise.initialize(), values)
    flat = np.array([[*v["w"], v["b"]] for v in values], np.float64)
    want = (flat * np.minimum(1, 1.5 / np.linalg.norm(flat, axis=1))[:, None]).sum(0) / 2
    np.testing.assert_allclose([*output.result["w"], output.result["b"]], want, rtol=1e-6)


@pytest.mark.parametrize("direction", range(5))
def test_a_clipped_value_has_the_norm_of_the_clip(without_noise, direction):
    value = np.random.default_rng(direction).normal(size=4) * 10.0 ** (1 + 4 * direction)
    output = without_noise.next(without_noise.initialize(), [pair(*value)])
    norm = 2 * np.sqrt(np.sum(np.square(output.result["w"], dtype=np.float64)) + output.result["b"] ** 2)
    np.testing.assert_allclose(norm, 1.5, rtol=3e-7)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_counts_as_zeros(without_noise, bad):
    values = [pair(1, 0, 0, 0), pair(bad, 1, 1, 1), pair(0, 0, 0, bad)]
    result = without_noise.next(without_noise.initialize(), values).result
    np.testing.assert_array_equal([*result["w"], result["b"]], [0.5, 0, 0, 0])


def adaptive(noise_multiplier=0.0, clients=9, **options):
    return DP.gaussian_adaptive(noise_multiplier, clients, **options).create(NUMBER)


def test_an_adaptive_clip_moves_as_published():
    process = adaptive(clients=5, initial_l2_norm_clip=2.0, target_unclipped_quantile=0.3, learning_rate=0.5)
    state, values, clip = process.initialize(), [np.float32(x) for x in (1, -2, 3, 40)], 2.0
    for _ in range(6):
        output = process.next(state, values)
        assert output.measurements["clip"] == pytest.approx(clip, rel=1e-5)
        np.testing.assert_allclose(output.result, np.clip(values, -clip, clip).sum() / 5, rtol=1e-5)
        fraction = np.sum((np.abs(values) <= clip * (1 + 1e-6)) - 0.5) / 5 + 0.5
        state, clip = output.state, clip * np.exp(-0.5 * (fraction - 0.3))


def test_an_adaptive_clip_converges_to_the_quantile():
    process = adaptive(target_unclipped_quantile=0.7, learning_rate=0.2, initial_l2_norm_clip=0.1)
    state, values = process.initialize(), [np.float32(x) for x in np.random.default_rng(0).lognormal(1, 1, 9)]
    clips = []
    for _ in range(120):
        output = process.next(state, values)
        state = output.state
        clips.append(output.measurements["clip"])
    low, high = np.sort(values)[5:7]  # the median over rounds passes between 6 and 7 of 9 clients
    assert low * 0.9 < np.median(clips[60:]) < high * 1.1


def tree_adaptive(noise_multiplier=0.0, clients=5, **options):
    return DP.tree_adaptive(noise_multiplier, clients, **options).create(NUMBER)


def test_a_clip_that_adapts_moves_from_tree_to_tree_by_the_counts_of_all_rounds():
    process = tree_adaptive(
        initial_l2_norm_clip=2.0, restart_frequency=3, target_unclipped_quantile=0.3, clip_learning_rate=0.5
    )
    state, values, clip, estimate = process.initialize(), [np.float32(x) for x in (1, -2, 3, 40)], 2.0, 2.0
    for round_number in range(1, 8):
        output = process.next(state, values)
        assert output.measurements["clip"] == pytest.approx(clip, rel=1e-5)
        np.testing.assert_allclose(output.result, np.clip(values, -clip, clip).sum() / 5, rtol=1e-5)
        fraction = np.sum((np.abs(values) <= clip * (1 + 1e-6)) - 0.5) / 5 + 0.5
        estimate *= np.exp(-0.5 * (fraction - 0.3))
        state, clip = output.state, clip if round_number % 3 else estimate


def test_prefix_sums_of_a_tree_whose_clip_adapts_have_the_noise_of_a_tree():
    adapts = DP.tree_adaptive(2.0, 40, initial_l2_norm_clip=0.5, restart_frequency=4)
    fixed = DP.tree_aggregation(adapts.value_noise_multiplier, 40, 0.5, restart_every=4)
    deviations = []
    for factory in (adapts, fixed):
        process = factory.create(fc.to_type(("float32", [4000])))
        state, prefix = process.initialize(), np.zeros(4000)
        for seed in range(4):
            output = process.next.invoke(state, [np.zeros(4000, np.float32)], seed=seed)
            state, prefix = output.state, prefix + output.result
        deviations.append(np.std(prefix))
    assert deviations[0] == pytest.approx(deviations[1], rel=0.06)  # of independent noise it were twice as much


def test_the_first_tree_is_as_long_as_the_others():
    with pytest.raises(InvalidValue, match=r"restart_warmup is restart_frequency = 8, not 4: a ledger counts trees"):
        DP.tree_adaptive(1.0, 40, restart_warmup=4, restart_frequency=8)


def test_the_noise_of_an_adaptive_clip_follows_the_clip_and_the_count_has_noise_too():
    process = adaptive(1.0, clients=40)
    state, fractions = process.initialize(), []
    for r in range(20):
        output = process.next.invoke(state, [np.float32(5)] * 40, seed=r)
        fractions.append(output.measurements["unclipped_fraction"])
        stddev = output.measurements["noise_stddev"] / output.measurements["clip"]
        np.testing.assert_allclose(stddev, (1 - 1 / 16) ** -0.5, rtol=1e-6)
        state = output.state
    assert output.measurements["clip"] > 0.1
    assert 0.02 < np.std(fractions) < 0.1  # 2 / 40


def test_what_the_state_says_is_what_the_noise_is():
    process = DP.gaussian_fixed(1.0, 1, 1.0).create(fc.to_type(("float32", [2000])))
    state = process.initialize()
    more_noise, more_clip = (
        {**state, "private": attrs.evolve(state["private"], **{name: np.float32(2)})}
        for name in ("noise_multiplier", "clip")
    )
    one, two, three = (process.next.invoke(s, [], seed=4).result for s in (state, more_noise, more_clip))
    np.testing.assert_array_equal(two, 2 * one)
    np.testing.assert_array_equal(three, 2 * one)  # the noise follows the clip, so epsilon does not move with it


def test_noise_of_the_seed_is_the_seeds():
    process = DP.gaussian_fixed(1.0, 1, 1.0).create(NUMBER)
    one, again, other = (process.next.invoke(process.initialize(), [], seed=s).result for s in (4, 4, 5))
    assert one == again != other


def test_chacha20_is_that_of_another_library():
    key = np.random.default_rng(2).integers(0, 2**32, 8, np.uint32)
    words = chacha20(tf.constant(key), tf.constant(7, tf.uint32), 5).numpy()
    nonce = (0).to_bytes(4, "little") + (7).to_bytes(4, "little") + bytes(8)
    stream = Cipher(algorithms.ChaCha20(key.tobytes(), nonce), None).encryptor().update(bytes(320))
    assert words.T.tobytes() == stream


@pytest.fixture(scope="module")
def secure():
    return DP.tree_aggregation(1.0, 1, 1.0, restart_every=4, secure_noise=True).create(fc.to_type(("float32", [50])))


def test_secure_noise_is_never_the_same_though_state_and_seed_are(secure):
    state = secure.initialize()
    for _ in range(2):
        one, other = (secure.next.invoke(state, [], seed=1) for _ in range(2))
        assert not np.intersect1d(one.result, other.result).size
        state = one.state


def test_a_key_outside_of_a_graph_is_new_at_each_reading(secure):
    key = secure.next(secure.initialize(), []).state["private"].key
    assert isinstance(key, OperatingSystemKey)
    assert len({key.words.tobytes() for _ in range(20)}) == 20
    assert "words" not in repr(key)


def test_a_key_that_a_computation_returned_is_refused_inside_of_it(secure):
    @fc.federated_computation(secure.state_type, fc.FederatedType(("float32", [50]), fc.CLIENTS))
    def two_rounds(state, values):
        return secure.next(secure.next(state, values).state, values).result

    with pytest.raises(
        FedcoreError,
        match="secure_noise: the key of this state was used; a state gets a new one where a call from Python takes it",
    ):
        two_rounds(secure.initialize(), [])


def test_streams_of_a_key_differ_and_make_a_new_one_for_each_level():
    draw = normal_from_key(tf.constant(range(8), tf.uint32))
    assert not np.intersect1d(draw(0, 40).numpy(), draw(1, 40).numpy()).size


def test_a_secure_sum_carries_the_values_and_the_count():
    factory = DP.gaussian_adaptive(0.0, 4, initial_l2_norm_clip=1.0, sum_factory=agg.SecureSumFactory(10.0))
    process = factory.create(NUMBER)
    output = process.next(process.initialize(), [np.float32(x) for x in (0.25, 0.5, 2.0, -0.5)])
    np.testing.assert_allclose(output.result, 1.25 / 4, atol=1e-6)
    assert output.measurements["unclipped_fraction"] == 0.75
    text = process.next.to_text()
    assert text.count("= federated_secure_sum(") == 4  # the values and the count, and what was clipped of each
    assert "= federated_sum(" not in text


REFUSED = {
    "a weighted mean of private sums": (
        lambda: agg.MeanFactory(DP.gaussian_fixed(1.0, 2, 1.0)),
        "takes no DifferentiallyPrivateFactory: noise is made for what one client can change",
    ),
    "a mean that divides by the count": (
        lambda: agg.UnweightedMeanFactory(DP.gaussian_fixed(1.0, 2, 1.0)),
        "takes no DifferentiallyPrivateFactory",
    ),
    "another sum": (
        lambda: DP.gaussian_fixed(1.0, 2, 1.0, sum_factory=agg.UnweightedMeanFactory()),
        "how far one client",
    ),
    "a secure sum with an estimated bound": (
        lambda: DP.gaussian_fixed(
            1.0,
            2,
            1.0,
            sum_factory=agg.SecureSumFactory(agg.PrivateQuantileEstimationProcess.no_noise(1.0, 0.5, 0.1)),
        ),
        "SecureSumFactory with fixed bounds on both sides of 0",
    ),
    "a secure sum that lifts every value": (
        lambda: DP.gaussian_fixed(1.0, 2, 1.0, sum_factory=agg.SecureSumFactory(1.0, 0.5)),
        "SecureSumFactory with fixed bounds on both sides of 0",
    ),
    "negative noise": (lambda: DP.gaussian_fixed(-1.0, 2, 1.0), "noise_multiplier is a finite number, 0 or more"),
    "no clip": (lambda: DP.gaussian_fixed(1.0, 2, 0.0), "clip is a finite number above 0"),
    "no clients": (lambda: DP.gaussian_fixed(1.0, 0, 1.0), "clients_per_round is a finite number above 0"),
    "a count with too little noise": (
        lambda: DP.gaussian_adaptive(1.0, 9),
        "clipped_count_stddev is above noise_multiplier / 2",
    ),
    "a quantile above 1": (lambda: DP.gaussian_adaptive(1.0, 90, target_unclipped_quantile=2.0), "between 0 and 1"),
    "a tree without leaves": (
        lambda: DP.tree_aggregation(1.0, 2, 1.0, 0),
        "restart_every is a whole number, 1 or more",
    ),
    "no bands": (lambda: DP.banded_matrix_factorization(1.0, 2, 1.0, 10, 0), "bands is a whole number, 1 or more"),
    "complex values": (lambda: DP.gaussian_fixed(1.0, 2, 1.0).create(fc.to_type("complex64")), "real values"),
    "whole numbers": (lambda: DP.gaussian_fixed(1.0, 2, 1.0).create(fc.to_type("int32")), "inexact values"),
    "unknown shapes": (lambda: DP.gaussian_fixed(1.0, 2, 1.0).create(fc.to_type(("float32", [None]))), "known shapes"),
    "no tensors": (
        lambda: DP.gaussian_fixed(1.0, 2, 1.0).create(fc.to_type(())),
        "and <> has none",
    ),
    "no elements": (lambda: MECHANISMS["efficient tree"][0]().create(fc.to_type(("float32", [0]))), "has none"),
}


def test_the_reference_runtime_draws_the_same_noise():
    fc.testing.check_aggregator(MECHANISMS["efficient tree"][0](), ("float32", [3]))


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_private_is_refused_with_the_reason(what):
    make, says = REFUSED[what]
    with pytest.raises(FedcoreError, match=says):
        make()


def test_a_weighted_algorithm_refuses_it_with_the_reason():
    from fedcore.learning.algorithms.given_parts import build_aggregation

    with pytest.raises(TypeMismatch, match="a weighted algorithm takes no DifferentiallyPrivateFactory: noise is made"):
        build_aggregation(DP.gaussian_fixed(1.0, 2, 1.0), fc.to_type("float32"), fc.to_type("float32"))


def test_the_streams_of_a_call_do_not_meet():
    assert differential_privacy._COUNT_STREAM > 64  # levels of a tree
