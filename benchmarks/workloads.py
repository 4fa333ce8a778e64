"""The workloads: data, models and what a round is. The same for fedcore and for the floors."""

import attrs
import numpy as np

BATCH = 20
CLIENT_RATE = 0.02
SERVER_RATE = 0.1  # of gradients
SEED = 20261120
LETTERS, LINE = 86, 40


@attrs.frozen
class Workload:
    """One job.

    Args:
        model: mlp, logistic or cnn over images; lstm over lines of text.
        sizes: examples of each client of a round.
        algorithm: fed_avg, fed_sgd or fed_eval.
        target: the ratio to the best floor that is aimed at.
    """

    name: str
    model: str
    sizes: tuple[int, ...]
    algorithm: str
    target: float


def _sizes(clients: int, low: int, high: int) -> tuple[int, ...]:
    return tuple(int(n) for n in np.random.default_rng(SEED).integers(low, high + 1, clients))


WORKLOADS = {
    w.name: w
    for w in (
        Workload("mlp", "mlp", _sizes(100, 80, 120), "fed_avg", 0.65),
        Workload("cnn", "cnn", _sizes(10, 80, 120), "fed_avg", 0.90),
        Workload("logistic", "logistic", (20,) * 1000, "fed_avg", 0.75),
        Workload("gradients", "mlp", _sizes(100, 80, 120), "fed_sgd", 1.50),
        Workload("text", "lstm", _sizes(20, 30, 50), "fed_avg", 0.85),
        Workload("evaluation", "cnn", (100,) * 100, "fed_eval", 1.00),
    )
}


def make_clients(workload: Workload, seed: int = SEED) -> list[tuple[np.ndarray, np.ndarray]]:
    """Images 28 x 28 x 1 (float32) in ten classes (int32), skewed between clients; or lines and what follows."""
    rng = np.random.default_rng(seed)
    if workload.model == "lstm":
        return [_lines(rng, size) for size in workload.sizes]
    prototypes = np.kron(rng.uniform(0, 1, (10, 7, 7)), np.ones((4, 4))) * (rng.uniform(0, 1, (10, 28, 28)) > 0.5)
    clients = []
    for size in workload.sizes:
        labels = rng.choice(10, size=size, p=rng.dirichlet(np.full(10, 0.5))).astype(np.int32)
        style = rng.normal(0, 0.1, (28, 28))
        images = prototypes[labels] + style + rng.normal(0, 0.25, (size, 28, 28))
        clients.append((np.clip(images, 0, 1).astype(np.float32)[..., None], labels))
    return clients


def _lines(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Letters that mostly follow their client's own cycle: int32 [size, LINE], and the same moved by one."""
    cycle = rng.permutation(LETTERS)
    letters = np.zeros((size, LINE + 1), np.int32)
    letters[:, 0] = rng.integers(0, LETTERS, size)
    for i in range(LINE):
        stays = rng.uniform(size=size) < 0.8
        letters[:, i + 1] = np.where(stays, cycle[letters[:, i]], rng.integers(0, LETTERS, size))
    return np.ascontiguousarray(letters[:, :-1]), np.ascontiguousarray(letters[:, 1:])


_SHAPES = {
    "logistic": [(784, 10), (10,)],
    "mlp": [(784, 200), (200,), (200, 10), (10,)],
    "lstm": [(LETTERS, 8), (8, 512), (128, 512), (512,), (128, LETTERS), (LETTERS,)],
    "cnn": [(5, 5, 1, 32), (32,), (5, 5, 32, 64), (64,), (3136, 512), (512,), (512, 10), (10,)],
}


def first_weights(workload: Workload) -> list[np.ndarray]:
    rng = np.random.default_rng(SEED + 1)
    weights = []
    for shape in _SHAPES[workload.model]:
        if len(shape) == 1:
            weights.append(np.zeros(shape, np.float32))
            continue
        field = int(np.prod(shape[:-2])) if len(shape) > 2 else 1
        limit = np.sqrt(6.0 / (field * (shape[-2] + shape[-1])))
        weights.append(rng.uniform(-limit, limit, shape).astype(np.float32))
    return weights
