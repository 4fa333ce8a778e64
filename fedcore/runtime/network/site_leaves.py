"""The integers that sites add in masked sums: those of their partials, and a zero that tells whether a site has failed.

Decision 0317.
"""

from typing import Any

import numpy as np

from fedcore.errors import SecureSumError
from fedcore.runtime.client_work import ClientWork
from fedcore.runtime.secure.masks import Segment, Vector
from fedcore.runtime.secure.secure_partials import SecureLeaves

CHECK = Segment(1, 1 << 64)
"""The last segment, a zero of each site. Its sum is 0, or uniform if one or more sites have failed."""


class SiteLeaves(SecureLeaves):
    """The secure leaves of a stage's partial, and behind them the zero of `CHECK`.

    A site that has failed spoils the whole sum, see `MaskedClient.mask`.

    Args:
        clients: number of clients of the sum.
    """

    def __init__(self, work: ClientWork, clients: int) -> None:
        super().__init__(work, clients)
        self.layout.append(CHECK)

    def vector(self, partial: Any) -> Vector:
        return [*super().vector(partial), np.zeros(1, CHECK.dtype)]

    def with_sums(self, partial: Any, sums: Vector) -> Any:
        """The merged partial with the sums in the place of the zeros.

        Raises:
            SecureSumError: a site has failed.
        """
        if sums[-1].any():
            raise SecureSumError(
                "secure sum: a site has failed, so that the sum shows nothing; which and why, the sites' logs say"
            )
        return super().with_sums(partial, sums[:-1])
