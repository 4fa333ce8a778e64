"""A site's process behind a socket of its machine, for networks that start a process for each message.

A connection has one request and its reply, both bytes. Nothing is unpickled.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path


@contextlib.contextmanager
def serving(socket: Path, answer: Callable[[bytes], bytes]) -> Iterator[None]:
    """Answers requests in the `with` block, in a thread for each.

    The permissions of the socket's folder say who may ask.

    Args:
        socket: path; a socket that an ended process has left is replaced.
        answer: a payload -> the reply.
    """
    with contextlib.suppress(FileNotFoundError):
        socket.unlink()
    listener = Listener(str(socket), "AF_UNIX")

    def reply(connection: Connection) -> None:
        with connection, contextlib.suppress(EOFError, OSError):  # whoever asks may end
            connection.send_bytes(answer(connection.recv_bytes()))

    def accept() -> None:
        while True:
            try:
                connection = listener.accept()
            except OSError:  # the listener is closed
                return
            threading.Thread(target=reply, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield
    finally:
        listener.close()


def ask(socket: str, payload: bytes) -> bytes:
    """The reply of the process behind a socket.

    Raises:
        OSError: no process answers there.
    """
    with Client(socket, "AF_UNIX") as connection:
        connection.send_bytes(payload)
        return connection.recv_bytes()
