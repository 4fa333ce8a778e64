"""The ledger: what it reads, and that no weakening of privacy passes in silence."""

import doctest
import importlib
import json
import math

import attrs
import dp_accounting as dp
import keras
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

import fedcore as fc
from fedcore.errors import InvalidValue, TypeMismatch
from fedcore.simulation.participation import (
    every_round,
)

DP = fc.aggregators.DifferentiallyPrivateFactory
NUMBER = fc.to_type("float32")
IDS = [f"client {i}" for i in range(200)]
POISSON = fc.simulation.build_poisson_sampling_fn(IDS, 0.1, seed=3)
ROUNDS = 6
DELTA = 1e-3

FACTORIES = {
    "fixed": lambda z=2.0, **o: DP.gaussian_fixed(z, 20, 1.0, **o),
    "adaptive": lambda z=1.5, **o: DP.gaussian_adaptive(z, 20, **o),
    "tree": lambda z=6.0, restart=4, **o: DP.tree_aggregation(z, 20, 1.0, restart, **o),
    "banded": lambda z=2.0, bands=3, **o: DP.banded_matrix_factorization(z, 20, 1.0, rounds=12, bands=bands, **o),
}
_made: dict = {}


def process_of(factory):
    """One process, and its first state, for equal factories of this file."""
    key = repr((factory.noise_multiplier, factory.noise, factory.adaptive))
    if key not in _made:
        process = factory.create(NUMBER)
        _made[key] = process, process.initialize()
    return _made[key]


def after(state, number, **changes):
    """The state after so many rounds, with some parts of the private one changed."""
    return {**state, "private": attrs.evolve(state["private"], round=np.int64(number), **changes)}


def recorded(factory, sampler=POISSON, cohort=None, rounds=ROUNDS, change=lambda private, number: {}, delta=DELTA):
    """The ledger after some rounds whose states were changed."""
    process, state = process_of(factory)
    found = fc.privacy.Ledger(process, sampler, delta=delta)
    for number in range(1, rounds + 1):
        clients = sampler(number - 1) if cohort is None else cohort
        found.record(after(state, number, **change(state["private"], number)), clients)
    return found


def weaker(private, number, **factors):
    """Changes parts of the private state by factors, from the third round on."""
    return {name: np.float32(getattr(private, name) * factor) for name, factor in factors.items()} if number > 2 else {}


def tree_with(private, number, **changes):
    return {"noise": attrs.evolve(private.noise, **changes)} if number > 2 else {}


MINIMUM = fc.simulation.build_min_separation_sampling_fn(IDS, 3, seed=1)
SOONER = fc.simulation.build_min_separation_sampling_fn(IDS, 2, seed=1)
PASSES, SAME = (fc.simulation.build_random_permutation_sampling_fn(IDS, 50, r, seed=1) for r in (True, False))
UNIFORM = fc.simulation.build_uniform_sampling_fn(IDS, seed=1)

# name -> (a right run, the same with less privacy): the second has a larger epsilon, or is refused
MUTATIONS = {
    "the noise of a factory halved": lambda: (recorded(FACTORIES["fixed"]()), recorded(FACTORIES["fixed"](1.0))),
    "the noise of a state halved": lambda: (
        recorded(FACTORIES["fixed"]()),
        recorded(FACTORIES["fixed"](), change=lambda p, n: weaker(p, n, noise_multiplier=0.5)),
    ),
    "the noise of one round removed": lambda: (
        recorded(FACTORIES["fixed"]()),
        recorded(FACTORIES["fixed"](), change=lambda p, n: weaker(p, n, noise_multiplier=0.0)),
    ),
    "the noise of a state negative": lambda: (
        recorded(FACTORIES["fixed"]()),
        recorded(FACTORIES["fixed"](), change=lambda p, n: weaker(p, n, noise_multiplier=-1.0)),
    ),
    "the noise of a state no number": lambda: (
        recorded(FACTORIES["fixed"]()),
        recorded(FACTORIES["fixed"](), change=lambda p, n: weaker(p, n, noise_multiplier=math.nan)),
    ),
    "the clip of a state infinite": lambda: (
        recorded(FACTORIES["fixed"]()),
        recorded(FACTORIES["fixed"](), change=lambda p, n: weaker(p, n, clip=math.inf)),
    ),
    "the noise of an adaptive clip halved": lambda: (
        recorded(FACTORIES["adaptive"]()),
        recorded(FACTORIES["adaptive"](), change=lambda p, n: weaker(p, n, noise_multiplier=0.5)),
    ),
    "the noise of a count halved": lambda: (
        recorded(FACTORIES["adaptive"]()),
        recorded(FACTORIES["adaptive"](), change=lambda p, n: weaker(p, n, count_stddev=0.5)),
    ),
    "the noise of a count removed": lambda: (
        recorded(FACTORIES["adaptive"]()),
        recorded(FACTORIES["adaptive"](), change=lambda p, n: weaker(p, n, count_stddev=0.0)),
    ),
    "the noise of a tree halved": lambda: (
        recorded(FACTORIES["tree"](), MINIMUM, 20),
        recorded(FACTORIES["tree"](3.0), MINIMUM, 20),
    ),
    "the noise of a tree halved on the way": lambda: (
        recorded(FACTORIES["tree"](), MINIMUM, 20),
        recorded(FACTORIES["tree"](), MINIMUM, 20, change=lambda p, n: weaker(p, n, noise_multiplier=0.5)),
    ),
    "a tree of more levels": lambda: (
        recorded(FACTORIES["tree"](restart=3), MINIMUM, 20),
        recorded(FACTORIES["tree"](restart=6), MINIMUM, 20),
    ),
    "a tree restarted on the way": lambda: (
        recorded(FACTORIES["tree"](), MINIMUM, 20),
        recorded(FACTORIES["tree"](), MINIMUM, 20, change=lambda p, n: tree_with(p, n, restart_every=np.int64(2))),
    ),
    "a tree with more leaves than it has levels for": lambda: (
        recorded(FACTORIES["tree"](), MINIMUM, 20),
        recorded(FACTORIES["tree"](), MINIMUM, 20, change=lambda p, n: tree_with(p, n, restart_every=np.int64(8))),
    ),
    "the coefficients of banded noise increase": lambda: (
        recorded(FACTORIES["banded"](), MINIMUM, 20),
        recorded(
            FACTORIES["banded"](),
            MINIMUM,
            20,
            change=lambda p, n: {"noise": attrs.evolve(p.noise, coefficients=p.noise.coefficients[::-1])},
        ),
    ),
    "the columns of banded noise longer": lambda: (
        recorded(FACTORIES["banded"](), MINIMUM, 20),
        recorded(
            FACTORIES["banded"](),
            MINIMUM,
            20,
            change=lambda p, n: {"noise": attrs.evolve(p.noise, coefficients=2 * p.noise.coefficients)},
        ),
    ),
    "more bands than rounds between participations": lambda: (
        recorded(FACTORIES["banded"](), MINIMUM, 20),
        recorded(FACTORIES["banded"](bands=5), MINIMUM, 20),
    ),
    "clients that come sooner": lambda: (
        recorded(FACTORIES["banded"](), MINIMUM, 20),
        recorded(FACTORIES["banded"](), SOONER, 20),
    ),
    "passes in orders of their own under banded noise": lambda: (
        recorded(FACTORIES["banded"](), SAME, 50),
        recorded(FACTORIES["banded"](), PASSES, 50),
    ),
    "the rate of the sampler doubled": lambda: (
        recorded(FACTORIES["fixed"]()),
        recorded(FACTORIES["fixed"](), fc.simulation.build_poisson_sampling_fn(IDS, 0.2, seed=3)),
    ),
    "the clients of a round doubled": lambda: (
        recorded(FACTORIES["fixed"](), UNIFORM, 10),
        recorded(FACTORIES["fixed"](), UNIFORM, 20),
    ),
    "clients drawn with replacement": lambda: (
        recorded(FACTORIES["fixed"](), UNIFORM, 20),
        recorded(FACTORIES["fixed"](), fc.simulation.build_uniform_sampling_fn(IDS, replace=True, seed=1), 20),
    ),
    "a schedule in place of sampling": lambda: (
        recorded(FACTORIES["fixed"]()),
        recorded(FACTORIES["fixed"](), every_round(200), 20),
    ),
    "fixed-size sampling accounted as Poisson, by identifiers": lambda: (
        recorded(FACTORIES["fixed"]()),
        recorded(FACTORIES["fixed"](), POISSON, UNIFORM(0, 20)),
    ),
    "Poisson sampling of another rate, by numbers": lambda: (
        recorded(FACTORIES["fixed"](), POISSON, 20),
        recorded(FACTORIES["fixed"](), POISSON, 60),
    ),
    "passes with too many clients": lambda: (
        recorded(FACTORIES["fixed"](), PASSES, 50),
        recorded(FACTORIES["fixed"](), PASSES, 100),
    ),
    "more clients than there are": lambda: (
        recorded(FACTORIES["fixed"](), UNIFORM, 20),
        recorded(FACTORIES["fixed"](), UNIFORM, 201),
    ),
    "more rounds": lambda: (recorded(FACTORIES["fixed"]()), recorded(FACTORIES["fixed"](), rounds=12)),
    "a smaller delta": lambda: (recorded(FACTORIES["fixed"]()), recorded(FACTORIES["fixed"](), delta=1e-6)),
    "a delta by which a client may be published": lambda: (
        recorded(FACTORIES["fixed"]()),
        recorded(FACTORIES["fixed"](), delta=0.01),
    ),
}


def test_there_are_at_least_twenty_mutations():
    assert len(MUTATIONS) >= 20


@pytest.mark.parametrize("name", MUTATIONS)
def test_no_weakening_passes_in_silence(name):
    right = []
    recorded_before = recorded

    def keep(*args, **kwargs):
        right.append(recorded_before(*args, **kwargs))
        return right[-1]

    globals()["recorded"] = keep
    try:
        _, mutated = MUTATIONS[name]()
    except InvalidValue:
        assert len(right) == 1  # the right run was accepted
    else:
        assert math.isfinite(right[0].epsilon())
        assert mutated.epsilon() > right[0].epsilon() * 1.001
    finally:
        globals()["recorded"] = recorded_before


def test_the_epsilon_of_rounds_with_different_noise_is_that_of_their_composition():
    found = recorded(FACTORIES["fixed"](), change=lambda p, n: weaker(p, n, noise_multiplier=0.5))
    theirs = RdpAccountant()
    for z, count in ((2.0, 2), (1.0, 4)):
        theirs.compose(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(z)), count)
    assert found.epsilon() == pytest.approx(theirs.get_epsilon(DELTA))
    assert found.epsilon(rounds=2) < found.epsilon(rounds=3) < found.epsilon()
    assert found.epsilon(1e-5) > found.epsilon()
    assert found.epsilon(rounds=0) == 0


def test_a_sum_and_a_count_are_as_private_as_the_factorys_noise_multiplier():
    found, fixed = recorded(FACTORIES["adaptive"]()), recorded(FACTORIES["fixed"](1.5))
    assert found.epsilon() == pytest.approx(fixed.epsilon(), rel=1e-5)


@pytest.fixture(scope="module")
def learning():
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    data = fc.data.ClientDataset.from_columns((x, x.sum(1, keepdims=True))).batch(3)

    def model_fn():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        return fc.learning.from_keras_model(model, keras.losses.MeanSquaredError(), data.element_spec)

    return model_fn, data


def test_a_learning_process_is_followed_by_its_state(learning):
    model_fn, data = learning
    aggregator = fc.learning.dp_aggregator(0.5, clients_per_round=20)
    process = fc.learning.algorithms.build_unweighted_fed_avg(
        model_fn, lambda: keras.optimizers.SGD(0.1), model_aggregator=aggregator
    )
    found, state = fc.privacy.Ledger(process, POISSON, delta=DELTA), process.initialize()
    assert found.without_noise == tuple(
        f"metrics.client_work.train.{name}"
        for name in ("loss", "num_examples", "num_batches", "num_non_finite_clients")
    )
    for number in range(2):
        cohort = POISSON(number)
        state, _ = process.next(state, [data] * len(cohort))
        record = found.record(state, cohort)
    theirs = RdpAccountant().compose(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(0.5)), 2).get_epsilon(DELTA)
    assert record == {
        "round": 2,
        "epsilon": pytest.approx(theirs, rel=1e-5),
        "delta": DELTA,
        "noise_multiplier": pytest.approx(0.5, rel=1e-5),
    }


@pytest.mark.parametrize("builder", ["weighted fed_avg", "mime_lite", "scaffold"])
def test_an_algorithm_with_another_way_for_values_is_refused(learning, builder):
    model_fn, _ = learning
    algorithms, private = fc.learning.algorithms, FACTORIES["fixed"]()
    build = {
        "weighted fed_avg": lambda: algorithms.build_weighted_fed_avg(
            model_fn, lambda: keras.optimizers.SGD(0.1), model_aggregator=private
        ),
        "mime_lite": lambda: algorithms.build_unweighted_mime_lite(
            model_fn, keras.optimizers.SGD(0.1, momentum=0.9), model_aggregator=private
        ),
        "scaffold": lambda: algorithms.build_scaffold(model_fn, 0.1, num_clients=4),
    }[builder]
    with pytest.raises(
        TypeMismatch, match=r"noise is made for|reach state\..* without noise|no aggregation with noise"
    ):
        fc.privacy.Ledger(build(), POISSON, delta=DELTA)


def test_an_estimate_without_noise_around_a_private_sum_is_refused():
    norm = fc.aggregators.PrivateQuantileEstimationProcess.no_noise(1.0, 0.5, 0.1)
    process = fc.aggregators.zeroing_factory(norm, FACTORIES["fixed"]()).create(NUMBER)
    with pytest.raises(TypeMismatch, match=r"clients' values reach state.zeroing_norm of the process without noise"):
        fc.privacy.Ledger(process, POISSON, delta=DELTA)


def test_measurements_without_noise_are_listed():
    measured = fc.aggregators.add_measurements(FACTORIES["fixed"](), lambda value: {"total": fc.federated_sum(value)})
    found = fc.privacy.Ledger(measured.create(NUMBER), POISSON, delta=DELTA)
    assert found.without_noise == ("measurements.total",)


def test_post_processing_and_weights_that_are_ignored_are_accepted():
    process = fc.aggregators.as_weighted_aggregator(fc.aggregators.concat_factory(FACTORIES["fixed"]())).create(
        NUMBER, NUMBER
    )
    assert fc.privacy.Ledger(process, POISSON, delta=DELTA).without_noise == ()


def test_what_is_no_private_process_or_sampler_is_refused():
    process, _ = process_of(FACTORIES["fixed"]())
    for wrong, sampler, says in (
        (fc.aggregators.SumFactory().create(NUMBER), POISSON, "holds no aggregation with noise"),
        (len, POISSON, "a ledger follows a LearningProcess"),
        (process, lambda r, n: IDS[:n], "the sampler does not say how it draws"),
    ):
        with pytest.raises(TypeMismatch, match=says):
            fc.privacy.Ledger(wrong, sampler, delta=DELTA)


def test_each_round_is_recorded_once_and_in_order():
    process, state = process_of(FACTORIES["fixed"]())
    found = fc.privacy.Ledger(process, POISSON, delta=DELTA)
    with pytest.raises(InvalidValue, match="2 rounds of noise, but none is recorded"):
        found.record(after(state, 2), 20)
    found.record(after(state, 1), 20)
    for number in (1, 3):
        with pytest.raises(
            InvalidValue, match=f"has done {number} rounds of noise, and 1 when a round was last recorded"
        ):
            found.record(after(state, number), 20)
    assert found.record(after(state, 2), 20)["round"] == 2


def test_a_refused_round_is_not_recorded():
    process, state = process_of(FACTORIES["fixed"]())
    found = fc.privacy.Ledger(process, POISSON, delta=DELTA)
    with pytest.raises(InvalidValue, match=r"draws 20 clients a round, give or take 4\.24, not 90"):
        found.record(after(state, 1), 90)
    assert found.epsilon() == 0
    found.record(after(state, 1), POISSON(0))


def test_a_resumed_training_goes_on_with_the_ledgers_state():
    half, whole = recorded(FACTORIES["banded"](), MINIMUM, 20, rounds=3), recorded(FACTORIES["banded"](), MINIMUM, 20)
    process, state = process_of(FACTORIES["banded"]())
    resumed = fc.privacy.Ledger(process, MINIMUM, delta=DELTA)
    resumed.set_state(json.loads(json.dumps(half.get_state())))
    for number in range(4, 7):
        resumed.record(after(state, number), 20)
    assert resumed.epsilon() == whole.epsilon()
    assert "Ledger of 6 rounds: epsilon" in repr(resumed)
    assert "a client sends its values or zeros" in repr(resumed)


def test_a_state_from_a_file_is_read_as_dicts():
    process, state = process_of(FACTORIES["tree"]())
    plain = {**state, "private": attrs.asdict(after(state, 1)["private"])}
    assert fc.privacy.Ledger(process, MINIMUM, delta=DELTA).record(plain, 20)["noise_multiplier"] == 6.0


def test_the_sampler_is_asked_from_the_first_round_on():
    process, state = process_of(FACTORIES["fixed"]())
    found = fc.privacy.Ledger(process, POISSON, delta=DELTA, first_round=7)
    found.record(after(state, 1), POISSON(7))
    with pytest.raises(InvalidValue, match=r"clients in round 8, but \d+ took part"):
        found.record(after(state, 2), POISSON(7))


def test_rounds_on_both_sides_of_a_pass_are_two_participations():
    process, state = process_of(FACTORIES["fixed"]())
    sampler = fc.simulation.build_random_permutation_sampling_fn(IDS, 60, seed=1)  # three rounds a pass
    begun = {}
    for first in (0, 2):
        begun[first] = fc.privacy.Ledger(process, sampler, delta=DELTA, first_round=first)
        for number in (1, 2):
            begun[first].record(after(state, number), sampler(first + number - 1))
    one, two = (
        RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_SPECIAL)
        .compose(dp.GaussianDpEvent(2.0), count)
        .get_epsilon(DELTA)
        for count in (1, 2)
    )
    assert begun[0].epsilon() == pytest.approx(one)
    assert begun[2].epsilon() == pytest.approx(two)


def test_a_ledger_that_begins_with_another_round_refuses_the_state():
    process, _ = process_of(FACTORIES["fixed"]())
    kept = fc.privacy.Ledger(process, POISSON, delta=DELTA, first_round=2).get_state()
    with pytest.raises(InvalidValue, match="begin with first_round=2, and this ledger with 0"):
        fc.privacy.Ledger(process, POISSON, delta=DELTA).set_state(kept)


def secure(name):
    """The process of a factory whose noise has a key of the operating system, its first state and its ledger."""
    process = FACTORIES[name](secure_noise=True).create(NUMBER)
    return process.initialize(), fc.privacy.Ledger(process, POISSON, delta=DELTA)


def test_five_results_of_a_round_cost_what_five_cost():
    state, found = secure("fixed")
    found.record(after(state, 1), POISSON(0))
    for _ in range(4):
        record = found.record_again(after(state, 1), POISSON(0))
    event = dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(2.0 / math.sqrt(5)))
    expected = RdpAccountant(neighboring_relation=dp.NeighboringRelation.ADD_OR_REMOVE_ONE).compose(event)
    assert record["epsilon"] == pytest.approx(expected.get_epsilon(DELTA))
    assert found.record(after(state, 2), POISSON(1))["round"] == 2
    again = fc.privacy.Ledger(found._process, POISSON, delta=DELTA)
    again.set_state(json.loads(json.dumps(found.get_state())))
    assert again.epsilon() == found.epsilon()


def test_two_results_of_one_noise_are_refused():
    process, state = process_of(FACTORIES["fixed"]())
    found = fc.privacy.Ledger(process, POISSON, delta=DELTA)
    with pytest.raises(InvalidValue, match="the state has done 1 rounds of noise, of which no result is recorded"):
        found.record_again(after(state, 1), 20)
    found.record(after(state, 1), 20)
    with pytest.raises(InvalidValue, match="round 1 of noise has another result, and both have the same noise"):
        found.record_again(after(state, 1), 20)


def test_two_results_of_correlated_noise_are_refused():
    state, found = secure("tree")
    found.record(after(state, 1), 20)
    with pytest.raises(InvalidValue, match="another result, and its noise is correlated with that of other rounds"):
        found.record_again(after(state, 1), 20)


@pytest.mark.parametrize("name", ["ledger", "calibration", "audit", "epsilon_callback"])
def test_the_examples_of_the_docs_run(name):
    module = importlib.import_module(f"fedcore.privacy.{name}")
    names = doctest.DocTestParser().get_doctest(fc.privacy.__doc__, {}, "fedcore.privacy", None, 0)
    doctest.DocTestRunner().run(names, clear_globs=False)
    assert doctest.testmod(module, extraglobs=names.globs).failed == 0
