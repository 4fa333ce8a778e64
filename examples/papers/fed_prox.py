"""FedProx where devices do a part of the work, on synthetic(α, β): Li et al. 2020, arXiv:1812.06127, figure 1."""

import keras
import numpy as np

import fedcore as fc


def load_data(data, work):
    """A client `client_07@12` is device client_07 in a round in which it has time for 12 epochs."""
    devices, _ = fc.simulation.datasets.synthetic.load_data(**data)
    pairs = devices.preprocess(lambda d: d.map(lambda e: (e["features"], e["label"])))

    def open_client(client):
        device, _, epochs = client.partition("@")
        return pairs.create_tf_dataset_for_client(device).shuffle(200).batch(10).repeat(int(epochs))

    ids = [f"{device}@{epochs}" for device in devices.client_ids for epochs in range(1, work["epochs"] + 1)]
    train = fc.simulation.datasets.ClientData.from_clients_and_tf_fn(ids, open_client)
    return train, pairs.preprocess(lambda d: d.batch(200))


def build_sampler(train, run, work):
    devices = [client.removesuffix("@1") for client in train.client_ids if client.endswith("@1")]
    batches = np.array([len(list(train.create_tf_dataset_for_client(f"{device}@1"))) for device in devices])
    whole = round(work["devices"] * (1 - work["stragglers"]))

    def sample(rounds_before):
        rng = np.random.default_rng([run["seed"], rounds_before])
        chosen = rng.choice(devices, work["devices"], replace=False, p=batches / batches.sum())
        epochs = [work["epochs"]] * whole + rng.integers(1, work["epochs"], len(chosen) - whole).tolist()
        pairs = list(zip(chosen, epochs, strict=True))
        return [f"{device}@{n}" for device, n in (pairs[:whole] if work["drop_stragglers"] else pairs)]

    return sample


def _model(clients):
    model = keras.Sequential([keras.Input((60,)), keras.layers.Dense(10, kernel_initializer="zeros")])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return lambda: fc.learning.from_keras_model(model, loss, input_spec=clients.element_type_structure)


def build_process(train, method):
    build = fc.learning.algorithms.build_unweighted_fed_prox
    return build(_model(train), method["mu"], lambda: keras.optimizers.SGD(method["lr"]))


def build_evaluation(train):
    return fc.learning.algorithms.build_fed_eval(_model(train))
