"""Descriptions of how samplers choose clients: the facts that privacy accounting needs."""

from typing import TypeAlias

import attrs


@attrs.frozen
class PoissonParticipation:
    """In every `period`-th round of its own, each client takes part with probability `rate`, whatever the others do.

    Args:
        population: number of clients.
        rate: probability, above 0 and at most 1.
        period: rounds between two rounds in which a client may take part; 1 for every round.
    """

    population: int
    rate: float
    period: int = 1


@attrs.frozen
class FixedSizeParticipation:
    """In every round a given number of clients takes part, drawn uniformly from all, whatever happened before.

    Args:
        population: number of clients.
        replace: whether a client may be drawn several times in a round.
    """

    population: int
    replace: bool


@attrs.frozen
class PassParticipation:
    """A client takes part at most once in each pass of `rounds` rounds, the first of which begins with round 0.

    Args:
        population: number of clients.
        rounds: of a pass; 1 means that a client may take part in every round.
        separation: least number of rounds from a participation of a client to its next one.
    """

    population: int
    rounds: int = 1
    separation: int = 1

    def most(self, first: int, after: int) -> int:
        """The most participations of a client in the rounds from `first` to before `after`."""
        if after <= first:
            return 0
        passes = (after - 1) // self.rounds - first // self.rounds + 1
        return min(passes, self.most_within(after - first))

    def windows(self, first: int, after: int) -> list[range]:
        """Divides the rounds from `first` to before `after` so that a client takes part at most once in each range.

        Passes begin at multiples of `rounds`, so a client may take part in both rounds on the two sides of such a
        number; where it rests for a whole pass, ranges may begin anywhere.
        """
        start = first if self.separation >= self.rounds else first // self.rounds * self.rounds
        edges = range(start, after, self.rounds)
        return [range(max(edge, first), min(edge + self.rounds, after)) for edge in edges]

    def most_within(self, rounds: int) -> int:
        """The most participations of a client in any so many consecutive rounds."""
        count = 0
        while self.least_distance(count) < rounds:
            count += 1
        return count

    def least_distance(self, number: int) -> int:
        """The least number of rounds from a participation of a client to the `number`-th after it."""
        return max(number * self.separation, (number - 1) * self.rounds + 1) if number else 0


Participation: TypeAlias = PoissonParticipation | FixedSizeParticipation | PassParticipation


def every_round(population: int) -> PassParticipation:
    """The participation about which nothing is known: any client may take part in every round."""
    return PassParticipation(population)
