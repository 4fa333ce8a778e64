"""Federated averaging with one process a worker: an executor of clients, on public names only.

The local runtime keeps the server. `fc.runtime.SlicedClientsExecutor` cuts the cohort into slices, reads the clients'
data, finds clients that fail, and merges partials. A `ProcessExecutor` has its process compute the partials. The bits
are those of the local runtime; so a network of machines could stand here.

    python examples/process_pool.py
"""

import multiprocessing
import signal
import threading
from typing import Any

import fedcore as fc


class ProcessExecutor:
    """An `fc.runtime.SliceExecutor`: one process computes the slices, one after another."""

    def __init__(self, number: int):
        self.name = f"process {number}"
        self._lock = threading.Lock()
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs,), name=self.name, daemon=True)
        self._process.start()
        theirs.close()
        self._work = None

    def prepare(self, work, report, stop):
        def run(clients):
            with self._lock:
                try:
                    answer, of_process = self._ask(work, clients, stop)
                except (EOFError, OSError):
                    self._restart()
                    raise RuntimeError(f"{self.name} ended while it computed") from None
            report.include(of_process)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return run

    def _ask(self, work, clients, stop):
        if self._work is not work:  # once a stage, with what is broadcast
            self._connection.send(work)
            self._work = work
        self._connection.send(clients)
        while not self._connection.poll(0.1):
            if stop.is_stopped:
                self._restart()
                raise fc.runtime.Stopped("the call was stopped")
        return self._connection.recv()

    def _restart(self) -> None:
        self.close()
        self._start()

    def close(self) -> None:
        self._connection.close()
        self._process.terminate()
        self._process.join()


def serve(connection) -> None:
    """Computes slices for the parent, until it closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the call in the parent
    executor = fc.runtime.DeviceSliceExecutor()
    work: Any = None  # the first message is a `ClientWork`
    while True:
        try:
            received = connection.recv()
        except EOFError:
            return
        if isinstance(received, fc.runtime.ClientWork):
            work = received
            continue
        report = fc.runtime.Report()
        answer: fc.runtime.SliceResult | Exception
        try:
            answer = executor.prepare(work, report, fc.runtime.Stop())(received)
        except Exception as error:  # the parent finds the client, and raises or drops it
            answer = error
        connection.send((answer, report))


def process_pool(processes: int, **settings) -> fc.runtime.LocalRuntime:
    """A runtime whose clients run in so many processes."""
    executors = [ProcessExecutor(number) for number in range(processes)]
    return fc.runtime.local(clients_executor=fc.runtime.SlicedClientsExecutor(executors, **settings))


def fed_avg(num_clients: int):
    """The process of the README, and a function from a round's number to its cohort."""
    import keras

    train, _ = fc.simulation.datasets.digits.load_data(num_clients=num_clients, alpha=0.3)
    train = train.preprocess(lambda dataset: dataset.map(lambda e: (e["pixels"], e["label"])).batch(10))

    def model_fn():
        net = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                keras.layers.Flatten(),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        return fc.learning.from_keras_model(
            net,
            input_spec=train.element_type_structure,
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=[keras.metrics.SparseCategoricalAccuracy()],
        )

    process = fc.learning.algorithms.build_weighted_fed_avg(
        model_fn,
        client_optimizer_fn=fc.learning.optimizers.build_sgdm(learning_rate=0.1),
        server_optimizer_fn=fc.learning.optimizers.build_sgdm(learning_rate=1.0),
    )
    sample = fc.simulation.build_uniform_sampling_fn(train.client_ids, seed=0)

    def cohort(round_num: int, size: int):
        return [train.create_tf_dataset_for_client(i) for i in sample(round_num, size)]

    return process, cohort


def train(process, cohort, rounds: int, clients: int):
    """The last state and the metrics of each round."""
    state, metrics = process.initialize.invoke(seed=0), []
    for round_num in range(rounds):
        state, of_round = process.next(state, cohort(round_num, clients))
        metrics.append(of_round["client_work"]["train"])
    return state, metrics


def main(rounds: int = 20, clients: int = 10, processes: int = 2, num_clients: int = 100):
    """The states after training in processes and in this one, and the metrics."""
    process, cohort = fed_avg(num_clients)
    runtime = process_pool(processes)
    try:
        with fc.use(runtime):
            in_processes, metrics = train(process, cohort, rounds, clients)
    finally:
        runtime.close()
    here, _ = train(process, cohort, rounds, clients)
    return in_processes, here, metrics


if __name__ == "__main__":
    import numpy as np
    import tensorflow as tf

    in_processes, here, metrics = main()
    for round_num, of_round in enumerate(metrics):
        print(round_num, of_round)
    weights = [tf.nest.flatten(state.global_model_weights.trainable) for state in (in_processes, here)]
    same = all(np.array_equal(a, b) for a, b in zip(*weights, strict=True))
    print("the weights are those of the local runtime" if same else "the weights differ from the local runtime's")
