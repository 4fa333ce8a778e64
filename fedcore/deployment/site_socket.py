"""A site's process behind a socket of its machine, for networks that start a process for each message.

A connection has one request and its reply, both bytes. Nothing is unpickled.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

from fedcore.deployment.closing import Ending
from fedcore.errors import FedcoreError

MAX_MESSAGE_BYTES = 2**31 - 1
"""Equal to that of `fedcore.runtime.network.messages`, which would import TensorFlow into a SuperNode's app."""

MAX_CONNECTIONS = 32
"""Connections at once; a further one waits."""

REQUEST_S = 60.0
"""Seconds until a request must have begun after its connection."""

RETRY_S = 1.0
"""Seconds until the next try where a connection could not be taken, such as for want of files or threads."""


@contextlib.contextmanager
def serving(
    socket: Path, answer: Callable[[bytes], bytes], tell: Callable[[str], object] = lambda text: None
) -> Iterator[Ending]:
    """Answers requests in the `with` block, in a thread for each.

    The permissions of the socket's folder say who may ask.

    Args:
        socket: path; a socket that an ended process has left is replaced.
        answer: a payload -> the reply.
        tell: gets a text for the site's owner.
    Raises:
        FedcoreError: another process answers at the socket.
    """
    if _is_answered(socket):
        raise FedcoreError(f"another process answers at {socket}\n  fix: end it, or end this one")
    with contextlib.suppress(FileNotFoundError):
        socket.unlink()
    listener = Listener(str(socket), "AF_UNIX", backlog=MAX_CONNECTIONS)
    places, is_closed = threading.Semaphore(MAX_CONNECTIONS), threading.Event()

    def reply(connection: Connection) -> None:
        try:
            with connection, contextlib.suppress(EOFError, OSError):  # whoever asks may end
                if connection.poll(REQUEST_S):
                    connection.send_bytes(answer(connection.recv_bytes(MAX_MESSAGE_BYTES)))
        finally:
            places.release()

    def accept() -> None:
        is_failing = False
        while not is_closed.is_set():
            places.acquire()
            connection = None
            try:
                connection = listener.accept()
                threading.Thread(target=reply, args=(connection,), daemon=True).start()
                is_failing = False
            except (OSError, RuntimeError) as error:  # the listener is closed, or files or threads have run out
                places.release()
                if connection is not None:
                    connection.close()
                if not is_failing and not is_closed.is_set():
                    tell(f"cannot take a connection: {getattr(error, 'strerror', None) or error}; tries again")
                is_failing = True
                is_closed.wait(RETRY_S)

    threading.Thread(target=accept, daemon=True).start()
    tell(f"listens at {socket}; waits for the requests that a SuperNode passes on")
    try:
        yield Ending()
    finally:
        is_closed.set()
        listener.close()


def _is_answered(socket: Path) -> bool:
    """Whether a process listens at a socket."""
    try:
        Client(str(socket), "AF_UNIX").close()
    except OSError:
        return False
    return True


def ask(socket: str, payload: bytes) -> bytes:
    """The reply of the process behind a socket.

    Raises:
        OSError: no process answers there.
    """
    with Client(socket, "AF_UNIX") as connection:
        connection.send_bytes(payload)
        return connection.recv_bytes()
