"""TensorFlow Federated's program: `train_model` with an `EvaluationManager`."""

import asyncio
import datetime

import pytest

import fedcore as fc
from fedcore.errors import InvalidValue, NotFound, TypeMismatch
from fedcore.learning.programs import EvaluationManager, ProgramState, extract_and_rewrap_metrics, train_model
from fedcore.program import DatasetDataSource, FileProgramStateManager, MemoryReleaseManager

NO_TIME = datetime.timedelta(0)


def source(data, seed=0):
    return DatasetDataSource([data.create_tf_dataset_for_client(i) for i in data.client_ids], seed=seed)


class Program:
    """A program in a directory: its managers, and `run`."""

    def __init__(self, process, evaluation, data, folder, duration=NO_TIME):
        self.process, self.data = process, data
        self.states = FileProgramStateManager(folder / "train")
        self.models, self.metrics = MemoryReleaseManager(), MemoryReleaseManager()
        self.evaluated, self.each_round = MemoryReleaseManager(), MemoryReleaseManager()
        self.evaluation = EvaluationManager(
            source(data),
            self.evaluated,
            lambda name: FileProgramStateManager(folder / name),
            lambda name: (evaluation, self.each_round),
            cohort_size=2,
            duration=duration,
        )

    def run(self, rounds, **options):
        asyncio.run(self.program(rounds, **options))

    async def program(self, rounds, **options):
        await train_model(
            **{
                "train_process": self.process,
                "initial_train_state": self.process.initialize.invoke(seed=1),
                "train_data_source": source(self.data),
                "train_per_round_clients": 3,
                "train_total_rounds": rounds,
                "program_state_manager": self.states,
                "model_output_manager": self.models,
                "train_metrics_manager": self.metrics,
                "evaluation_manager": self.evaluation,
                "evaluation_periodicity": 2,
                **options,
            }
        )


def test_it_trains_evaluates_and_releases_as_tffs_does(process, evaluation, data, tmp_path):
    program = Program(process, evaluation, data, tmp_path)
    program.run(11)
    assert list(program.metrics.values()) == list(range(1, 12))
    first = program.metrics.values()[1]
    assert sorted(first) == ["client_work", "finalizer", "model_metrics", "program_metrics"]
    assert first["program_metrics"] == {"num_retries": 0}
    assert first["model_metrics"]["num_examples"] > 0
    names = [f"training_checkpoint_round_{r}" for r in (0, 10, 11)]
    assert list(program.models.values()) == names
    assert list(program.evaluated.values()) == [2, 4, 6, 8, 10, 11]
    final = program.models.values()[names[-1]]
    weights = final.global_model_weights.trainable[0]
    assert program.evaluated.values()[11]["model_metrics"]["loss"] == weights[0]
    assert program.each_round.values()[11]["model_metrics"]["clients"] == 2
    assert asyncio.run(program.states.get_versions()) == [0, 8, 9, 10, 11]


def test_an_interrupted_program_goes_on(process, evaluation, data, tmp_path):
    whole, parts = (
        Program(process, evaluation, data, tmp_path / "whole"),
        Program(process, evaluation, data, tmp_path / "parts"),
    )
    whole.run(4)
    parts.run(2)
    again = Program(process, evaluation, data, tmp_path / "parts")
    again.run(4)
    assert list(again.metrics.values()) == [3, 4]
    key = "training_checkpoint_round_4"
    ends = [p.models.values()[key].global_model_weights.trainable[0].tobytes() for p in (whole, again)]
    assert ends[0] == ends[1]
    again.run(4)
    assert list(again.metrics.values()) == [3, 4]


def test_it_runs_in_a_native_context(process, evaluation, data, tmp_path):
    plain, native = (
        Program(process, evaluation, data, tmp_path / "a"),
        Program(process, evaluation, data, tmp_path / "b"),
    )
    plain.run(2)

    async def program():
        with fc.use(fc.program.NativeFederatedContext(fc.runtime.local())):
            await native.program(2)

    asyncio.run(program())
    assert native.metrics.values()[2]["model_metrics"] == plain.metrics.values()[2]["model_metrics"]


def test_evaluations_go_on_after_an_interrupt_and_last_their_time(process, evaluation, data, tmp_path):
    began = int(datetime.datetime.now().timestamp())
    weights = process.initialize.invoke(seed=1).global_model_weights

    async def interrupted():
        manager = Program(process, evaluation, data, tmp_path, datetime.timedelta(hours=1)).evaluation
        await manager.start_evaluation(3, began, weights)
        await manager.start_evaluation(3, began, weights)  # asked for again by a resumed training: runs once
        while not (tmp_path / "evaluation_of_train_round_00003" / "program_state_2.json").exists():
            await asyncio.sleep(0.01)
        for task in manager._tasks:
            task.cancel()

    async def resumed():
        program = Program(process, evaluation, data, tmp_path)
        assert await program.evaluation.resume_from_previous_state()
        await program.evaluation.wait_for_evaluations_to_finish()
        return program

    asyncio.run(interrupted())
    program = asyncio.run(resumed())
    (key,) = program.each_round.values()
    assert key >= 5
    assert list(program.evaluated.values()) == [3]

    async def nothing_left():
        program = Program(process, evaluation, data, tmp_path)
        assert await program.evaluation.resume_from_previous_state()
        assert not program.evaluation._tasks

    asyncio.run(nothing_left())
    assert not list((tmp_path / "evaluation_of_train_round_00003").iterdir())


def test_evaluations_by_time(process, evaluation, data, tmp_path):
    program = Program(process, evaluation, data, tmp_path)
    program.run(3, evaluation_periodicity=datetime.timedelta(hours=1))
    assert list(program.evaluated.values()) == [1, 3]


def test_a_refused_round_is_run_again(process, evaluation, data, tmp_path):
    seen = []

    def refused(output):
        seen.append(output)
        return len(seen) == 1

    program = Program(process, evaluation, data, tmp_path)
    program.run(1, should_retry_round=refused, evaluation_manager=None)
    assert program.metrics.values()[1]["program_metrics"] == {"num_retries": 1}


def test_an_evaluation_that_fails_ends_the_program(process, evaluation, data, tmp_path):
    program = Program(process, evaluation, data, tmp_path)
    program.evaluation.cohort_size = 99
    with pytest.raises(InvalidValue, match="k is a number of clients"):
        program.run(2)


def test_wrong_arguments_are_named(process, evaluation, data, tmp_path):
    program = Program(process, evaluation, data, tmp_path)
    with pytest.raises(TypeMismatch, match="evaluation_periodicity is rounds or"):
        program.run(1, evaluation_periodicity="daily")
    with pytest.raises(InvalidValue, match="1 or more, not 0"):
        program.run(1, evaluation_periodicity=0)
    with pytest.raises(InvalidValue, match="no evaluation of training round 7 is running"):
        asyncio.run(program.evaluation.record_evaluations_finished(7))
    assert asyncio.run(program.evaluation.resume_from_previous_state()) is False


def test_metrics_are_moved_to_one_name():
    metrics = {"client_work": {"train": {"loss": 1}, "other": 2}, "finalizer": 3}
    assert extract_and_rewrap_metrics(metrics, path=("client_work", "train")) == {
        "client_work": {"other": 2},
        "finalizer": 3,
        "model_metrics": {"loss": 1},
    }
    assert "train" in metrics["client_work"]
    with pytest.raises(NotFound, match="the metrics have no client_work/eval: there is no eval among train, other"):
        extract_and_rewrap_metrics(metrics, path=("client_work", "eval"))
    with pytest.raises(InvalidValue, match="not empty"):
        extract_and_rewrap_metrics(metrics, path=())
    assert ProgramState(1, 2, None, 3).round_number == 2
