"""The graph of neighbours, and the number of shares that determine a secret (Bell et al. 2020, section 3)."""

import functools
import math
import os
from collections.abc import Sequence

DROPOUTS = 0.3
"""The fraction of clients that may drop out."""

CORRUPT = 0.1
"""The fraction of clients that may show the server all that they know."""

SECURITY_BITS, CORRECTNESS_BITS = 40, 20
"""A random graph exposes a client with probability 2**-SECURITY_BITS at most, and loses a sum in which at most DROPOUTS
drop out with probability 2**-CORRECTNESS_BITS at most.
"""


@functools.lru_cache(maxsize=256)
def degree_and_threshold(clients: int) -> tuple[int, int]:
    """(degree, threshold) of the least random graph that keeps the bounds; of the complete graph if none does.

    The degree is a client's number of neighbours, the threshold the number of shares that determine a secret. The
    degree grows with the logarithm of the clients; up to about 70 clients the graph is complete.
    """
    others = clients - 1
    corrupt, alive = math.floor(CORRUPT * clients), max(0, others - math.ceil(DROPOUTS * clients))
    # The clients that are neither corrupt nor dropped stay connected unless all `degree / 2` successors of one of them
    # on the ring are lost: clients * lost ** (degree / 2) is at most 2**-SECURITY_BITS.
    lost = CORRUPT + DROPOUTS
    least_degree = 2 * math.ceil((SECURITY_BITS + math.log2(max(2, clients))) / -math.log2(lost))
    for degree in range(least_degree, others, 2):
        threshold = degree // 2 + 1
        exposed = clients * _at_least(threshold, others, corrupt, degree)
        failed = clients * (1 - _at_least(threshold, others, alive, degree))
        if exposed < 2**-SECURITY_BITS and failed < 2**-CORRECTNESS_BITS:
            return degree, threshold
    return others, complete_threshold(clients)


def complete_threshold(holders: int) -> int:
    """The threshold in a complete graph, two thirds of the holders of shares and one.

    With half of them as the threshold, two halves could give both secrets of a client to a server that lies.
    """
    return 2 * holders // 3 + 1


def _at_least(minimum: int, population: int, marked: int, drawn: int) -> float:
    """The probability that at least `minimum` of the `drawn` members of a population are marked (hypergeometric)."""
    total = math.comb(population, drawn)
    below = sum(
        math.comb(marked, i) * math.comb(population - marked, drawn - i) for i in range(min(minimum, drawn + 1))
    )
    return (total - below) / total


def graph(members: Sequence[int], degree: int) -> dict[int, list[int]]:
    """Member -> its neighbours: the nearest on a ring in a random order, at least `degree` of them or all."""
    count = len(members)
    ring = sorted(members, key=lambda _: os.urandom(16))
    if degree >= count - 1:
        return {member: [other for other in ring if other != member] for member in ring}
    distances = range(1, -(-degree // 2) + 1)
    steps = [step for distance in distances for step in (distance, -distance)]
    return {
        member: list(dict.fromkeys(ring[(position + step) % count] for step in steps))
        for position, member in enumerate(ring)
    }
