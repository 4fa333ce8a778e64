"""synthetic(α, β): made classification data, of clients with models and inputs of their own.

Source:
    Li et al. 2020, "Federated optimization in heterogeneous networks", arXiv:1812.06127, section 5.1 and appendix C.1;
    LEAF (Caldas et al. 2018, arXiv:1812.01097) has a relative of it. The clients' numbers of examples, a log-normal
    and 50 more, and the test examples of each client are those of the authors' code.
"""

import math

import numpy as np

from fedcore.errors import InvalidValue
from fedcore.scalars import random_generator, real_number, whole_number
from fedcore.simulation.datasets.client_data import ArrayClientData, ClientData, numbered_ids

FEATURES, CLASSES = 60, 10


def load_data(
    alpha: float = 1.0,
    beta: float = 1.0,
    num_clients: int = 30,
    max_examples: int | None = None,
    test_fraction: float = 0.1,
    seed: int = 0,
) -> tuple[ClientData, ClientData]:
    """Makes the data, as (training data, test data) of equal clients.

    Client k has a linear model W_k, b_k with elements drawn from N(u_k, 1), u_k from N(0, α), and inputs drawn from
    N(v_k, Σ), with elements of v_k drawn from N(B_k, 1), B_k from N(0, β), and Σ diagonal, the j-th being j^-1.2. The
    label of x is argmax(W_k x + b_k). The clients' models differ at α = 0 too: each is drawn. As in the paper, u_k is
    one number, which moves the scores of all classes alike, so α changes no label; β moves the inputs.

    Types, for each client:
        <features=float32[60],label=int32>*   with labels from 0 to 9

    Args:
        alpha, beta: variances, at least 0.
        num_clients: at least 1.
        max_examples: the most examples of a client, at least 2; a client has 50 or more without it. Default: no bound.
        test_fraction: fraction of each client's examples in the test data, at least 0 and below 1, rounded up.
        seed: a whole number; equal seeds give equal data.
    Raises:
        FedcoreError: a number is outside its range.
    Example:
        >>> train, test = load_data(alpha=0.5, beta=0.5, num_clients=3, max_examples=20)
        >>> [len(list(data.create_tf_dataset_for_client("client_0"))) for data in (train, test)]
        [18, 2]
    """
    scales = [math.sqrt(real_number(name, v, at_least=0)) for name, v in (("alpha", alpha), ("beta", beta))]
    fraction = float(real_number("test_fraction", test_fraction, at_least=0))
    if fraction >= 1:
        raise InvalidValue(f"test_fraction is below 1, not {fraction:g}")
    count, rng = whole_number("num_clients", num_clients, at_least=1), random_generator(seed)
    sizes = 50 + rng.lognormal(4.0, 2.0, count).astype(np.int64)
    if max_examples is not None:
        sizes = np.minimum(sizes, whole_number("max_examples", max_examples, at_least=2))

    input_stddev = np.arange(1, FEATURES + 1) ** -0.6
    train, test = {}, {}
    for client, size in zip(numbered_ids(count), sizes, strict=True):
        model_mean, input_mean = rng.normal(0, scales)
        weights, bias = rng.normal(model_mean, 1, (FEATURES, CLASSES)), rng.normal(model_mean, 1, CLASSES)
        inputs = rng.normal(rng.normal(input_mean, 1, FEATURES), input_stddev, (size, FEATURES))
        labels = np.argmax(inputs @ weights + bias, axis=1).astype(np.int32)
        columns = {"features": inputs.astype(np.float32), "label": labels}
        test_size = math.ceil(fraction * size)
        train[client] = {name: column[test_size:] for name, column in columns.items()}
        test[client] = {name: column[:test_size] for name, column in columns.items()}
    return ArrayClientData.from_clients(train), ArrayClientData.from_clients(test)


def get_synthetic() -> ClientData:
    """The training data of three clients with 18 examples each, for tests."""
    return load_data(num_clients=3, max_examples=20)[0]
