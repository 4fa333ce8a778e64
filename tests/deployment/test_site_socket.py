"""A site's process behind a socket of its machine."""

import errno
import os
import threading
from multiprocessing.connection import Listener

import pytest

from fedcore.deployment import site_socket


def failing_once(function, error):
    """The function, which raises an error in the place of its first call."""
    errors = [error]

    def call(*arguments):
        if errors:
            raise errors.pop()
        return function(*arguments)

    return call


@pytest.mark.parametrize(
    ("owner", "name", "error", "text"),
    [
        (Listener, "accept", OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "Too many open files"),
        (threading.Thread, "start", RuntimeError("can't start new thread"), "can't start new thread"),
    ],
)
def test_a_connection_that_cannot_be_taken_does_not_end_the_site(tmp_path, monkeypatch, owner, name, error, text):
    monkeypatch.setattr(site_socket, "RETRY_S", 0.0)
    socket, texts = tmp_path / "site", []

    def tell(told):
        texts.append(told)
        if len(texts) == 1 and owner is threading.Thread:  # the thread that accepts runs
            monkeypatch.setattr(owner, name, failing_once(getattr(owner, name), error))

    if owner is Listener:
        monkeypatch.setattr(owner, name, failing_once(getattr(owner, name), error))
    with site_socket.serving(socket, bytes.upper, tell):
        if owner is threading.Thread:
            with pytest.raises((EOFError, OSError)):
                site_socket.ask(str(socket), b"lost")
        assert site_socket.ask(str(socket), b"abc") == b"ABC"
    assert f"cannot take a connection: {text}; tries again" in texts
    assert len(texts) == 2
