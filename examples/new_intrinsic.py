"""A new intrinsic in one file outside of fedcore: the median of what the clients hold.

One declaration gives the type check, the documentation, the text form, and the meaning that every runtime is tested
against. The lowering is written in the language itself: a bisection, each step of which counts clients.

    python examples/new_intrinsic.py
"""

import numpy as np

import fedcore as fc
from fedcore.ir import parse_module

LOW, HIGH, STEPS = -128.0, 128.0, 14


@fc.intrinsic("(value: {float32}@CLIENTS -> float32@SERVER)")
def federated_median(value):
    """The lower median of a client number between -128 and 128, to within 256 / 2**14 = 0.016.

    No clients, or a median above 128: 128. No client's number leaves it: the server learns how many lie below each
    point that it asks about.

    Example:
        >>> middle = federated_median(readings)
    """
    low, high = np.float32(LOW), np.float32(HIGH)
    for _ in range(STEPS):
        middle = (low + high) / np.float32(2)
        below = sum(np.float32(x) < middle for x in value)
        low, high = (low, middle) if 2 * below >= len(value) > 0 else (middle, high)
    return high


@federated_median.lowering
def _(value):
    """Each step asks all clients one question about one point, so a step is a round trip."""
    clients = fc.federated_count(value)
    bounds = fc.federated_value((LOW, HIGH), fc.SERVER)
    for _ in range(STEPS):
        middle = fc.federated_map(lambda low, high: (low + high) / 2.0, bounds)
        below = fc.federated_sum(fc.cast(fc.less(value, fc.federated_broadcast(middle)), "int32"))
        bounds = fc.federated_map(narrowed, (bounds, middle, below, clients))
    return bounds[1]


def narrowed(bounds, middle, below, clients):
    """The half of the bounds that holds the median: the lower one if half of the clients lie below the middle."""
    enough = fc.where(fc.less(0, clients), fc.less(clients - 1, below * 2), False)
    return fc.where(enough, bounds[0], middle), fc.where(enough, middle, bounds[1])


@fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
def median(readings):
    return federated_median(readings)


def main():
    programs = fc.testing.check_intrinsic(federated_median)
    print(f"federated_median keeps the laws of an intrinsic, in {programs} programs")
    text = median.to_text()
    assert parse_module(text) == median.module
    print(text)
    plan = median.to_module("planned").main
    count = {kind: sum(op.kind == kind for op in plan.operations) for kind in ("run", "fold", "broadcast")}
    print(f"its plan, for {STEPS} steps, runs {count['run']} server stages and {count['fold']} client stages")
    readings = [3.5, -20.0, 7.25, 100.0, 4.0]
    print(f"the median of {readings} is {median(readings):.2f}; numpy says {np.median(readings):.2f}")
    try:
        fc.federated_computation(lambda x: federated_median(x), fc.FederatedType("str", fc.CLIENTS))
    except fc.errors.TypeMismatch as error:
        print(error)


if __name__ == "__main__":
    main()
