"""A client stage as a region, before and after the passes of fedcore; docs/client-stages.md explains it.

python examples/client_stage.py
"""

import tensorflow as tf

import fedcore as fc
from fedcore.runtime.stage_regions import AssumedClients, stage_regions

WEIGHTS = fc.to_type(("float32", (4, 1)))
BATCH = fc.to_type(("float32", (None, 4)))


@fc.tf_computation(WEIGHTS, BATCH)
def step(weights, batch):
    """A step towards the first principal component."""
    return weights + 0.1 * tf.matmul(batch, batch @ weights, transpose_a=True)


@fc.federated_computation(fc.FederatedType(WEIGHTS, fc.SERVER), fc.FederatedType(fc.SequenceType(BATCH), fc.CLIENTS))
def next_round(weights, batches):
    shared = fc.federated_broadcast(weights)
    return fc.federated_mean(fc.federated_map(lambda w, b: fc.sequence_reduce(b, w, step), (shared, batches)))


(stage,) = stage_regions(next_round.to_module("planned"), AssumedClients(clients=8, batches=3, rows=5))

if __name__ == "__main__":
    print(stage.schedule)
    for each in (stage.log[0], stage.log[-1]):
        print(f"after {each.pass_}:" if each.pass_ else "as built:")
        print(stage.text(each.function, each.region))
