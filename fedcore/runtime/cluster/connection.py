"""The connection of this process to a Ray cluster."""

import os
from collections.abc import Callable
from typing import Any

import ray

from fedcore.errors import FedcoreError


def connect(address: str | None, cpus: int) -> Callable[[], object]:
    """Connects this process to a cluster, unless it is connected; returns the function that undoes it.

    Args:
        address: as Ray takes it; None for RAY_ADDRESS, else a cluster on this machine.
        cpus: cores of a cluster on this machine.
    Raises:
        FedcoreError: there is no such cluster.
    """
    if ray.is_initialized():
        return lambda: None
    local = address is None and not os.environ.get("RAY_ADDRESS")
    own: dict[str, Any] = {"num_cpus": cpus, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    try:
        ray.init("local" if local else address, log_to_driver=False, configure_logging=False, **(own if local else {}))
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise FedcoreError(
            f"fc.runtime.ray: no cluster at {address or os.environ.get('RAY_ADDRESS')}: {error}"
        ) from error
    return ray.shutdown
