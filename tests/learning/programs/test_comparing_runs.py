"""Runs that are compared: rounds to a target, diagrams of many runs, the states of directories."""

import contextlib
import json
import math
import os
import platform
import signal
import time

import numpy as np
import pytest

from fedcore.errors import InvalidValue, NotFound, TypeMismatch
from fedcore.learning import programs
from fedcore.learning.programs.history import plain_metrics
from fedcore.program.run_directory import RUN_STATE, run_state, used_alone, write_run_state
from fedcore.slow_steps import slow_step


class Adds(programs.Callback):
    """Adds columns to the rows, as a user's callback does."""

    def __init__(self, **columns):
        self._columns = columns

    def on_round_end(self, round_number, logs):
        logs.update({name: values[round_number - 1] for name, values in self._columns.items() if values})


def train(process, data, rounds, *callbacks, **options):
    options = {"clients_per_round": 3, "seed": 5, "progress": False, **options}
    return programs.train(process, data, rounds, callbacks=callbacks, **options)


# A target.


@pytest.mark.parametrize(
    ("metric", "target", "values", "rounds"),
    [
        ("val_accuracy", 0.9, [0.1, math.nan, 0.9, 1.0], 3),
        ("val_loss", 0.5, [0.9, 0.5, 0.4, 0.3], 2),
        ("val_loss", 0.1, [0.9, 0.5, 0.4, 0.3], 4),
    ],
)
def test_a_training_stops_at_a_target(process, data, metric, target, values, rounds):
    history = train(process, data, 4, Adds(**{metric: values}), programs.StopAt(metric, target))
    assert len(history) == rounds
    assert history.rounds_to(metric, target) == (rounds if rounds < 4 else None)


def test_a_target_is_reached_from_either_side():
    history = programs.History([{"round": n, "perplexity": p} for n, p in ((1, 9.0), (5, 4.0), (6, 12.0))])
    assert history.rounds_to("perplexity", 4.0) == 5
    assert history.rounds_to("perplexity", 10.0, mode="max") == 6
    assert history.rounds_to("perplexity", 1.0) is None
    with pytest.raises(NotFound, match="the history has no accuracy; it has round, perplexity"):
        history.rounds_to("accuracy", 0.5)
    with pytest.raises(InvalidValue, match="mode is auto, min or max, not 'up'"):
        history.rounds_to("perplexity", 0.5, mode="up")
    with pytest.raises(TypeMismatch, match=r"target is a number, not '0\.5'"):
        history.rounds_to("perplexity", "0.5")


def test_a_target_is_a_finite_number():
    with pytest.raises(TypeMismatch, match="target is a number, not 'high'"):
        programs.StopAt("loss", "high")
    with pytest.raises(InvalidValue, match="target is a finite number, not nan"):
        programs.StopAt("loss", math.nan)


def test_a_target_of_an_evaluation_that_never_ran_is_told(process, data):
    with pytest.warns(RuntimeWarning, match="no round had the metric val_accuracy"):
        assert len(train(process, data, 2, programs.StopAt("val_accuracy", 0.5))) == 2


# The columns of the progress.


def test_columns_of_callbacks_have_no_evaluation(process, data, evaluation, capsys):
    options = {"evaluation": evaluation, "evaluation_data": data, "evaluate_every": 2, "progress": True}
    train(process, data, 2, Adds(epsilon=[0.5, 0.6], rate=[0.1, 0.1]), **options)
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == [
        "round", "loss", "num_examples", "val_loss", "val_num_examples", "epsilon", "rate", "seconds", "bits",
    ]  # fmt: skip
    assert "0.6" in lines[1].split()


def test_a_progress_bar_has_a_line_every_round_or_less_often():
    with pytest.raises(InvalidValue, match="every is a whole number, 1 or more, not 0"):
        programs.ProgressBar(every=0)


# Diagrams.


def history(rounds=4, slope=1.0, **columns):
    sent = {"broadcast_bits": 10, "aggregate_bits": 5}
    rows = [
        {"round": n, "loss": slope * n, **sent, **{name: values[n - 1] for name, values in columns.items()}}
        for n in range(1, rounds + 1)
    ]
    return programs.History(rows, [0.5] * rounds)


@pytest.mark.parametrize(
    ("over", "places", "label"),
    [
        ("rounds", [1, 2, 3, 4], "round"),
        ("bits", [15, 30, 45, 60], "sent to and from all clients"),
        ("seconds", [0.5, 1.0, 1.5, 2.0], "seconds"),
    ],
)
def test_histories_are_drawn_over_rounds_bits_and_seconds(over, places, label):
    pytest.importorskip("matplotlib")
    for figure in (history().plot(over=over), programs.plot_histories({"a": history()}, over=over)):
        (axis,) = figure.axes
        assert list(axis.lines[0].get_xdata()) == places
        assert axis.get_xlabel() == label


def test_seconds_of_a_round_leave_out_its_compilation(process, data, monkeypatch):
    now = [0.0]

    class CompilesFirst(programs.Callback):
        def on_result(self, round_number):
            with slow_step("compiling") if round_number == 1 else contextlib.nullcontext():
                now[0] += 10
            now[0] += 2

    train(process, data, 1)  # compiles in earnest
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    assert train(process, data, 2, CompilesFirst()).seconds == [2, 12]


def test_a_history_without_seconds_or_bits_says_so():
    pytest.importorskip("matplotlib")
    bare = programs.History([{"round": 1, "loss": 1.0}])
    with pytest.raises(NotFound, match="the history has no seconds of its rounds"):
        bare.plot(over="seconds")
    with pytest.raises(NotFound, match="the history has no broadcast_bits"):
        programs.plot_histories({"a": bare}, over="bits")
    with pytest.raises(InvalidValue, match="over is rounds, bits, seconds or time, not 'round'"):
        bare.plot(over="round")


def test_forty_runs_have_lines_of_their_own():
    pytest.importorskip("matplotlib")
    figure = programs.plot_histories({f"run {n}": history(slope=float(n)) for n in range(40)})
    (axis,) = figure.axes
    assert len({(line.get_color(), line.get_linestyle()) for line in axis.lines}) == 40
    figure.canvas.draw()
    legend, plot = axis.get_legend().get_window_extent(), axis.get_window_extent()
    assert legend.x0 >= plot.x1  # beside the diagram


def test_runs_of_several_seeds_are_a_median_in_a_band():
    pytest.importorskip("matplotlib")
    seeds = [history(3, 1.0), history(4, 2.0), history(4, 6.0)]
    figure = programs.plot_histories({"seeds": seeds, "one": history(2)})
    (axis,) = figure.axes
    middle, one = axis.lines
    assert list(middle.get_xdata()) == [1, 2, 3]  # the rounds that all have
    assert list(middle.get_ydata()) == [2.0, 4.0, 6.0]
    assert len(one.get_ydata()) == 2
    (band,) = axis.collections
    np.testing.assert_allclose(band.get_datalim(axis.transData).intervaly, [1.2, 15.6])
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["seeds", "one"]


def test_a_line_of_one_round_can_be_seen():
    pytest.importorskip("matplotlib")
    quantiles = {"val_per_client/loss": [[1.0, 3.0]]}
    figures = [programs.plot_histories({"a": history(1)}), history(1).plot(), history(1, **quantiles).plot()]
    figures.append(programs.plot_histories({"seeds": [history(1, 1.0), history(3, 2.0)]}))  # one round is in both
    lines = [line for figure in figures for axis in figure.axes for line in axis.lines]
    assert lines
    assert all(line.get_marker() == "o" for line in lines)


def test_measured_quantiles_over_the_clients_are_drawn():
    pytest.importorskip("matplotlib")
    measured = history(**{"val_loss": [2.0] * 4, "val_per_client/loss": [[1.0, 2.0, 3.0]] * 4})
    (axis,) = measured.plot().axes
    assert len(axis.lines) == 2 + 3
    assert "quantiles over the clients" in [text.get_text() for text in axis.get_legend().get_texts()]
    figure = programs.plot_histories({"a": measured}, metrics=["val_per_client/loss"])
    assert len(figure.axes[0].lines) == 3


def test_what_a_callback_adds_is_no_metric_of_clients():
    pytest.importorskip("matplotlib")
    loss, epsilon = history(val_loss=[2.0] * 4, epsilon=[0.1, 0.2, 0.3, 0.4]).plot().axes
    assert len(loss.lines) == 2
    assert epsilon.get_legend() is None


def test_names_of_histories_may_be_numbers():
    pytest.importorskip("matplotlib")
    figure = programs.plot_histories({0.1: history(), 1: history(slope=2.0)}, metrics=["loss"])
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["0.1", "1"]


def test_a_name_of_a_history_may_begin_with_an_underscore():
    pytest.importorskip("matplotlib")
    figure = programs.plot_histories({"_a": history(), "$b": history(slope=2.0)})
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["_a", "$b"]


@pytest.mark.parametrize(
    ("metrics", "says"), [("loss", r'not a text\n  fix: metrics=\["loss"\]'), (3, "not 3"), ([3], r"not \[3\]")]
)
def test_metrics_of_diagrams_are_a_list_of_names(metrics, says):
    pytest.importorskip("matplotlib")
    for draw in (
        lambda: programs.plot_histories({"a": history()}, metrics=metrics),
        lambda: history().plot(metrics=metrics),
    ):
        with pytest.raises(TypeMismatch, match="metrics is a list of names, " + says):
            draw()


def test_only_histories_are_drawn():
    pytest.importorskip("matplotlib")
    with pytest.raises(TypeMismatch, match=r"plot_histories draws a dict of histories by name, not \["):
        programs.plot_histories([3])
    with pytest.raises(TypeMismatch, match="plot_histories draws a History, or a list of them, by name, not 3"):
        programs.plot_histories({"a": 3})
    with pytest.raises(InvalidValue, match="there are no histories to draw"):
        programs.plot_histories({"a": []})


# States of directories.


class Seen(programs.Callback):
    """The state of the directory while a round runs."""

    def __init__(self, fails=None):
        self.states, self._fails = [], fails

    def on_round_end(self, round_number, logs):
        self.states.append(run_state(self.training.directory))
        if self._fails is not None:
            raise self._fails


def test_a_directory_tells_that_its_run_is_running_and_finished(process, data, tmp_path):
    assert run_state(tmp_path) == "not begun"
    seen = Seen()
    train(process, data, 2, seen, directory=tmp_path)
    assert seen.states == ["running", "running"]
    assert run_state(tmp_path) == "finished"


@pytest.mark.parametrize(
    ("error", "state"), [(ValueError("no"), "broken"), (KeyboardInterrupt(), "stopped"), (SystemExit(1), "broken")]
)
def test_a_directory_tells_how_its_run_failed(process, data, tmp_path, error, state):
    with pytest.raises(type(error)):
        train(process, data, 2, Seen(error), directory=tmp_path)
    assert run_state(tmp_path) == state
    train(process, data, 2, directory=tmp_path)
    assert run_state(tmp_path) == "finished"


def test_a_run_that_a_callback_ends_is_stopped_whatever_follows(process, data, tmp_path):
    class Pruned(programs.Callback):
        def on_round_end(self, round_number, logs):
            self.training.stop_training = True

        def on_train_end(self):
            raise RuntimeError("pruned")

    with pytest.raises(RuntimeError, match="pruned"):
        train(process, data, 2, Pruned(), directory=tmp_path)
    assert run_state(tmp_path) == "stopped"


def test_a_run_that_was_killed_is_broken(tmp_path):
    ready, theirs = os.pipe()
    child = os.fork()
    if not child:
        with used_alone(tmp_path):
            write_run_state(tmp_path, "running")
            os.write(theirs, b"1")
            signal.pause()
    os.read(ready, 1)
    assert run_state(tmp_path) == "running"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert run_state(tmp_path) == "broken"


def test_what_only_another_machine_can_tell_is_unknown(tmp_path):
    (tmp_path / RUN_STATE).write_text(json.dumps({"state": "running", "host": f"not {platform.node()}"}))
    assert run_state(tmp_path) == "unknown"
    with used_alone(tmp_path):
        assert run_state(tmp_path) == "running"
    write_run_state(tmp_path, "stopped")
    assert run_state(tmp_path) == "stopped"


@pytest.mark.parametrize("content", [b"", b"[]", b"[" * 3000, b"\xff", b" " * 5000, b'{"state": "on"}'])
def test_a_damaged_state_is_unknown_where_there_are_rounds(tmp_path, content):
    (tmp_path / RUN_STATE).write_bytes(content)
    (tmp_path / "metrics.csv").write_text("round\n1\n")
    assert run_state(tmp_path) == "unknown"


def test_asking_for_the_state_keeps_no_training_from_its_directory(tmp_path, monkeypatch):
    import fcntl

    asks = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(asks, fcntl.LOCK_SH)
    monkeypatch.setattr("time.sleep", lambda _: fcntl.flock(asks, fcntl.LOCK_UN))
    with used_alone(tmp_path):
        assert run_state(tmp_path) == "running"
    os.close(asks)


# The names of rows.


def test_the_key_of_a_secure_sum_is_one_name():
    measured = {"secure_sum_measurements": {"-1048576.0/1048576.0/float32": {"secure_upper_clipped_count": 1}}}
    assert plain_metrics(measured) == {
        "secure_sum_measurements/float32 from -1048576.0 to 1048576.0/secure_upper_clipped_count": 1
    }
    factory = {"0/1048575/int32": {"secure_upper_threshold": 9}, "a": {"b": {"c": 1}}}
    assert [*plain_metrics(factory)] == ["int32 from 0 to 1048575/secure_upper_threshold", "a/b/c"]
