"""`fc.deployment.flare`: NVIDIA FLARE as the network."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedcore.deployment.engines import engine_installed

if TYPE_CHECKING:
    from fedcore.deployment.flare_exchange import FlareExchange


def flare(
    kit: str | os.PathLike, sites: Sequence[str], *, wait_s: float = 60.0, least: int | None = None
) -> "FlareExchange":
    """The network of NVIDIA FLARE, from its server's side: listens where the kit says.

    Args:
        kit: the server's folder of `nvflare provision`.
        sites: the names of the sites, as in the project file that was provisioned.
        wait_s: seconds to wait for sites to connect. Those that are offline then may connect later.
        least: number of sites to wait for. Default: all.
    Raises:
        FedcoreError: the extra `nvflare` is not installed, the folder is no server's kit, fewer sites than `least` have
            connected, or the process has had an exchange of FLARE already.
    Example:
        >>> exchange = fc.deployment.flare("kits/server", sites=["north", "south"])
    """
    with engine_installed():
        from fedcore.deployment.flare_exchange import connect
    return connect(kit, sites, wait_s, least)
