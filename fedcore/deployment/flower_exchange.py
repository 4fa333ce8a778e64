"""Flower as the network: the Grid of a ServerApp, and a ClientApp that passes requests on to a site's own process.

A stock SuperNode starts a process for each message, with the app that the server's side has sent. That app has no data
and imports no TensorFlow: it asks the process of `fedcore site` over a socket of its machine (`site_socket`), which is
the site's, with its data and policy. Flower brings identities, TLS and messages.
"""

import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from fedcore.deployment.closing import ClosedAtExit
from fedcore.errors import FedcoreError, brief, printable, shorten

if TYPE_CHECKING:
    from flwr.serverapp import Grid

    from fedcore.runtime.stopping import Stop

POLL_S = 0.1
"""Seconds between two looks for a reply, or for a node."""

SOCKET = "fedcore-socket"
"""The key of the socket's path in `flower-supernode --node-config`."""

_RECORD, _PAYLOAD = "fedcore", "payload"
"""The name of the record of a message, and in it the key of the bytes."""


class FlowerExchange(ClosedAtExit):
    """An `fc.deployment.Exchange` over the Grid of a Flower ServerApp; the result of `fc.deployment.flower`.

    Guarantees:
      - One thread at a time uses the grid.

    Args:
        nodes: by site the id of its node.
    """

    def __init__(self, grid: "Grid", nodes: Mapping[str, int]) -> None:
        self._grid = grid
        self._nodes = dict(nodes)
        self._lock = threading.Lock()

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(sorted(self._nodes))

    def is_online(self, site: str) -> bool:
        with self._lock:
            return self._nodes.get(site) in {*self._grid.get_node_ids()}

    def ask(self, site: str, payload: bytes, timeout_s: float, stop: "Stop") -> bytes:
        from fedcore.runtime.network.exchange import NoReply  # imports TensorFlow, which a ClientApp does not need
        from fedcore.runtime.stopping import Stopped

        if site not in self._nodes:
            raise NoReply(site, f"it is no site of this federation; its sites are {', '.join(self.sites)}")
        if not self.is_online(site):
            raise NoReply(site, "it is offline")
        content = RecordDict({_RECORD: ConfigRecord({_PAYLOAD: payload})})
        message = Message(content, self._nodes[site], MessageType.QUERY, ttl=timeout_s)
        deadline = time.monotonic() + timeout_s
        with self._lock:
            ids = [*self._grid.push_messages([message])]
        while not (replies := self._pull(ids)):
            if stop.is_stopped:
                raise Stopped("the call was stopped")
            if time.monotonic() > deadline:
                raise NoReply(site, f"it did not reply within {timeout_s:g} s")
            time.sleep(POLL_S)
        (reply,) = replies
        if reply.has_error():
            raise NoReply(site, f"the network has no reply: {printable(shorten(str(reply.error.reason)))}")
        record = reply.content.get(_RECORD)
        answer = record.get(_PAYLOAD) if isinstance(record, ConfigRecord) else None
        if not isinstance(answer, bytes):
            raise NoReply(site, "its reply is none of fedcore's")
        return answer

    def _pull(self, ids: list[str]) -> list[Message]:
        """The replies that have arrived to the messages with these ids."""
        with self._lock:
            return [*self._grid.pull_messages(ids)]

    def close(self) -> None:
        """Does nothing: the ServerApp's process has the grid."""


def connect(grid: "Grid", sites: Mapping[str, int], wait_s: float) -> FlowerExchange:
    """The exchange of `fc.deployment.flower`, whose arguments and errors these are."""
    if not isinstance(sites, Mapping) or not sites or len({*sites.values()}) < len(sites):
        raise FedcoreError(f"sites are names, each with the id of a node of its own, not {brief(sites)}")
    exchange, deadline = FlowerExchange(grid, sites), time.monotonic() + wait_s
    while offline := [site for site in exchange.sites if not exchange.is_online(site)]:
        if time.monotonic() > deadline:
            raise FedcoreError(f"{', '.join(offline)}: no node of the federation within {wait_s:g} s")
        time.sleep(POLL_S)
    return exchange


def client_app() -> ClientApp:
    """The app of `fc.deployment.flower_client_app`."""
    app = ClientApp()

    @app.query()
    def ask_own_process(message: Message, context: Context) -> Message:
        from fedcore.deployment.site_socket import ask

        socket: Any = context.node_config.get(SOCKET)
        if not isinstance(socket, str):
            raise FedcoreError(f"this node has no {SOCKET}: flower-supernode --node-config '{SOCKET}=\"…\"' names it")
        reply = ask(socket, bytes(message.content[_RECORD][_PAYLOAD]))
        return Message(RecordDict({_RECORD: ConfigRecord({_PAYLOAD: reply})}), reply_to=message)

    return app
