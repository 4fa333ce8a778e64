"""The port on which a server listens."""

import contextlib
import errno
import socket
import time

from fedcore.errors import FedcoreError

LISTENING_S = 20.0
"""Seconds that a server has to listen after its start."""


def check_port_is_free(port: int) -> None:
    """Checks that this process can listen on a port.

    Raises:
        FedcoreError: another process listens there, or the system does not allow it.
    """
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise FedcoreError(
                f"port {port} is in use: another process listens there, such as an earlier run of this program\n"
                f"  fix: end it (ss -ltnp 'sport = :{port}' names it), or provision with another port"
            ) from None
        raise FedcoreError(f"cannot listen on port {port}: {error.strerror}") from None


def wait_until_listening(host: str, port: int) -> None:
    """Waits until this machine listens on a port.

    Args:
        host: a name or address of this machine, which a server may listen at without localhost.
    Raises:
        FedcoreError: it does not within `LISTENING_S`.
    """
    deadline = time.monotonic() + LISTENING_S
    while time.monotonic() < deadline:
        for name in dict.fromkeys(["localhost", host]):
            with contextlib.suppress(OSError), socket.create_connection((name, port), 0.5):
                return
        time.sleep(0.02)
    raise FedcoreError(f"the network does not listen on port {port} within {LISTENING_S:g} s")
