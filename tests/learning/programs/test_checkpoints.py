"""Checkpoints that are written beside the next round."""

import asyncio
import os
import resource
import shutil
import signal
import threading
from pathlib import Path

import large
import numpy as np
import pytest

from fedcore.learning import programs
from fedcore.program import FileProgramStateManager, MemoryReleaseManager


@pytest.fixture(scope="module")
def large_process():
    return large.build()


def train(process, data, rounds, **options):
    return programs.train(process, data, rounds, **{"clients_per_round": 3, "seed": 5, "progress": False, **options})


def weights(state) -> list[bytes]:
    model = state.global_model_weights
    return [leaf.tobytes() for leaf in (*model.trainable, *model.non_trainable)]


class Gated(FileProgramStateManager):
    """Each write waits until the pipe of its version was opened for writing and closed."""

    def pipe(self, version: int) -> Path:
        path = self._root.with_name(f"gate_{version}")
        if not path.exists():
            os.mkfifo(path)
        return path

    def open_gate(self, version: int) -> None:
        """Blocks until the write waits."""
        self.pipe(version).write_bytes(b"")

    async def begin_save(self, program_state, version):
        write = await super().begin_save(program_state, version)
        pipe = self.pipe(version)

        def wait_and_write():
            pipe.read_bytes()
            write()

        return wait_and_write


class At(programs.Callback):
    """Calls functions by the name of a method and the round."""

    def __init__(self, **actions):
        self.actions, self.begun = actions, []

    def on_round_begin(self, round_number):
        self.begun.append(round_number)
        self._call(f"begin_{round_number}")

    def on_result(self, round_number):
        self._call(f"result_{round_number}")

    def on_round_end(self, round_number, logs):
        self._call(f"end_{round_number}")

    def _call(self, name):
        self.actions.get(name, lambda: None)()


def versions(directory: Path) -> list[int] | None:
    return asyncio.run(FileProgramStateManager(directory).get_versions())


def test_a_round_runs_while_the_checkpoint_before_is_written(process, data, tmp_path):
    manager, seen = Gated(tmp_path / "checkpoints"), []

    def look_and_open(version):
        seen.append(versions(tmp_path / "checkpoints"))
        manager.open_gate(version)

    opener = threading.Thread(target=manager.open_gate, args=(3,))
    callback = At(end_2=lambda: look_and_open(1), begin_3=opener.start, end_3=lambda: look_and_open(2))
    history = train(process, data, 3, program_state_manager=manager, callbacks=[callback])
    opener.join()
    assert seen == [None, [1]]  # checkpoint 1 was there before checkpoint 2 began
    assert versions(tmp_path / "checkpoints") == [1, 2, 3]
    assert weights(history.state) == weights(train(process, data, 3).state)


def test_a_round_is_released_before_its_checkpoint_begins(process, data, tmp_path):
    released, seen = MemoryReleaseManager(), []

    class Noting(FileProgramStateManager):
        async def begin_save(self, program_state, version):
            seen.append((version, list(released.values())))
            return await super().begin_save(program_state, version)

    train(process, data, 3, program_state_manager=Noting(tmp_path), release_managers=[released])
    assert seen == [(1, [1]), (2, [1, 2]), (3, [1, 2, 3])]


def test_a_write_that_fails_is_raised_at_the_end_of_the_next_round(process, data, tmp_path):
    callback = At(end_1=lambda: shutil.rmtree(tmp_path / "checkpoints"))
    with pytest.raises(FileNotFoundError, match=r"No such file or directory: '.*program_state_1\.safetensors'"):
        train(process, data, 9, directory=tmp_path, callbacks=[callback])
    assert callback.begun == [1, 2]
    assert train(process, data, 3, directory=tmp_path).rows == train(process, data, 3).rows


def test_a_write_that_fails_is_raised_where_the_next_round_has_no_checkpoint(process, data, tmp_path):
    manager = Gated(tmp_path / "checkpoints")

    def fail():
        shutil.rmtree(tmp_path / "checkpoints")
        manager.open_gate(2)

    callback = At(begin_3=fail)
    with pytest.raises(FileNotFoundError, match=r"program_state_2\.safetensors"):
        train(process, data, 100, program_state_manager=manager, checkpoint_every=2, callbacks=[callback])
    assert callback.begun[-1] in (3, 4)


def test_the_last_write_is_raised_at_the_end_of_the_training(process, data, tmp_path):
    callback = At(end_1=lambda: shutil.rmtree(tmp_path / "checkpoints"))
    with pytest.raises(FileNotFoundError, match=r"program_state_1\.safetensors"):
        train(process, data, 1, directory=tmp_path, callbacks=[callback])


def test_a_disk_that_is_full_is_told_one_round_later(large_process, data, tmp_path):
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    callback = At(begin_2=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard)))
    train(large_process, data, 1, directory=tmp_path)
    try:
        with pytest.raises(OSError, match="File too large"):
            train(large_process, data, 9, directory=tmp_path, callbacks=[callback])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert callback.begun == [2, 3]
    assert versions(tmp_path / "checkpoints") == [1]
    again = train(large_process, data, 4, directory=tmp_path)
    assert weights(again.state) == weights(train(large_process, data, 4).state)


def test_a_failed_write_is_a_note_of_the_error_that_ends_the_training(process, data, tmp_path):
    def fail():
        raise ValueError("the callback's own")

    callback = At(end_1=lambda: shutil.rmtree(tmp_path / "checkpoints"), result_2=fail)
    with pytest.raises(ValueError, match="the callback's own") as caught:
        train(process, data, 3, directory=tmp_path, callbacks=[callback])
    (note,) = caught.value.__notes__
    assert note.startswith("the last checkpoint was not written: ")
    assert "program_state_1.safetensors" in note


@pytest.mark.parametrize("interrupts", [1, 2])
def test_an_interrupt_waits_for_the_write(process, data, tmp_path, interrupts):
    manager, main = Gated(tmp_path / "checkpoints"), threading.get_ident()

    def interrupt_again_and_open():
        for _ in range(interrupts - 1):
            signal.pthread_kill(main, signal.SIGINT)
        manager.open_gate(2)

    def interrupt():
        opener.start()
        signal.raise_signal(signal.SIGINT)

    opener = threading.Thread(target=interrupt_again_and_open)
    callback = At(begin_2=lambda: manager.open_gate(1), begin_3=interrupt)
    with pytest.raises(KeyboardInterrupt):
        train(process, data, 9, program_state_manager=manager, callbacks=[callback])
    opener.join()
    assert versions(tmp_path / "checkpoints") == [1, 2]
    plain = FileProgramStateManager(tmp_path / "checkpoints")
    again = train(process, data, 4, program_state_manager=plain)
    assert weights(again.state) == weights(train(process, data, 4).state)


def test_a_state_of_a_callback_may_change_in_the_next_round(process, data, tmp_path):
    class Counting(programs.Callback):
        def __init__(self):
            self.rounds = np.zeros(2**15)

        def on_round_begin(self, round_number):
            self.rounds += 1
            if round_number == 2:
                manager.open_gate(1)

        def get_state(self):
            return {"rounds": self.rounds}

        def set_state(self, state):
            pass

    manager = Gated(tmp_path / "checkpoints")
    opener = threading.Thread(target=manager.open_gate, args=(2,))
    opener.start()
    train(process, data, 2, program_state_manager=manager, callbacks=[Counting()])
    opener.join()
    ((name, state),) = asyncio.run(manager.load(1))["callbacks"]
    assert name == "Counting"
    assert (state["rounds"] == 1).all()


def test_frozen_weights_are_stored_once(large_process, data, tmp_path):
    history = train(large_process, data, 6, directory=tmp_path)
    shared = sorted((tmp_path / "checkpoints").glob("program_state_*.1.safetensors"))
    assert [path.name for path in shared] == [f"program_state_{n}.1.safetensors" for n in (4, 5, 6)]
    assert len({path.stat().st_ino for path in shared}) == 1
    own = (tmp_path / "checkpoints" / "program_state_6.safetensors").stat().st_size
    assert 4 * large.TRAINED < own < 4 * large.TRAINED + 2**16
    longer = train(large_process, data, 8, directory=tmp_path)
    whole = train(large_process, data, 8)
    assert weights(longer.state) == weights(whole.state)
    assert longer.rows == whole.rows
    frozen = [run.state.global_model_weights.non_trainable[0].tobytes() for run in (history, longer)]
    assert frozen[0] == frozen[1]
