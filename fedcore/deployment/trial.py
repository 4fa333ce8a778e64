"""A trial of a federation on this machine: certificates, keys, site processes, and a server's exchange."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs

import fedcore
from fedcore.deployment.flare_exchange import FlareExchange, connect, provision
from fedcore.deployment.site_log import SiteLog
from fedcore.deployment.site_settings import read_settings
from fedcore.deployment.site_sums import write_key
from fedcore.errors import FedcoreError
from fedcore.whole_files import write_whole

START_S = 120.0
"""Seconds that the sites have to start and connect."""


@attrs.frozen
class Trial:
    """A federation that runs.

    Args:
        folder: the copy of the sites.
        address: host and port of the server.
    """

    folder: Path
    sites: tuple[str, ...]
    address: str
    exchange: FlareExchange

    def log(self, site: str) -> list[dict]:
        """The lines of a site's log."""
        return [*SiteLog(read_settings(self.folder / site / "site.toml").log)]


@contextlib.contextmanager
def trial(directory: Path) -> Iterator[Trial]:
    """Runs the sites of a project in the `with` block, as processes of their own.

    Guarantees:
      - Files are in the folder `.trial` of the directory only; it is removed at the end.
      - The sites' processes end with the block, and with this process.

    Raises:
        FedcoreError: the sites do not start; the message has the last lines of their output.
    """
    folder = directory.resolve() / ".trial"
    names = tuple(sorted(file.parent.name for file in directory.glob("sites/*/site.toml")))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    processes: dict[str, subprocess.Popen] = {}
    try:
        port = _free_port()
        kits = provision(folder, names, port)
        keys = {}
        for name in names:
            shutil.copytree(directory / "sites" / name, folder / "sites" / name)
            shutil.copytree(kits[name], folder / "sites" / name / "kit")
            keys[name] = write_key(folder / "sites" / name / "key.pem")
        peers = "".join(f'{name} = "{public}"\n' for name, public in keys.items())
        write_whole(folder / "sites" / "peers.toml", peers)
        for name in names:
            processes[name] = _start(folder / "sites" / name)
        exchange = _connect(kits["server"], names, folder)
        with contextlib.closing(exchange):
            yield Trial(folder / "sites", names, f"localhost:{port}", exchange)
    finally:
        for process in processes.values():
            if process.stdin is not None:
                process.stdin.close()
        for process in processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _connect(kit: Path, names: tuple[str, ...], folder: Path) -> FlareExchange:
    try:
        return connect(kit, names, START_S, None)
    except FedcoreError as error:
        outputs = [(folder / "sites" / name / "output.txt").read_text().strip()[-300:] for name in names]
        details = "".join(f"\n  {name}: {text}" for name, text in zip(names, outputs, strict=True) if text)
        raise FedcoreError(f"{error}{details}") from None


def _start(folder: Path) -> subprocess.Popen:
    package = str(Path(fedcore.__file__).parent.parent)
    path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-P", "-m", "fedcore", "site", "run", str(folder / "site.toml"), "--while-open"]
    with (folder / "output.txt").open("wb") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is this process's, which then ends the sites
        )


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
