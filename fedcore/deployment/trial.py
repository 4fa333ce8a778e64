"""A trial of a federation on this machine: certificates, keys, site processes, and a server's exchange."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import attrs

import fedcore
from fedcore.deployment.flare_exchange import FlareExchange, connect, provision
from fedcore.deployment.site_check import check_site
from fedcore.deployment.site_log import SiteLog
from fedcore.deployment.site_settings import read_settings
from fedcore.deployment.site_sums import write_key
from fedcore.errors import FedcoreError
from fedcore.whole_files import write_whole

START_S = 120.0
"""Seconds that the sites have to start and connect."""

WATCH_S = 0.2
"""Seconds between two looks at the sites' processes."""

SHOWN_LINES = 10
"""Last lines of a site's output that an error shows."""


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
      - A process that ends in the block ends the block, by SIGINT to the main thread, which runs it.
      - An exception of the block has the last lines of the sites' outputs as a note.

    Raises:
        FedcoreError: `fedcore site check` finds something wrong at a site, a site's process ends, or they do not
            connect within `START_S`.
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
        _check(folder, names)
        for name in names:
            processes[name] = _start(folder / "sites" / name)
        with connect(kits["server"], names, 0.0, 0) as exchange, _interrupted_by_end(processes):
            if offline := exchange.wait(START_S):
                raise FedcoreError(f"{', '.join(offline)}: not connected within {START_S:g} s")
            yield Trial(folder / "sites", names, f"localhost:{port}", exchange)
    except BaseException as error:
        ended = [name for name, process in processes.items() if process.poll() is not None]
        outputs = "\n  ".join(_last_lines(folder, name) for name in ended or processes)
        if ended and isinstance(error, KeyboardInterrupt):  # by `_interrupted_by_end`
            raise FedcoreError(f"{', '.join(ended)}: the site's process has ended\n  {outputs}") from None
        if outputs:
            error.add_note(outputs)
        raise
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


def _check(folder: Path, names: tuple[str, ...]) -> None:
    """Raises FedcoreError with all that `fedcore site check` finds wrong at the sites."""
    wrong = []
    for name in names:
        findings = check_site(read_settings(folder / "sites" / name / "site.toml"), connects=False)
        wrong += [f"  {name}: {f.part}: {f.text}" for f in findings if f.state == "wrong"]
    if wrong:
        raise FedcoreError(_with_users_paths("\n".join(["the sites do not start", *wrong]), folder))


@contextlib.contextmanager
def _interrupted_by_end(processes: dict[str, subprocess.Popen]) -> Iterator[None]:
    """Sends SIGINT to the main thread when one of the processes ends in the `with` block."""
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(WATCH_S):
            if any(process.poll() is not None for process in processes.values()):
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                return

    watcher = threading.Thread(target=watch, name="fedcore-trial", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


def _last_lines(folder: Path, name: str) -> str:
    """The last lines that a site's process has printed, which say how it ended."""
    lines = (folder / "sites" / name / "output.txt").read_text(errors="replace").splitlines()
    return _with_users_paths("\n    ".join([f"{name} has printed", *lines[-SHOWN_LINES:]]), folder)


def _with_users_paths(text: str, folder: Path) -> str:
    """A text in which paths of the trial's copies become those of the user's files.

    Args:
        folder: `.trial` of the project's directory, which has the copies.
    """
    return text.replace(str(folder), str(folder.parent))


def _start(folder: Path) -> subprocess.Popen:
    """Starts the process of a site in its folder. It ends when its standard input is closed."""
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
            start_new_session=True,  # Ctrl-C reaches this process only, which then ends the sites
        )


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
