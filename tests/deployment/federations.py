"""Federations of site processes on this machine, with NVIDIA FLARE and mutual TLS."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs
import numpy as np

import fedcore as fc
from fedcore.runtime.network.messages import Message
from fedcore.runtime.stopping import Stop

POLICY = "aggregated = false\nclient_values = true\nclients = 1\n"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def examples(number: int, features: int, seed: int) -> dict[str, np.ndarray]:
    """Random examples."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-8, 9, (number, features)).astype(np.float32) / 8
    return {"x": x, "y": (x.sum(1) > 0).astype(np.int32)}


def write_data(folder: Path, number: int, features: int, seed: int) -> dict[str, np.ndarray]:
    """Writes a CSV file of random examples; returns its columns as an element has them."""
    columns = examples(number, features, seed)
    x, y = columns.values()
    header = ",".join([*(f"f{i}" for i in range(features)), "label"])
    rows = [",".join([*(repr(float(v)) for v in row), str(label)]) for row, label in zip(x, y, strict=True)]
    (folder / "data.csv").write_text("\n".join([header, *rows]) + "\n")
    return columns


def write_site(
    folder: Path,
    kit: Path,
    features: int,
    policy: str = POLICY,
    *,
    batch: int | None = 4,
    elements: str = "",
    has_key: bool = False,
) -> Path:
    """Writes the settings of a site of `write_data`.

    Args:
        elements: lines of site.toml. Default: examples of the features and the label.
        has_key: the site takes part in masked sums; `peers.toml` is in the folder above.
    """
    columns = ", ".join(f'"f{i}"' for i in range(features))
    batches = "" if batch is None else f"batch = {batch}\n"
    key = 'key = "key.pem"\npeers = "../peers.toml"\n' if has_key else ""
    (folder / "policy.toml").write_text(policy)
    (folder / "site.toml").write_text(
        f'kit = "{kit}"\npolicy = "policy.toml"\n{key}[data]\nfile = "data.csv"\n{batches}'
        + (elements or f'[data.elements]\nx = [{columns}]\ny = "label"\n')
    )
    return folder / "site.toml"


@attrs.define
class Federation:
    """A server's exchange, and processes of sites.

    Args:
        columns: by site its examples.
    """

    folder: Path
    kits: Mapping[str, Path]
    columns: dict[str, dict[str, np.ndarray]]
    processes: dict[str, subprocess.Popen] = attrs.field(factory=dict)
    exchange: object = None

    @property
    def sites(self) -> list[str]:
        return sorted(self.columns)

    def start(self, site: str) -> None:
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
        output = (self.folder / site / "output.txt").open("a")
        self.processes[site] = subprocess.Popen(
            [sys.executable, "-m", "fedcore", "site", str(self.folder / site / "site.toml")],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        output.close()

    def kill(self, site: str) -> None:
        process = self.processes.pop(site)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def wait_offline(self, site: str) -> None:
        """Waits until the server has noticed that a site is gone."""
        while self.exchange.is_online(site):
            with contextlib.suppress(fc.deployment.NoReply):
                self.exchange.ask(site, Message({"kind": "none"}).to_bytes(), 10, Stop())

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()

    def datasets(self, batch: int | None = 4) -> list:
        """The data sets that the sites open, in the order of the sites."""
        datasets = [fc.data.ClientDataset.from_columns(self.columns[site]) for site in self.sites]
        return datasets if batch is None else [dataset.batch(batch) for dataset in datasets]


@contextlib.contextmanager
def federation(
    folder: Path,
    sites: int = 3,
    *,
    features: int = 6,
    number: int = 12,
    policy: str = POLICY,
    batch: int | None = 4,
    elements: str = "",
) -> Iterator[Federation]:
    """A federation whose sites have started and connected, with keys for masked sums."""
    from fedcore.deployment.flare_exchange import provision
    from fedcore.deployment.site_sums import write_key

    names = [f"site-{i:02}" for i in range(sites)]
    kits = provision(folder, names, free_port())
    running, keys = Federation(folder, kits, {}), {}
    for i, name in enumerate(names):
        (folder / name).mkdir()
        running.columns[name] = write_data(folder / name, number + i, features, i)
        keys[name] = write_key(folder / name / "key.pem")
        write_site(folder / name, kits[name], features, policy, batch=batch, elements=elements, has_key=True)
    (folder / "peers.toml").write_text("".join(f'{name} = "{key}"\n' for name, key in keys.items()))
    try:
        for name in names:
            running.start(name)
        running.exchange = fc.deployment.flare(kits["server"], names, wait_s=60 * sites)
        yield running
    finally:
        running.stop()
        if running.exchange is not None:
            running.exchange.close()
