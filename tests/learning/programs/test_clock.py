"""`train` on a virtual clock: FedBuff as its paper writes it, times in the history, resumes."""

import heapq
import math

import fed_buff
import numpy as np
import pytest
import tiny

import fedcore as fc
from fedcore.errors import InvalidValue, NotFound, TypeMismatch
from fedcore.learning import programs


@pytest.fixture(scope="module")
def buffered():
    return fed_buff.build()


@pytest.fixture(scope="module")
def devices(data):
    return fc.simulation.Devices(data.client_ids, work_s=[10, 20, 30, 40, 50, 60], seed=0)


def train(process, data, rounds, **options):
    return programs.train(process, data, rounds, **{"seed": 5, "progress": False, **options})


def train_buffered(process, rounds, **options):
    return train(process, fed_buff.clients(), rounds, **{"clock": fed_buff.clock(), **options})


def local_change(weights: np.ndarray, client: int) -> np.ndarray:
    """The change of a client's SGD steps on the mean squared error, over its batches of 2."""
    x, y = (array.astype(np.float64) for array in fed_buff.arrays(client))
    y_hat = weights.copy()
    for first in range(0, len(x), 2):
        rows, labels = x[first : first + 2], y[first : first + 2]
        y_hat -= fed_buff.RATE * 2 * rows.T @ (rows @ y_hat - labels) / len(rows)
    return y_hat - weights


def fed_buff_in_numpy(weights: np.ndarray, steps: int, scale) -> tuple[np.ndarray, list[float]]:
    """Algorithm 1 of arXiv:2106.06639, all clients always at work: the weights, and the times of the steps."""
    t, buffer, k, times = 0, np.zeros_like(weights), 0, []
    running = [(seconds, client, weights, 0) for client, seconds in enumerate(fed_buff.WORK_S)]
    heapq.heapify(running)
    while len(times) < steps:
        now, client, began_from, began_at = heapq.heappop(running)
        buffer, k = buffer + scale(t - began_at) * local_change(began_from, client), k + 1
        if k == fed_buff.BUFFER:
            weights = weights + fed_buff.SERVER_RATE * buffer / fed_buff.BUFFER
            t, buffer, k = t + 1, np.zeros_like(weights), 0
            times.append(now)
        heapq.heappush(running, (now + fed_buff.WORK_S[client], client, weights, t))
    return weights, times


@pytest.mark.parametrize(
    ("scaling", "scale"),
    [({"staleness_scale": None}, lambda staleness: 1.0), ({}, lambda staleness: (1 + staleness) ** -0.5)],
    ids=["as-written", "scaled"],
)
def test_fed_buff_is_algorithm_1_of_its_paper(scaling, scale):
    process, rounds = fed_buff.build(**scaling), 40
    (first,) = process.initialize.invoke(seed=5).global_model_weights.trainable
    weights, times = fed_buff_in_numpy(first.astype(np.float64), rounds, scale)
    history = train_buffered(process, rounds)
    np.testing.assert_allclose(history.state.global_model_weights.trainable[0], weights, rtol=2e-5)
    np.testing.assert_allclose(history["clock/time_s"], times)
    assert max(history["clock/staleness"]) > 2


def test_without_a_clock_nothing_is_stale(buffered):
    history = train(buffered, fed_buff.clients(), 2, clients_per_round=3)
    state = buffered.initialize.invoke(seed=5)
    sample = fc.simulation.build_uniform_sampling_fn(fed_buff.clients().client_ids, seed=5)
    for round_num in range(2):
        cohort = [fed_buff.clients().create_tf_dataset_for_client(i) for i in sample(round_num, 3)]
        start = fc.learning.ClientStart(state.global_model_weights, np.int32(0))
        state = buffered.next(state, cohort, [start] * 3).state
    np.testing.assert_array_equal(
        history.state.global_model_weights.trainable[0], state.global_model_weights.trainable[0]
    )


def test_each_client_that_begins_is_sent_a_model(buffered):
    rows = train_buffered(buffered, 3, clock=fed_buff.clock(concurrency=2)).rows
    selected = [row["clock/selected"] for row in rows]
    hyperparameters = 32 * fed_buff.BUFFER
    assert [row["broadcast_bits"] - hyperparameters for row in rows] == [64 * n for n in selected]


def test_a_buffered_training_goes_on_bit_for_bit(buffered, tmp_path):
    whole = train_buffered(buffered, 9)
    train_buffered(buffered, 4, directory=tmp_path)
    resumed = train_buffered(buffered, 9, directory=tmp_path)
    assert resumed.rows == whole.rows
    assert (
        resumed.state.global_model_weights.trainable[0].tobytes()
        == whole.state.global_model_weights.trainable[0].tobytes()
    )


def test_checkpoints_of_another_clock_are_refused(process, data, devices, tmp_path):
    train(process, data, 2, clock=fc.simulation.SynchronousClock(devices, 3, seed=0), directory=tmp_path)
    other = fc.simulation.SynchronousClock(devices, 1, seed=0)
    with pytest.raises(InvalidValue, match=r"another clock: round 2 ended at 120.0 s, and ends at"):
        train(process, data, 3, clock=other, directory=tmp_path)


def test_rounds_have_the_clients_and_times_of_the_clock(process, data, devices):
    clock = fc.simulation.SynchronousClock(devices, 2, over_selection=1.5, seed=3)
    history = train(process, data, 3, clock=clock)
    rounds = [clock.round(number) for number in range(3)]
    assert history["clock/time_s"] == [r.ends_s for r in rounds]
    assert history["clock/selected"] == [3, 3, 3]
    assert history["num_examples"] == [sum(int(i[-1]) + 1 for i in r.client_ids) for r in rounds]


def test_a_round_in_which_nobody_reports_leaves_the_weights(buffered):
    devices = fc.simulation.Devices(fed_buff.clients().client_ids, work_s=60, dropout=1.0, seed=0)
    clock = fc.simulation.SynchronousClock(devices, 2, deadline_s=30, seed=0)
    history = train_buffered(buffered, 1, clock=clock)
    first = buffered.initialize.invoke(seed=5).global_model_weights.trainable[0]
    np.testing.assert_array_equal(history.state.global_model_weights.trainable[0], first)
    assert history["clients"] == [0]


def test_time_to_is_the_time_of_the_first_row_that_is_as_good():
    rows = [{"round": i, "clock/time_s": 10.0 * i, "val_accuracy": a} for i, a in enumerate([0.1, np.nan, 0.5, 0.4])]
    history = programs.History([*rows, {"round": 4, "clock/time_s": 40.0}])
    assert history.time_to("val_accuracy", 0.5) == 20.0
    assert history.time_to("val_accuracy", 0.6) == math.inf
    with pytest.raises(NotFound, match="clock/time_s"):
        programs.History([{"round": 1, "loss": 1.0}]).time_to("loss", 0.5)


def test_histories_are_drawn_over_the_hours_of_the_clock(tmp_path):
    pytest.importorskip("matplotlib")
    rows = [{"round": i, "clock/time_s": 3600.0 * i, "val_loss": 1.0 / (i + 1), "loss": 1.0} for i in range(3)]
    histories = {"a": programs.History(rows), "b": programs.History(rows[:2])}
    figure = programs.plot_histories(histories, tmp_path / "curves.png", over="time")
    (axis,) = figure.axes
    assert [list(line.get_xdata()) for line in axis.lines] == [[0, 1, 2], [0, 1]]
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["a", "b"]
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_what_does_not_fit_a_clock_is_refused(process, data, devices):
    clock = fc.simulation.BufferedClock(devices, 2, concurrency=3)
    with pytest.raises(TypeMismatch, match=r"begins from the newest\n  fix: fc.learning.algorithms.build_fed_buff"):
        train(process, data, 1, clock=clock)
    synchronous = fc.simulation.SynchronousClock(devices, 2)
    with pytest.raises(TypeMismatch, match=r"leave out sampler"):
        train(process, data, 1, clock=synchronous, sampler=lambda number: data.client_ids)
    with pytest.raises(InvalidValue, match=r"a device of client 'client_2', who is not in data"):
        train(process, tiny.clients(2), 1, clock=synchronous)
    with pytest.raises(TypeMismatch, match=r"clock is a fc.simulation.VirtualClock, such as"):
        train(process, data, 1, clock=devices)


def test_a_process_that_takes_no_models_is_no_asynchronous_one(process):
    with pytest.raises(TypeMismatch, match="takes a LearningAlgorithmState, data, and the models"):
        fc.learning.AsynchronousProcess(process.initialize, process.next)


@pytest.mark.parametrize("scale", ["sqrt", lambda staleness: staleness])
def test_a_scale_that_is_no_factor_is_refused(scale):
    with pytest.raises(TypeMismatch, match=r"staleness_scale (is a function or None|returns a float), not"):
        fed_buff.build(staleness_scale=scale)
