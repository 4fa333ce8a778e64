"""What checkpoints of a model of 50 M float32 weights cost a training: seconds a round, copies of the model, bytes.

Seconds: rounds of a Keras model, with a checkpoint after each round beside without. Trainings of either kind alternate,
so that a slow machine slows both; processor seconds, of all threads, do not depend on its other work, nor do those of
the training's thread, in which a checkpoint costs at most a tenth of a round's processor seconds. Memory: the peak
of a process whose rounds hold two states and nothing else, and are shorter than the writing of a checkpoint.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.process_memory import memory_bytes

UNITS, FROZEN, TRAINED = 6_700, 6_700 * 6_700, 6_700 * 746  # 45 M and 5 M weights
CLIENTS, EXAMPLES, BATCH = 8, 64, 32
ROUNDS, WARM_UP = 7, 3  # of a training: the first checkpoint stores all weights, beside the second round
MODELS = {"all weights trained": False, "45 M weights frozen": True}


def measure_checkpoints(trainings: int) -> dict:
    """The figures of each model."""
    models = {name: _figures(name, trainings) for name in MODELS}
    return {"name": "checkpoints", "target": 1.1, "target_copies": 1.0, "models": models}


def _figures(name: str, trainings: int) -> dict:
    from benchmarks.measure import interval

    process, data = _keras_process(MODELS[name]), _client_data()
    _seconds(process, data, None)
    with tempfile.TemporaryDirectory() as directory:
        plain, saved = [], []
        for number in range(trainings):
            plain.append(_seconds(process, data, None))
            saved.append(_seconds(process, data, Path(directory) / str(number)))
        files = list((Path(directory) / "0").glob("*.safetensors"))
        stored = {path.stat().st_ino: path.stat().st_size for path in files}
    ratios = np.divide(saved, plain)
    low, high = interval(ratios[:, 0])
    peaks = [_peak_bytes(name, saves) for saves in (False, True)]
    size = 4 * (FROZEN + TRAINED)
    return {
        "plain_s": float(np.median(plain, axis=0)[0]),
        "saved_s": float(np.median(saved, axis=0)[0]),
        "ratio": float(np.median(ratios[:, 0])),
        "processor_ratio": float(np.median(ratios[:, 1])),
        "thread_share": float(np.median((np.subtract(saved, plain)[:, 2]) / np.array(plain)[:, 1])),
        "low": low,
        "high": high,
        "copies": (peaks[1] - peaks[0]) / size,
        "three_checkpoints_copies": sum(stored.values()) / size,
    }


def _seconds(process, data, directory: Path | None) -> tuple[float, ...]:
    """The mean seconds, processor seconds, and those of the training's thread, from a round's beginning to the next."""
    from fedcore.learning import programs

    begins: list[tuple[float, ...]] = []

    class Clock(programs.Callback):
        def on_round_begin(self, round_number):
            begins.append((time.perf_counter(), time.process_time(), time.thread_time()))

    programs.train(
        process,
        data,
        ROUNDS,
        clients_per_round=CLIENTS,
        seed=0,
        program_state_manager=_manager(directory),
        callbacks=[Clock()],
        progress=False,
    )
    return tuple(np.mean(np.diff(begins, axis=0)[WARM_UP:], axis=0).tolist())


def _manager(directory: Path | None):
    from fedcore.program import FileProgramStateManager

    return None if directory is None else FileProgramStateManager(directory, keep_total=3, keep_first=False)


def _keras_process(frozen: bool):
    import keras
    import tensorflow as tf

    import fedcore as fc

    def model_fn():
        first = keras.layers.Dense(UNITS, activation="relu", use_bias=False, trainable=not frozen)
        model = keras.Sequential([keras.Input((UNITS,)), first, keras.layers.Dense(TRAINED // UNITS, use_bias=False)])
        spec = (tf.TensorSpec((None, UNITS)), tf.TensorSpec((None, TRAINED // UNITS)))
        return fc.learning.models.from_keras_model(model, keras.losses.MeanSquaredError(), input_spec=spec)

    return fc.learning.algorithms.build_weighted_fed_avg(model_fn, fc.learning.optimizers.build_sgdm(1e-3))


def _client_data():
    import fedcore as fc

    rng = np.random.default_rng(0)
    shapes = (EXAMPLES, UNITS), (EXAMPLES, TRAINED // UNITS)
    clients = {str(i): tuple(rng.normal(size=shape).astype(np.float32) for shape in shapes) for i in range(CLIENTS)}
    return fc.simulation.datasets.TestClientData(clients).preprocess(lambda dataset: dataset.batch(BATCH))


def _peak_bytes(name: str, saves: bool) -> int:
    """The peak memory of a process that trains without clients' work."""
    command = [sys.executable, "-m", "benchmarks.checkpoints", name, *(["saves"] if saves else [])]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def _train_in_little_memory(frozen: bool, saves: bool) -> int:
    import tensorflow as tf

    import fedcore as fc
    from fedcore.learning import LearningAlgorithmState, LearningProcess, LearningProcessOutput, ModelWeights

    sizes = (TRAINED, FROZEN) if frozen else (TRAINED + FROZEN, 1)
    server = fc.federated_computation
    types = tuple(fc.TensorType("float32", [size]) for size in sizes)
    state_type = fc.to_type(
        LearningAlgorithmState(
            ModelWeights(types[:1], types[1:]), (), (), (), (), fc.to_type("int64"), fc.to_type("int64")
        )
    )

    @fc.tf_computation(state_type, "float32")
    def move(state, step):
        weights = state.global_model_weights
        moved = ModelWeights((weights.trainable[0] + step,), weights.non_trainable)
        return state.replace(global_model_weights=moved, round=state.round + 1)

    @fc.tf_computation
    def first():
        weights = ModelWeights((tf.zeros([sizes[0]]),), (tf.zeros([sizes[1]]),))
        return LearningAlgorithmState(weights, (), (), (), (), tf.constant(0, tf.int64), tf.constant(0, tf.int64))

    @server
    def initialize():
        return fc.federated_eval(first, fc.SERVER)

    @server(fc.FederatedType(state_type, fc.SERVER), fc.FederatedType(fc.SequenceType("float32"), fc.CLIENTS))
    def next_round(state, data):
        count = fc.federated_sum(fc.federated_map(fc.tf_computation(lambda xs: xs.reduce(0.0, tf.add)), data))
        metrics = fc.federated_zip({"client_work": {"train": {"count": count}}})
        return LearningProcessOutput(fc.federated_map(move, (state, count)), metrics)

    data = fc.simulation.datasets.TestClientData({"a": np.ones(3, np.float32)})
    with tempfile.TemporaryDirectory() as directory:
        fc.learning.programs.train(
            LearningProcess(initialize, next_round),
            data,
            ROUNDS,
            clients_per_round=1,
            seed=0,
            program_state_manager=_manager(Path(directory) if saves else None),
            progress=False,
        )
    return memory_bytes()


if __name__ == "__main__":
    print(_train_in_little_memory(MODELS[sys.argv[1]], len(sys.argv) > 2))
