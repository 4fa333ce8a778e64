import numpy as np

from fedcore.ir.interpret import Seed
from fedcore.ir.operations import intrinsic, operation
from fedcore.ir.values import Value
from fedcore.types import TensorType


@intrinsic("(-> int64@SERVER) | (-> {int64}@CLIENTS)", attributes=("placement",), draws=True)
def federated_random_seed(placement: str, *, clients: int, seed: Seed) -> np.int64 | list[np.int64]:
    """A new seed, derived from the seed of the call: a single seed at the server, or one for each client.

    A call seed gives equal seeds on every runtime. Each use in a program gives a different seed. If clients shall draw
    equal numbers, broadcast a server's seed. `tf.random.stateless_*` take two numbers: stack the seed with a 0.

    Example:
        >>> shared = fc.federated_broadcast(fc.federated_random_seed(fc.SERVER))
    """
    if placement == "CLIENTS":
        return [random_seed.meaning(seed=seed.for_client(k)) for k in range(clients)]
    return random_seed.meaning(seed=seed)


@operation(lambda types, attributes: TensorType("int64"), draws=True)
def random_seed(*, seed: Seed) -> np.int64:
    """The seed of `federated_random_seed` inside a stage."""
    number = seed.number()  # an int, or a tensor where a stage is built
    return np.int64(number) if isinstance(number, int) else number


@federated_random_seed.in_stage
def _(*, salt: str) -> Value:
    return random_seed.emit([], salt=salt)
