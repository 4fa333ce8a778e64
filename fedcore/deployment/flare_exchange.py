"""NVIDIA FLARE as the network: cells with mutual TLS, with the kits of `nvflare provision`.

The server's process is the cell `server`, and each site's process the cell of its name. fedcore sends bytes on one
channel; what crosses is the engine's. No job is deployed, so no code travels, and FLARE's own servers need not run.

A kit is a participant's folder of `nvflare provision`: `startup/` has its certificate, its key, the root certificate,
and the server's address.
"""

import contextlib
import json
import logging
import os
import re
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import attrs
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import CellChannel, Encoding, MessageHeaderKey, MessagePropKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey

from fedcore.deployment.closing import ClosedAtExit, Ending
from fedcore.deployment.ports import check_port_is_free, wait_until_listening
from fedcore.errors import FedcoreError, brief
from fedcore.runtime.network.exchange import NoReply
from fedcore.runtime.network.messages import MAX_MESSAGE_BYTES, remark
from fedcore.runtime.stopping import Stop, Stopped
from fedcore.whole_files import write_whole

CELLNET = CellChannel.CELLNET
"""The channel of hello, which FLARE does not cut into streams."""

_CHANNEL, _TOPIC, _HELLO = "fedcore", "ask", "fedcore-hello"
_JOINED, _TAKEN, _UNKNOWN = b"joined", b"taken", b"unknown"
"""Answers to a hello: the process is that of its site; another one is; or the server has no such site."""

_PROCESS_ID = re.compile(rb"[0-9a-f]{32}")
"""The payload of a hello: an id that the process draws when it starts."""

_LOG = logging.getLogger(__name__)

HELLO_S, HELLO_TIMEOUT_S = 2.0, 5.0
"""Seconds between two hellos of a site, and until the server must have answered one."""

TELL_S = 10.0
"""Seconds after which a server tells for which sites it waits."""

SILENT_S = 15.0
"""Seconds without a hello after which another process of the site may take the place of a process."""


class _Peer(Protocol):
    """FLARE's record of another cell."""

    def get_fqcn(self) -> str: ...


@attrs.frozen
class Kit:
    """The files of a participant.

    Args:
        name: of the site; `server` for the server.
        address: host and port of the server.
        server_identity: common name of the server's certificate.
        credentials: paths of certificates and key, by FLARE's names for them (`DriverParams`).
    """

    name: str
    address: str
    server_identity: str
    credentials: dict[str, str]

    @classmethod
    def read(cls, folder: str | os.PathLike) -> "Kit":
        """The kit in a folder.

        Raises:
            FedcoreError: it is no kit of `nvflare provision`.
        """
        startup = Path(folder) / "startup"
        for file, parse in (("fed_client.json", cls._site_kit), ("fed_server.json", cls._server_kit)):
            if (startup / file).is_file():
                try:
                    return parse(startup, json.loads((startup / file).read_text()))
                except (KeyError, IndexError, TypeError, ValueError, OSError) as error:
                    raise FedcoreError(f"{startup / file} is no file of nvflare provision: {error!r}") from None
        raise FedcoreError(
            f"{folder} is no kit of a site or a server: nvflare provision writes such folders, with "
            "startup/fed_client.json or startup/fed_server.json"
        )

    @classmethod
    def _site_kit(cls, startup: Path, facts: dict) -> "Kit":
        """The kit of a site, from the content of its `fed_client.json`."""
        server, client = facts["servers"][0], facts["client"]
        credentials = {
            DriverParams.CA_CERT.value: str(startup / client["ssl_root_cert"]),
            DriverParams.CLIENT_CERT.value: str(startup / client["ssl_cert"]),
            DriverParams.CLIENT_KEY.value: str(startup / client["ssl_private_key"]),
        }
        return cls(client["fqsn"], server["service"]["target"], server["identity"], credentials)

    @classmethod
    def _server_kit(cls, startup: Path, facts: dict) -> "Kit":
        """The kit of the server, from the content of its `fed_server.json`."""
        server = facts["servers"][0]
        credentials = {
            DriverParams.CA_CERT.value: str(startup / server["ssl_root_cert"]),
            DriverParams.SERVER_CERT.value: str(startup / server["ssl_cert"]),
            DriverParams.SERVER_KEY.value: str(startup / server["ssl_private_key"]),
        }
        return cls(FQCN.ROOT_SERVER, server["service"]["target"], server["admin_server"], credentials)

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def cell(self) -> Any:
        """A cell that has not started."""
        logging.getLogger("nvflare").setLevel(logging.ERROR)  # it writes lines about each connection
        cell = Cell(
            fqcn=self.name,
            root_url=f"grpc://{self.address}",
            secure=True,
            credentials=dict(self.credentials),
            create_internal_listener=False,
            auth_identity_map={FQCN.ROOT_SERVER: self.server_identity},
        )
        cell.core_cell.add_incoming_filter("*", "*", _refuse_objects)
        return cell


class FlareExchange(ClosedAtExit):
    """An `fc.deployment.Exchange` over FLARE's cells; the result of `fc.deployment.flare`.

    Guarantees:
      - Sites connect with mutual TLS, by a certificate with their name of the root of the kit.
      - A site is one process: a further one with its certificate is refused while the first is connected, and a
        warning names the site.
      - A site that disconnects while it is asked is noticed at once, and not after the timeout.
      - A reply has arrived within the timeout, or counts as late, however many bytes of it are there.
      - Sites send nothing to each other through the server.
      - `close`, the end of a `with` block and the end of the program, also by an exception, free the port and end
        FLARE's threads.
    """

    def __init__(self, kit: Kit, sites: Sequence[str]) -> None:
        """Starts the server's cell, and returns when it listens; `wait` waits for sites.

        Raises:
            FedcoreError: another process listens on the kit's port, or the cell does not listen.
        """
        self._sites = tuple(sorted(sites))
        # By site the id of its process, and the time (of `time.monotonic`) of its last hello.
        self._processes: dict[str, tuple[str, float]] = {}
        # By site a signal for each request in flight. Triggering it ends the wait for the reply.
        self._in_flight: dict[str, set[Signal]] = {site: set() for site in self._sites}
        self._changed = threading.Condition()
        self._is_closed = False
        check_port_is_free(kit.port)
        self._cell = kit.cell()
        self._cell.core_cell.set_cell_disconnected_cb(self._on_disconnect)
        self._cell.core_cell.set_message_interceptor(_refuse_between_sites)
        self._cell.core_cell.register_request_cb(channel=CELLNET, topic=_HELLO, cb=self._on_hello)
        self._cell.start()
        self.close_at_exit()
        wait_until_listening(kit.host, kit.port)

    @property
    def sites(self) -> tuple[str, ...]:
        return self._sites

    def is_online(self, site: str) -> bool:
        return site in self._processes

    def wait(self, timeout_s: float, least: int | None = None) -> list[str]:
        """Waits for sites to connect; returns those that have not.

        Args:
            least: number of sites to wait for. Default: all.
        """
        sites_needed = len(self._sites) if least is None else least
        with self._changed:
            self._changed.wait_for(lambda: len(self._processes) >= sites_needed, timeout_s)
            return [site for site in self._sites if site not in self._processes]

    def ask(self, site: str, payload: bytes, timeout_s: float, stop: Stop) -> bytes:
        if site not in self._in_flight:
            raise NoReply(site, f"it is no site of this federation; its sites are {', '.join(self._sites)}")
        deadline = time.monotonic() + timeout_s
        while True:
            reply = self._ask_once(site, payload, deadline, stop)
            code = reply.get_header(MessageHeaderKey.RETURN_CODE, ReturnCode.OK)
            if code != ReturnCode.SERVICE_UNAVAILABLE or time.monotonic() > deadline:
                break
            time.sleep(0.05)  # FLARE has asked a further process of the site, which is to end
        if time.monotonic() > deadline or code == ReturnCode.TIMEOUT:
            raise NoReply(site, f"it did not reply within {timeout_s:g} s")
        if code != ReturnCode.OK or not isinstance(reply.payload, bytes | bytearray | memoryview):
            why = remark(str(reply.get_header(MessageHeaderKey.ERROR, "") or code))  # may be the site's text
            raise NoReply(site, f"the network has no reply: {why}")
        return bytes(reply.payload)

    def _ask_once(self, site: str, payload: bytes, deadline: float, stop: Stop) -> Message:
        """FLARE's reply to one request, with a return code that the caller checks.

        The wait ends at the deadline, when the call is stopped, or when the site disconnects.

        Raises:
            NoReply: the site is offline, or disconnected before the deadline.
            Stopped: the call was stopped.
        """
        ended, timeout_s = Signal(), max(0.01, deadline - time.monotonic())
        with self._changed:
            if site not in self._processes:
                raise NoReply(site, "it is offline")
            self._in_flight[site].add(ended)
        deadline_timer = threading.Timer(timeout_s, ended.trigger, [True])  # FLARE waits on while bytes arrive
        deadline_timer.daemon = True
        deadline_timer.start()
        try:
            with stop.cancelling(_Trigger(ended)):
                reply = self._cell.send_request(
                    channel=_CHANNEL,
                    topic=_TOPIC,
                    target=site,
                    request=Message({}, payload),
                    timeout=timeout_s,
                    abort_signal=ended,
                )
        finally:
            deadline_timer.cancel()
            with self._changed:
                self._in_flight[site].discard(ended)
        if stop.is_stopped:
            raise Stopped("the call was stopped")
        has_failed = reply.get_header(MessageHeaderKey.RETURN_CODE, ReturnCode.OK) != ReturnCode.OK
        if has_failed and ended.triggered and time.monotonic() < deadline:
            raise NoReply(site, "its process ended or lost its connection while it was asked")
        return reply

    def close(self) -> None:
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._processes.clear()
            for ended in (signal for signals in self._in_flight.values() for signal in signals):
                ended.trigger(True)
        self._cell.core_cell.stop()

    def _on_hello(self, request: Any, *_: object) -> Any:
        """Answers a site's process, which says hello again and again, whether it is the process of its site."""
        site, payload = _sender(request), bytes(request.payload or b"")
        if site not in self._in_flight or not _PROCESS_ID.fullmatch(payload):
            return Message({}, _UNKNOWN)
        process = payload.decode()
        with self._changed:
            current_process, last_hello = self._processes.get(site, (process, 0.0))
            is_taken = current_process != process and time.monotonic() - last_hello < SILENT_S
            if not is_taken and not self._is_closed:
                self._processes[site] = process, time.monotonic()
                self._changed.notify_all()
        if is_taken:
            _LOG.warning("%s: a second process has connected with its certificate, and was refused", site)
        return Message({}, _TAKEN if is_taken else _JOINED)

    def _on_disconnect(self, agent: _Peer, *_: object) -> None:
        """Frees the site's place for another process, and ends the waits for its replies."""
        site = agent.get_fqcn()
        with self._changed:
            self._processes.pop(site, None)
            for ended in self._in_flight.get(site, ()):
                ended.trigger(True)


def _sender(message: Any) -> str:
    """The name that FLARE has compared with the certificate; a message's own `origin` is a claim."""
    endpoint = message.get_prop(MessagePropKey.ENDPOINT)
    return "" if endpoint is None else endpoint.name


def _refuse_between_sites(message: Any, *_: Any) -> Any:
    """A reply that stops a message which is not for the server, where FLARE would forward it; None lets it pass."""
    if message.get_header(MessageHeaderKey.DESTINATION) == FQCN.ROOT_SERVER:
        return None
    return Message({MessageHeaderKey.RETURN_CODE: ReturnCode.INVALID_TARGET}, None)


def _refuse_objects(message: Any, *_: Any) -> Any:
    """A reply that stops a message of objects, which FLARE would build, or of too many bytes; None lets it pass."""
    encodings = [
        message.get_header(key) for key in (MessageHeaderKey.PAYLOAD_ENCODING, StreamHeaderKey.PAYLOAD_ENCODING)
    ]
    size_bytes = message.get_header(StreamHeaderKey.SIZE) or 0
    if Encoding.FOBS not in encodings and isinstance(size_bytes, int) and size_bytes <= MAX_MESSAGE_BYTES:
        return None
    return Message({MessageHeaderKey.RETURN_CODE: ReturnCode.INVALID_REQUEST}, None)


class _Trigger:
    """Ends the wait for a reply when a call is stopped."""

    def __init__(self, ended: Signal) -> None:
        self._ended = ended

    def cancel(self) -> None:
        self._ended.trigger(True)


def connect(kit: str | os.PathLike, sites: Sequence[str], wait_s: float, least: int | None) -> FlareExchange:
    """The exchange of `fc.deployment.flare`, whose arguments and errors these are."""
    server = Kit.read(kit)
    if server.name != FQCN.ROOT_SERVER:
        raise FedcoreError(f"{kit} is the kit of {server.name}, not of the server")
    if not sites or isinstance(sites, str) or len(set(sites)) < len(list(sites)):
        raise FedcoreError(f"sites are one name or more, each once, not {brief(sites)}")
    if FQCN.ROOT_SERVER in CoreCell.ALL_CELLS:
        raise FedcoreError(
            "NVIDIA FLARE has one server in a process, also after it was closed\n"
            "  fix: use the exchange of the first call of fc.deployment.flare, or start another process"
        )
    exchange, sites_needed = FlareExchange(server, sites), len(sites) if least is None else least
    try:
        offline = exchange.wait(min(wait_s, TELL_S), sites_needed)
        if len(sites) - len(offline) < sites_needed and wait_s > TELL_S:
            _LOG.warning("%s: waits %g s for %s to connect", server.address, wait_s, ", ".join(offline))
            offline = exchange.wait(wait_s - TELL_S, sites_needed)
        if len(sites) - len(offline) < sites_needed:
            raise FedcoreError(
                f"{', '.join(offline)}: not connected to {server.address} within {wait_s:g} s\n"
                "  fix: start them (fedcore site site.toml), or give least= to begin with fewer"
            )
    except BaseException:
        exchange.close()
        raise
    return exchange


@contextlib.contextmanager
def serving(
    kit: Kit, answer: Callable[[bytes], bytes], tell: Callable[[str], object] = lambda text: None
) -> Iterator[Ending]:
    """Answers the server's requests in the `with` block, from a site's side.

    The cell connects again whenever the server is back. The block gets an `Ending`, which comes when another process
    of the site is connected.

    Args:
        answer: a payload -> the reply; is called in the network's threads.
        tell: gets a text for the site's owner when the connection changes.
    """
    if kit.name == FQCN.ROOT_SERVER:
        raise FedcoreError("this is the kit of the server, not of a site")
    cell, ending = kit.cell(), Ending()
    greeting = _Greeting(kit, cell, ending, tell)

    def reply(request: Any, *_: Any) -> Any:
        origin, payload = request.get_header(MessageHeaderKey.ORIGIN), request.payload
        if origin != FQCN.ROOT_SERVER or not isinstance(payload, bytes | bytearray | memoryview):
            return Message({MessageHeaderKey.RETURN_CODE: ReturnCode.INVALID_REQUEST}, None)
        if not greeting.has_joined:
            return Message({MessageHeaderKey.RETURN_CODE: ReturnCode.SERVICE_UNAVAILABLE}, None)
        return Message({}, answer(bytes(payload)))

    cell.register_request_cb(channel=_CHANNEL, topic=_TOPIC, cb=reply)
    cell.start()
    thread = threading.Thread(target=greeting.run, name="fedcore-hello", daemon=True)
    thread.start()
    try:
        yield ending
    finally:
        ending.come("")
        thread.join()
        # Without FLARE's goodbye: the server would end the connections of all processes of the site.
        cell.core_cell.communicator.stop()


class _Greeting:
    """Says hello to the server while the site runs, so that the server and the owner know of each other."""

    def __init__(self, kit: Kit, cell: Any, ending: Ending, tell: Callable[[str], object]) -> None:
        self._kit = kit
        self._cell = cell
        self._ending = ending
        self._tell = tell
        self._process_id = secrets.token_hex(16).encode()
        self._last_text = ""  # that the owner was told
        self.has_joined = False

    def run(self) -> None:
        """Says hello until the site ends: every `HELLO_S` seconds, the first time at once."""
        while not self._ending.wait(HELLO_S if self._last_text else 0):
            reply = self._cell.core_cell.send_request(
                channel=CELLNET,
                topic=_HELLO,
                target=FQCN.ROOT_SERVER,
                request=Message({}, self._process_id),
                timeout=HELLO_TIMEOUT_S,
                optional=True,
            )
            is_answered = reply.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.OK
            answer = bytes(reply.payload or b"") if is_answered else b""
            self.has_joined = answer == _JOINED
            self._tell_once(answer)
            if answer == _TAKEN:
                self._ending.come(
                    f"{self._kit.name}: another process with the certificate of {self._kit.name} is connected to the "
                    "server\n  fix: end it, or end this one; a kit is of one machine"
                )

    def _tell_once(self, answer: bytes) -> None:
        """Tells the owner whether the site is connected, if that has changed."""
        address = self._kit.address
        text = {
            _JOINED: f"connected to {address}; waits for the server's requests",
            _UNKNOWN: f"connected to {address}, whose program has no site {self._kit.name} among its sites",
        }.get(answer, f"waits for the server at {address}; fedcore site check says whether it can be reached")
        if text != self._last_text:
            self._last_text = text
            self._tell(text)


def provision(folder: Path, sites: Sequence[str], port: int) -> dict[str, Path]:
    """Runs `nvflare provision` for a server and sites on this machine.

    Args:
        folder: gets the project file and the kits; it must be there.
        port: of the server, on the loopback interface.
    Returns:
        By name the kit of each participant; that of the server is `server`.
    Raises:
        FedcoreError: `nvflare provision` fails.
    """
    project = folder / "project.yml"
    write_whole(project, _project(sites, port))
    command = [sys.executable, "-m", "nvflare.cli", "provision", "-p", str(project), "-w", str(folder / "provisioned")]
    environment = {**os.environ, "HOME": str(folder)}  # where nvflare would leave a file of settings
    process = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    kits = folder / "provisioned" / "federation" / "prod_00"
    if process.returncode or not (kits / "localhost").is_dir():
        raise FedcoreError(f"nvflare provision fails: {(process.stderr or process.stdout).strip()[-500:]}")
    return {"server": kits / "localhost", **{site: kits / site for site in sites}}


def _project(sites: Sequence[str], port: int) -> str:
    """The project file of a server on the loopback interface, with the parts of FLARE that make kits."""
    site_lines = "".join(f"  - {{name: {site}, type: client, org: fedcore}}\n" for site in sites)
    return f"""api_version: 3
name: federation
participants:
  - {{name: localhost, type: server, org: fedcore, fed_learn_port: {port}, admin_port: {port}}}
{site_lines}builders:
  - path: nvflare.lighter.impl.workspace.WorkspaceBuilder
  - {{path: nvflare.lighter.impl.static_file.StaticFileBuilder, args: {{config_folder: config}}}}
  - path: nvflare.lighter.impl.cert.CertBuilder
"""
