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
"""A random graph exposes a client, or loses a sum of at most DROPOUTS, with probability 2 to minus these."""


@functools.lru_cache(maxsize=256)
def degree_and_threshold(clients: int) -> tuple[int, int]:
    """The least degree of a random graph that keeps the bounds, with its threshold; else those of the complete graph.

    The degree grows with the logarithm of the clients; up to about 70 clients the graph is complete.
    """
    others = clients - 1
    corrupt, alive = math.floor(CORRUPT * clients), max(0, others - math.ceil(DROPOUTS * clients))
    # The clients between two who are neither corrupt nor dropped must not all be lost: a ring is connected.
    lost = CORRUPT + DROPOUTS
    least = 2 * math.ceil((SECURITY_BITS + math.log2(max(2, clients))) / -math.log2(lost))
    for degree in range(least, others, 2):
        threshold = degree // 2 + 1
        exposed = clients * _at_least(threshold, others, corrupt, degree)
        failed = clients * (1 - _at_least(threshold, others, alive, degree))
        if exposed < 2**-SECURITY_BITS and failed < 2**-CORRECTNESS_BITS:
            return degree, threshold
    return others, complete_threshold(clients)


def complete_threshold(holders: int) -> int:
    """Two thirds of the holders of shares: half of them could give both secrets of a client to a lying server."""
    return 2 * holders // 3 + 1


def _at_least(minimum: int, population: int, marked: int, drawn: int) -> float:
    """The probability that at least `minimum` of the drawn are marked (hypergeometric)."""
    total = math.comb(population, drawn)
    below = sum(
        math.comb(marked, i) * math.comb(population - marked, drawn - i) for i in range(min(minimum, drawn + 1))
    )
    return (total - below) / total


def graph(members: Sequence[int], degree: int) -> dict[int, list[int]]:
    """The neighbours of each member: the nearest on a ring in a random order, at least `degree` of them or all."""
    count = len(members)
    ring = sorted(members, key=lambda _: os.urandom(16))
    if degree >= count - 1:
        return {m: [o for o in ring if o != m] for m in ring}
    reach = range(1, -(-degree // 2) + 1)
    return {
        m: list(dict.fromkeys(ring[(i + step) % count] for r in reach for step in (r, -r))) for i, m in enumerate(ring)
    }
