"""What values that each client keeps cost a round, beside federated averaging, in processor seconds.

SCAFFOLD keeps a state beside the sum of changes; "changes alone" are those of clients' training, and nothing adds them.
"""

import time

import keras
import numpy as np

import fedcore as fc

CLIENTS, EXAMPLES, BATCH, RATE = 10, 100, 20, 0.1
MODELS = {"64-32-10": (64, 32), "784-200-10": (784, 200)}


def measure_client_states(rounds: int) -> dict:
    """The figures of each model; rounds of either algorithm alternate, each after the round before."""
    models = {name: _figures(*sizes, max(rounds, 9)) for name, sizes in MODELS.items()}
    return {"name": "states", "target": 2.0, "clients": CLIENTS, "models": models}


def changes_alone(model_fn) -> fc.Computation:
    """`(weights@SERVER, data@CLIENTS) -> changes@CLIENTS`: each client's training, of which nothing is added."""
    work = fc.learning.templates.build_model_delta_client_work(
        model_fn, lambda: keras.optimizers.SGD(RATE), fc.learning.ClientWeighting.UNIFORM
    )
    _, weights, data = work.next.type_signature.parameter.types

    @fc.federated_computation(fc.FederatedType(weights.member, fc.SERVER), data)
    def train(weights, data):
        return work.next(work.initialize(), fc.federated_broadcast(weights), data).result.update

    return train


def _figures(inputs: int, units: int, rounds: int) -> dict:
    from benchmarks.measure import WARM_UP, interval

    rng = np.random.default_rng(0)
    examples = [(rng.normal(size=(EXAMPLES, inputs)).astype("f"), rng.integers(0, 10, EXAMPLES).astype("i"))]
    clients = [fc.data.ClientDataset.from_columns(columns).batch(BATCH) for columns in examples * CLIENTS]

    def model_fn():
        net = [keras.Input((inputs,)), keras.layers.Dense(units, activation="relu"), keras.layers.Dense(10)]
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return fc.learning.from_keras_model(keras.Sequential(net), loss, clients[0].element_spec)

    algorithms = fc.learning.algorithms
    plain = algorithms.build_weighted_fed_avg(model_fn, lambda: keras.optimizers.SGD(RATE))
    keeping, alone = algorithms.build_scaffold(model_fn, RATE, CLIENTS), changes_alone(model_fn)
    state, own_state = plain.initialize(), keeping.initialize()
    own = [keeping.initial_client_state()] * CLIENTS
    times = []
    for _ in range(WARM_UP + 3 * rounds):
        begins = [time.process_time()]
        state, _ = plain.next(state, clients)
        begins.append(time.process_time())
        own_state, _, own = keeping.next(own_state, clients, own)
        begins.append(time.process_time())
        alone(plain.get_model_weights(state), clients)
        begins.append(time.process_time())
        times.append(np.diff(begins))
    plain_s, *others = np.array(times[WARM_UP:]).T
    figures: dict = {"plain_s": float(np.median(plain_s))}
    for name, seconds in zip(("SCAFFOLD", "changes alone"), others, strict=True):
        low, high = interval(seconds / plain_s)
        ratio = float(np.median(seconds / plain_s))
        figures[name] = {"seconds": float(np.median(seconds)), "ratio": ratio, "low": low, "high": high}
    return figures
