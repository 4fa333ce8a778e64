"""`fc.deployment.flower` and `fc.deployment.flower_client_app`: Flower as the network."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedcore.deployment.engines import engine_installed

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid

    from fedcore.deployment.flower_exchange import FlowerExchange


def flower(grid: "Grid", sites: Mapping[str, int], *, wait_s: float = 60.0) -> "FlowerExchange":
    """The network of Flower, from the side of a ServerApp.

    Each message costs the start of a process at the site's node, seconds; see docs/deployment.md.

    Args:
        grid: of the ServerApp's main function.
        sites: by the name of a site the id of its SuperNode, as `flwr supernode list` shows it.
        wait_s: seconds to wait for all nodes.
    Raises:
        FedcoreError: the extra `flower` is not installed, or a node is not connected.
    Example:
        >>> app = flwr.serverapp.ServerApp()
        >>> @app.main()
        ... def main(grid, context):
        ...     exchange = fc.deployment.flower(grid, {"north": 1234, "south": 5678})
    """
    with engine_installed("flower"):
        from fedcore.deployment.flower_exchange import connect
    return connect(grid, sites, wait_s)


def flower_client_app() -> "ClientApp":
    """The ClientApp of a federation of sites: it passes each request on to the process of `fedcore site`.

    The SuperNode of a site is started with `--node-config 'fedcore-socket="PATH"'`, the `socket` of its site.toml.

    Raises:
        FedcoreError: the extra `flower` is not installed.
    Example:
        >>> app = fc.deployment.flower_client_app()  # client_app.py of the Flower project
    """
    with engine_installed("flower"):
        from fedcore.deployment.flower_exchange import client_app
    return client_app()
