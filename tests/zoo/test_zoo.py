"""The zoo: no model, data or training means here something else than in plain Keras and plain tf.data.

A seeded sample runs with all tests; everything runs in `make soak`, and in `python -m benchmarks.zoo` with a table.
"""

import attrs
import numpy as np
import pytest

from .families import DATA_KINDS, MODELS, TRAININGS
from .random_pipelines import random_pipeline
from .random_programs import minimal, random_program
from .runner import DIFFERS, Comparison, compare, compare_draws


def check(*comparisons: Comparison) -> None:
    assert not [str(c) for c in comparisons if c.outcome == DIFFERS]


def is_of_an_optimizer(training: str) -> bool:
    """Whether a training has another optimizer of the clients than "sgd", and differs in nothing else.

    tests/learning/test_optimizers.py compares each optimizer with Keras' own.
    """
    with_sgd = attrs.evolve(TRAININGS[training], name="sgd", client=TRAININGS["sgd"].client, own_client=None)
    return training != "sgd" and with_sgd == TRAININGS["sgd"]


def sample(seed: int) -> list:
    """Each training once, with a model and data that go together; those of optimizers in `make soak` only."""
    rng = np.random.default_rng(seed)
    entries = []
    for training in TRAININGS:
        model = list(MODELS.values())[rng.integers(len(MODELS))]
        kinds = [kind.name for kind in DATA_KINDS.values() if kind.obstacle(model) is None]
        entry = model.name, kinds[rng.integers(len(kinds))], training
        entries.append(pytest.param(*entry, marks=pytest.mark.soak if is_of_an_optimizer(training) else ()))
    return entries


@pytest.mark.parametrize(("model", "data", "training"), sample(seed=15))
def test_a_sample_is_what_plain_keras_gives(model, data, training):
    check(*compare(MODELS[model], TRAININGS[training], [DATA_KINDS[data]]))


@pytest.mark.parametrize("seed", [0, 2, 3, 4, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 5, 6, 7))])
def test_random_programs_are_what_plain_keras_gives(seed):
    check_program(seed)


def check_program(seed: int) -> None:
    program = random_program(seed)
    outcome = program.compare()
    if outcome.outcome == DIFFERS:
        shortest, outcome = minimal(program, outcome)
        pytest.fail(f"{outcome}\n\n{shortest.text()}")


@pytest.mark.parametrize("seed", range(20))
def test_random_pipelines_read_what_tf_data_reads(seed):
    check(random_pipeline(seed).compare())


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if model.draws])
def test_draws_of_layers_differ_between_seeds_and_rounds_only(name):
    check(compare_draws(MODELS[name]))


@pytest.mark.soak
@pytest.mark.parametrize("model", MODELS)
def test_every_kind_of_data_is_what_plain_keras_gives(model):
    check(*compare(MODELS[model], TRAININGS["sgd"]))


@pytest.mark.soak
@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize("model", MODELS)
def test_every_training_is_what_plain_keras_gives(model, training):
    kinds = [DATA_KINDS[name] for name in ("full batches", "a client without examples")]
    check(*compare(MODELS[model], TRAININGS[training], kinds))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 1300))
def test_more_random_programs_are_what_plain_keras_gives(seed):
    check_program(seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 1300))
def test_more_random_pipelines_read_what_tf_data_reads(seed):
    check(random_pipeline(seed).compare())
