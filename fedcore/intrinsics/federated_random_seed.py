import numpy as np

from fedcore.ir.operations import intrinsic, operation
from fedcore.types import TensorType


@intrinsic("(-> int64@SERVER) | (-> {int64}@CLIENTS)", attributes=("placement",), draws=True)
def federated_random_seed(placement, *, clients, seed):
    """A fresh seed at `placement`, folded from the seed of the call: one at the server, or one for each client.

    The same call seed gives the same value on every runtime; every use in a program gives another one. Broadcast a
    server's to have clients draw alike. `tf.random.stateless_*` take two numbers: stack it with a 0.

    Example:
        >>> shared = fc.federated_broadcast(fc.federated_random_seed(fc.SERVER))
    """
    if placement == "CLIENTS":
        return [random_seed.meaning(seed=seed.for_client(k)) for k in range(clients)]
    return random_seed.meaning(seed=seed)


@operation(lambda types, attributes: TensorType("int64"), draws=True)
def random_seed(*, seed):
    """What `federated_random_seed` does at one placement."""
    number = seed.number()
    return np.int64(number) if isinstance(number, int) else number


@federated_random_seed.in_stage
def _(*, salt):
    return random_seed.emit([], salt=salt)
