"""The connection of this process to a Ray cluster."""

import contextlib
import ipaddress
import os
import re
import socket
import time
from collections.abc import Callable
from typing import Any

import ray

from fedcore.errors import FedcoreError

ANSWER_S = 10.0
"""Seconds within which something has to listen at the address of a cluster. Ray itself waits a quarter of an hour."""


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
    cluster_address = address or os.environ.get("RAY_ADDRESS")
    if cluster_address is not None:
        _check_listens(cluster_address)
    settings: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    if cluster_address is None:
        settings |= {"num_cpus": cpus, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    try:
        ray.init("local" if cluster_address is None else address, **settings)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise FedcoreError(f"fc.runtime.ray: no cluster at {cluster_address}: {error}") from error
    return ray.shutdown


def _check_listens(address: str) -> None:
    """Raises FedcoreError if nothing listens at an address `host:port`; other addresses are Ray's to check."""
    match = re.fullmatch(r"(?:ray://)?(.+):(\d+)", address)
    if match is None:
        return
    hosts, port = [match[1].strip("[]")], int(match[2])
    with contextlib.suppress(ValueError):  # it is a name
        if ipaddress.ip_address(hosts[0]).is_loopback:
            hosts.append(ray.util.get_node_ip_address())  # Ray takes a loopback address for this one
    until, problem = time.monotonic() + ANSWER_S, ""
    while time.monotonic() < until:
        for host in hosts:
            try:
                socket.create_connection((host, port), timeout=max(0.1, until - time.monotonic())).close()
                return
            except (OSError, OverflowError, UnicodeError) as error:  # the port is too large; it is no name of a host
                problem = str(error)
        time.sleep(0.2)
    raise FedcoreError(f"fc.runtime.ray: no cluster at {address}: {problem}; fix: start one, or correct the address")
