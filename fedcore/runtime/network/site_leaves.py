"""The integers that sites add in masked sums: those of their partials, and how many sites have failed.

Decision 0317.
"""

from typing import Any

import numpy as np

from fedcore.errors import SecureSumError
from fedcore.runtime.client_work import ClientWork
from fedcore.runtime.secure import masks
from fedcore.runtime.secure.secure_partials import SecureLeaves, whole_bytes


class SiteLeaves(SecureLeaves):
    """The secure leaves of a stage's partial, and behind them a number that is 1 for a site that has failed.

    Args:
        clients: number of clients of the sum.
    """

    def __init__(self, work: ClientWork, clients: int) -> None:
        super().__init__(work, clients)
        self.layout.append(masks.Segment(1, whole_bytes(clients)))

    def vector(self, partial: Any) -> masks.Vector:
        return [*super().vector(partial), self._failures(0)]

    def failure(self) -> masks.Vector:
        """The integers of a site whose run has failed: all but the last are to be spoiled."""
        return [*masks.zeros(self.layout[:-1]), self._failures(1)]

    def with_sums(self, partial: Any, sums: masks.Vector) -> Any:
        """The merged partial with the sums in the place of the zeros.

        Raises:
            SecureSumError: a site has failed.
        """
        failures = int(sums[-1][0])
        if failures:
            sites = "a site has" if failures == 1 else f"{failures} sites have"
            raise SecureSumError(
                f"secure sum: {sites} failed, so that the sum shows nothing; which and why, the sites' logs say"
            )
        return super().with_sums(partial, sums[:-1])

    def _failures(self, number: int) -> np.ndarray:
        return np.array([number], self.layout[-1].dtype)
