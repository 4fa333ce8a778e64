"""Secure sums of vectors as long as a model of 1.6 M weights: seconds and bytes, beside the plain sum and SecAgg+."""

import statistics
import time

import numpy as np

CLIENTS, ELEMENTS = 50, 1_600_000
LARGEST = 2**22 - 1
"""Largest integer: the 22 bits to which Flower's SecAgg+ rounds weights by default."""


def secaggplus_bytes(elements: int, neighbours: int) -> int:
    """Bytes that a client of Flower's SecAgg+ (flwr 1.41, secaggplus_mod) sends, without its RPC envelopes.

    Two public keys in PEM, a token of 612 bytes for each neighbour with its 8 bytes of identifier, int64 for each
    element, and a share of 52 bytes with 8 bytes of identifier for each neighbour and itself.
    """
    return 2 * 215 + neighbours * (612 + 8) + 8 * elements + 264 + (neighbours + 1) * (52 + 8)


def measure_secure_sums(rounds: int) -> dict:
    """The figures, ready for JSON: by kind of sum the median seconds of a round and the bytes that a client sends."""
    import fedcore as fc
    from fedcore.testing.faults import lossy

    @fc.federated_computation(fc.FederatedType(("int32", (ELEMENTS,)), fc.CLIENTS))
    def total(vector):
        return fc.federated_secure_sum(vector, LARGEST)

    rng = np.random.default_rng(0)
    clients = [rng.integers(0, LARGEST + 1, ELEMENTS, dtype=np.int32) for _ in range(CLIENTS)]
    expected = np.sum(clients, axis=0, dtype=np.int32)
    sparse = fc.runtime.masked(neighbours=20, threshold=11)
    dropped = list(range(0, CLIENTS, 10))
    kinds = {
        "plain": (None, []),
        "masked, 49 neighbours": (fc.runtime.masked(), []),
        "masked, 20 neighbours": (sparse, []),
        "masked, 20 neighbours, 10 % drop out after sharing": (lossy(sparse, drop={"masked": dropped}), dropped),
    }
    found = {}
    for kind, (settings, lost) in kinds.items():
        policy = fc.runtime.drop() if lost else "raise"
        runtime = fc.runtime.local(secure_aggregation=settings, on_client_failure=policy)
        with fc.use(runtime):
            total(clients[:2] if not lost else clients)  # compiles
            seconds = []
            for _ in range(rounds):
                began = time.perf_counter()
                result = total(clients)
                seconds.append(time.perf_counter() - began)
            report = fc.context.last_report()
        runtime.close()
        assert np.array_equal(result, expected - sum(clients[i] for i in lost))
        if report.secure_sums:
            (traffic,) = report.secure_sums
            sent = {phase: bits // 8 // CLIENTS for phase, bits in traffic.sent_bits.items()}
        else:
            sent = {"plain": report.aggregate_bits // 8 // CLIENTS}
        found[kind] = {"seconds": statistics.median(seconds), "sent_bytes": sent, "bytes": sum(sent.values())}
    for neighbours in (49, 20):
        size = secaggplus_bytes(ELEMENTS, neighbours)
        found[f"SecAgg+ of Flower, {neighbours} neighbours (computed)"] = {"seconds": None, "bytes": size}
    return {"name": "secure", "clients": CLIENTS, "elements": ELEMENTS, "kinds": found}
