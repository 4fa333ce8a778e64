"""TFF's training loop: which rounds run, what is evaluated, saved and released."""

import asyncio
import doctest

import numpy as np
import pytest

import fedcore as fc
from fedcore.simulation import run_training_process, training_loop

TYPES = (fc.FederatedType("int32", fc.SERVER), fc.FederatedType("int32", fc.CLIENTS))


@fc.federated_computation
def start():
    return fc.federated_value(np.int32(0), fc.SERVER)


@fc.federated_computation(*TYPES)
def add(state, values):
    added = fc.federated_sum(values)
    return fc.federated_map(lambda x, y: x + y, (state, added)), fc.federated_zip({"added": added})


PROCESS = fc.templates.IterativeProcess(start, add)


def clients(round_number):
    return [round_number, 1]


class States:
    def __init__(self, saved=None, version=0):
        self.saved, self.version, self.versions = saved, version, []

    async def load_latest(self, structure):
        await asyncio.sleep(0)
        return self.saved, self.version

    async def save(self, state, version):
        self.versions.append((int(state), version))


class Metrics:
    def __init__(self):
        self.released = {}

    async def release(self, value, *, key):
        self.released[key] = dict(value)


def test_rounds_run_from_one_and_the_last_state_is_returned():
    assert run_training_process(PROCESS, clients, total_rounds=3) == 1 + 2 + 3 + 3


def test_no_rounds_give_the_initial_state():
    assert run_training_process(PROCESS, clients, 0) == 0


def test_metrics_have_the_round_the_times_and_what_was_evaluated():
    metrics, states = Metrics(), States()
    run_training_process(
        PROCESS,
        clients,
        total_rounds=3,
        evaluation_fn=lambda state, data: {"loss": float(state) - data},
        evaluation_selection_fn=lambda round_number: 100 * round_number,
        rounds_per_evaluation=2,
        program_state_manager=states,
        rounds_per_saving_program_state=2,
        metrics_managers=[metrics],
    )
    assert states.versions == [(0, 0), (5, 2)]
    evaluation = ["evaluation/loss", "evaluation/evaluation_time_in_seconds"]
    training = ["added", "training_time_in_seconds", "round_number"]
    assert {key: list(value) for key, value in metrics.released.items()} == {
        0: evaluation,
        1: training,
        2: training + evaluation,
        3: training,
    }
    assert metrics.released[2]["evaluation/loss"] == 5 - 200
    assert metrics.released[3]["added"] == 4


def test_a_run_goes_on_after_the_saved_round():
    states = States(saved=np.int32(50), version=2)
    assert run_training_process(PROCESS, clients, 3, program_state_manager=states) == 54
    assert states.versions == [(54, 3)]


def test_an_error_of_a_manager_is_no_consequence_of_an_event_loop():
    class Full(States):
        async def save(self, program_state, version):
            raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space left") as caught:
        run_training_process(PROCESS, clients, 1, program_state_manager=Full())
    assert caught.value.__context__ is None


def test_it_runs_inside_a_running_event_loop():
    async def inside():
        return run_training_process(PROCESS, clients, 1, program_state_manager=States())

    assert asyncio.run(inside()) == 2


def test_metrics_without_names_and_numbers_out_of_range_are_refused():
    plain = fc.templates.IterativeProcess(
        start, fc.federated_computation(lambda s, v: (s, fc.federated_sum(v)), *TYPES)
    )
    with pytest.raises(TypeError, match=r"the metrics of training_process\.next are by name, not"):
        run_training_process(plain, clients, 1)
    with pytest.raises(ValueError, match="rounds_per_evaluation is a whole number, 1 or more, not 0"):
        run_training_process(PROCESS, clients, 1, rounds_per_evaluation=0)


def test_the_example_of_the_docs_runs():
    assert doctest.testmod(training_loop, extraglobs={"process": PROCESS, "clients": [1, 2]}).failed == 0
