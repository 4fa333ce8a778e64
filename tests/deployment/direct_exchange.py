"""Sites in this process: an exchange whose requests are calls."""

import functools
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from federations import write_data, write_site

import fedcore as fc
from fedcore.deployment.policy import Policy
from fedcore.deployment.site import Site
from fedcore.deployment.site_data import Batches, FunctionData
from fedcore.deployment.site_log import SiteLog
from fedcore.deployment.site_settings import read_settings
from fedcore.deployment.site_sums import Identity
from fedcore.runtime.clients.device_stage import DeviceSliceExecutor
from fedcore.runtime.network.exchange import NoReply

ELEMENT = "<x=float32[?,6],y=int32[?]>"


class DirectExchange:
    """Asks sites of this process.

    Args:
        sites: by name.
    """

    def __init__(self, sites: dict[str, Site]):
        self.answering = dict(sites)
        self.sites = sorted(sites)
        self.requests: list[tuple[str, bytes]] = []

    def is_online(self, site: str) -> bool:
        return site in self.answering

    def ask(self, site, payload, timeout_s, stop) -> bytes:
        if not self.is_online(site):
            raise NoReply(site, "it is offline")
        self.requests.append((site, payload))
        return self.answering[site].answer(payload)

    def restart(self, name: str) -> None:
        """Replaces a site by one of its files, as after a restart of its process."""
        site = self.answering[name]
        policy = site._policy_file or site._policy
        self.answering[name] = Site(name, site._data, policy, site.log, site._identity, executor())

    def close(self) -> None:
        """Does nothing."""


@functools.cache
def executor() -> DeviceSliceExecutor:
    """Runs the stages of all sites of this process, so that each is traced once."""
    return DeviceSliceExecutor()


def open_sites(folder: Path, number: int, policy: str) -> tuple[DirectExchange, list]:
    """Sites with a CSV file each, and the data sets that they open."""
    sites, datasets, keys, peers = {}, [], {}, {}
    for i in range(number):
        name = f"site-{i:02}"
        (folder / name).mkdir()
        columns = write_data(folder / name, 12 + i, 6, i)
        settings = read_settings(write_site(folder / name, folder, 6, policy))
        keys[name] = Ed25519PrivateKey.generate()
        identity = Identity(keys[name], peers)
        sites[name] = Site(name, settings.data, settings.policy_file, SiteLog(settings.log), identity, executor())
        peers[name] = keys[name].public_key().public_bytes_raw()
        datasets.append(fc.data.ClientDataset.from_columns(columns).batch(4))
    return DirectExchange(sites), datasets


def open_sites_of(folder: Path, values: list, batches: Batches) -> DirectExchange:
    """Sites whose owners' functions return the values, without a rule against any plan."""
    policy, sites = Policy(aggregated=False, client_values=True, clients=1), {}
    for i, value in enumerate(values):
        name = f"site-{i:02}"
        (folder / name).mkdir()
        data = FunctionData(lambda value=value: value, batches)
        sites[name] = Site(name, data, policy, SiteLog(folder / name / "site.log"), None, executor())
    return DirectExchange(sites)
