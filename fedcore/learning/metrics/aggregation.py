from fedcore.computation import tf_computation
from fedcore.intrinsics import federated_map, federated_sum


def sum_then_finalize(model):
    """Adds the clients' metric states, then computes the metrics once, at the server.

    Returns:
        A function from a client value of metric states to (their sum, the metrics), both at the server.
    """
    finalize = tf_computation(lambda state: model.finalize_metrics(state))

    def aggregate(client_states):
        total = federated_sum(client_states)
        return total, federated_map(finalize, total)

    return aggregate
