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
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import attrs
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.message import Message

from fedcore.errors import FedcoreError, brief
from fedcore.runtime.network.exchange import NoReply
from fedcore.runtime.stopping import Stop, Stopped
from fedcore.whole_files import write_whole

_CHANNEL, _TOPIC = "fedcore", "ask"


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
        credentials: paths of certificates and key, by FLARE's names.
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
        server, client = facts["servers"][0], facts["client"]
        credentials = {
            DriverParams.CA_CERT.value: str(startup / client["ssl_root_cert"]),
            DriverParams.CLIENT_CERT.value: str(startup / client["ssl_cert"]),
            DriverParams.CLIENT_KEY.value: str(startup / client["ssl_private_key"]),
        }
        return cls(client["fqsn"], server["service"]["target"], server["identity"], credentials)

    @classmethod
    def _server_kit(cls, startup: Path, facts: dict) -> "Kit":
        server = facts["servers"][0]
        credentials = {
            DriverParams.CA_CERT.value: str(startup / server["ssl_root_cert"]),
            DriverParams.SERVER_CERT.value: str(startup / server["ssl_cert"]),
            DriverParams.SERVER_KEY.value: str(startup / server["ssl_private_key"]),
        }
        return cls(FQCN.ROOT_SERVER, server["service"]["target"], server["admin_server"], credentials)

    def cell(self) -> Any:
        """A cell that has not started."""
        _quiet()
        return Cell(
            fqcn=self.name,
            root_url=f"grpc://{self.address}",
            secure=True,
            credentials=dict(self.credentials),
            create_internal_listener=False,
            auth_identity_map={FQCN.ROOT_SERVER: self.server_identity},
        )


class FlareExchange:
    """An `fc.deployment.Exchange` over FLARE's cells; the result of `fc.deployment.flare`.

    Guarantees:
      - Sites connect with mutual TLS, by a certificate with their name of the root of the kit.
      - A site that disconnects while it is asked is noticed at once, and not after the timeout.
      - Sites send nothing to each other through the server.
    """

    def __init__(self, kit: Kit, sites: Sequence[str]) -> None:
        self._sites = tuple(sorted(sites))
        self._online: set[str] = set()
        self._asked: dict[str, set[Signal]] = {site: set() for site in self._sites}
        self._changed = threading.Condition()
        self._cell = kit.cell()
        self._cell.core_cell.set_cell_connected_cb(self._on_connect)
        self._cell.core_cell.set_cell_disconnected_cb(self._on_disconnect)
        self._cell.core_cell.set_message_interceptor(_refuse_between_sites)
        self._cell.start()

    @property
    def sites(self) -> tuple[str, ...]:
        return self._sites

    def is_online(self, site: str) -> bool:
        return site in self._online

    def wait(self, timeout_s: float, least: int | None = None) -> list[str]:
        """Waits for sites to connect; returns those that have not.

        Args:
            least: number of sites to wait for. Default: all.
        """
        number = len(self._sites) if least is None else least
        with self._changed:
            self._changed.wait_for(lambda: len(self._online) >= number, timeout_s)
            return [site for site in self._sites if site not in self._online]

    def ask(self, site: str, payload: bytes, timeout_s: float, stop: Stop) -> bytes:
        if site not in self._asked:
            raise NoReply(site, f"it is no site of this federation; its sites are {', '.join(self._sites)}")
        ended = Signal()
        with self._changed:
            if site not in self._online:
                raise NoReply(site, "it is offline")
            self._asked[site].add(ended)
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
            with self._changed:
                self._asked[site].discard(ended)
        if stop.is_stopped:
            raise Stopped("the call was stopped")
        code = reply.get_header(MessageHeaderKey.RETURN_CODE, ReturnCode.OK)
        if ended.triggered and code != ReturnCode.OK:
            raise NoReply(site, "its process ended or lost its connection while it was asked")
        if code == ReturnCode.TIMEOUT:
            raise NoReply(site, f"it did not reply within {timeout_s:g} s")
        if code != ReturnCode.OK or not isinstance(reply.payload, bytes | bytearray | memoryview):
            raise NoReply(site, f"the network has no reply: {reply.get_header(MessageHeaderKey.ERROR, '') or code}")
        return bytes(reply.payload)

    def close(self) -> None:
        self._cell.core_cell.stop()

    def _on_connect(self, agent: _Peer, *_: object) -> None:
        site = agent.get_fqcn()
        if site in self._asked:
            with self._changed:
                self._online.add(site)
                self._changed.notify_all()

    def _on_disconnect(self, agent: _Peer, *_: object) -> None:
        site = agent.get_fqcn()
        with self._changed:
            self._online.discard(site)
            for ended in self._asked.get(site, ()):
                ended.trigger(True)


def _refuse_between_sites(message: Any, *_: Any) -> Any:
    """A reply that stops a message which is not for the server, where FLARE would forward it; None lets it pass."""
    if message.get_header(MessageHeaderKey.DESTINATION) == FQCN.ROOT_SERVER:
        return None
    return Message({MessageHeaderKey.RETURN_CODE: ReturnCode.INVALID_TARGET}, None)


class _Trigger:
    """Ends the wait for a reply when a call is stopped."""

    def __init__(self, ended: Signal) -> None:
        self._ended = ended

    def cancel(self) -> None:
        self._ended.trigger(True)


def connect(kit: str | os.PathLike, sites: Sequence[str], wait_s: float, least: int | None) -> FlareExchange:
    """The exchange of `fc.deployment.flare`."""
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
    exchange = FlareExchange(server, sites)
    offline = exchange.wait(wait_s, least)
    if len(sites) - len(offline) < (len(sites) if least is None else least):
        exchange.close()
        raise FedcoreError(
            f"{', '.join(offline)}: not connected to {server.address} within {wait_s:g} s\n"
            "  fix: start them (fedcore site site.toml), or give least= to begin with fewer"
        )
    return exchange


@contextlib.contextmanager
def serving(kit: Kit, answer: Callable[[bytes], bytes]) -> Iterator[None]:
    """Answers the server's requests in the `with` block, from a site's side.

    The cell connects again whenever the server is back.

    Args:
        answer: a payload -> the reply; is called in the network's threads.
    """
    if kit.name == FQCN.ROOT_SERVER:
        raise FedcoreError("this is the kit of the server, not of a site")
    cell = kit.cell()

    def reply(request: Any, *_: Any) -> Any:
        origin, payload = request.get_header(MessageHeaderKey.ORIGIN), request.payload
        if origin != FQCN.ROOT_SERVER or not isinstance(payload, bytes | bytearray | memoryview):
            return Message({MessageHeaderKey.RETURN_CODE: ReturnCode.INVALID_REQUEST}, None)
        return Message({}, answer(bytes(payload)))

    cell.register_request_cb(channel=_CHANNEL, topic=_TOPIC, cb=reply)
    cell.start()
    try:
        yield
    finally:
        cell.core_cell.stop()


def _quiet() -> None:
    """Leaves FLARE's lines about each connection out of the process's log."""
    logging.getLogger("nvflare").setLevel(logging.ERROR)


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
