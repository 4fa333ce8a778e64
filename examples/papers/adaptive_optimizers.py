"""Adaptive server optimizers on words of which most are rare: Reddi et al. 2021, arXiv:2003.00295, figure 1."""

import numpy as np
from classifiers import model_fn_for

import fedcore as fc

optimizers, TAU = fc.learning.optimizers, 1e-3
SERVERS = {
    "FedAvg": optimizers.build_sgdm,
    "FedAvgM": lambda lr: optimizers.build_sgdm(lr, momentum=0.9),
    "FedAdagrad": lambda lr: optimizers.build_adagrad(lr, TAU**2),
    "FedAdam": lambda lr: optimizers.build_adam(lr, 0.9, 0.99, TAU),
    "FedYogi": lambda lr: optimizers.build_yogi(lr, 0.9, 0.99, TAU, TAU**2),
}


def load_data(data):
    """A text has 20 words by Zipf's law, and 4 of the 25 rare words of its tag; a client writes of few tags."""
    rng, n = np.random.default_rng(data["seed"]), data["words"]
    zipf, rare = 1 / np.arange(1, n + 1), rng.permutation(np.arange(n // 2, n)).reshape(data["tags"], -1)

    def texts(count, mix):
        tags = rng.choice(data["tags"], count, p=mix)
        words = [[*rng.choice(n, 20, p=zipf / zipf.sum()), *rng.choice(rare[tag], 4)] for tag in tags]
        bags = np.array([np.bincount(text, minlength=n) / len(text) for text in words], np.float32)
        return bags, tags.astype(np.int32)

    mixes = rng.dirichlet([0.3] * data["tags"], data["clients"])
    clients = fc.simulation.datasets.from_clients([texts(data["texts"], mix) for mix in mixes])
    test = fc.simulation.datasets.from_clients({"test": texts(1000, None)})
    return clients.preprocess(lambda d: d.shuffle(100).batch(10)), test.preprocess(lambda d: d.batch(1000))


def build_process(train, method):
    client, server = optimizers.build_sgdm(method["client_lr"]), SERVERS[method["name"]](method["server_lr"])
    return fc.learning.algorithms.build_unweighted_fed_avg(model_fn_for(train), client, server)


def build_evaluation(train):
    return fc.learning.algorithms.build_fed_eval(model_fn_for(train))
