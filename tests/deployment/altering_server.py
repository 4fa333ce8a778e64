"""Sites with keys for masked sums, and a server's exchange that alters what it sends them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from direct_exchange import DirectExchange, executor

import fedcore as fc
import fedcore.intrinsics
from fedcore.deployment.policy import Policy
from fedcore.deployment.site import Site
from fedcore.deployment.site_data import Batches, FunctionData
from fedcore.deployment.site_log import SiteLog
from fedcore.deployment.site_sums import Identity
from fedcore.ir import Module, bundle, parse_module, verify
from fedcore.runtime.network.messages import Message

STAGES = """fedcore 1 planned

stage @zero() -> int32 at CLIENTS {
  %0 = generic_zero() : int32
  return %0
}

stage @zero_of(%shared: int32) -> int32 at CLIENTS {
  %0 = generic_zero() : int32
  return %0
}

stage @add(%partial: int32, %x: int32) -> int32 at CLIENTS {
  %0 = generic_plus(%partial, %x) : int32
  return %0
}

stage @add_product(%partial: int32, %shared: int32, %x: int32) -> int32 at CLIENTS {
  %0 = generic_multiply(%shared, %x) : int32
  %1 = generic_plus(%partial, %0) : int32
  return %1
}

stage @product(%shared: int32, %x: int32) -> int32 at CLIENTS {
  %0 = generic_multiply(%shared, %x) : int32
  return %0
}

stage @same(%x: int32) -> int32 at CLIENTS {
  return %x
}

stage @join(%left: int32, %right: int32) -> int32 at CLIENTS {
  %0 = generic_plus(%left, %right) : int32
  return %0
}

"""


def plan(*lines: str, parameters: str = "%x: {int32}@CLIENTS", result: str = "int32@SERVER") -> Module:
    """A plan whose main function has these lines."""
    body = "\n".join(f"  {line}" for line in lines)
    return verify(parse_module(f"{STAGES}fn @main({parameters}) -> {result} {{\n{body}\n}}\n"))


def masked_sites(folder: Path, values: list, policy: Policy | None = None, *, shuffle: int = 0) -> DirectExchange:
    """Sites whose owners' functions return the values, with the default policy or another."""
    sites, peers = {}, {}
    for i, value in enumerate(values):
        name = f"site-{i:02}"
        (folder / name).mkdir(parents=True)
        key, data = Ed25519PrivateKey.generate(), FunctionData(lambda value=value: value, Batches(shuffle=shuffle))
        peers[name] = key.public_key().public_bytes_raw()
        log = SiteLog(folder / name / "site.log")
        sites[name] = Site(name, data, policy or Policy(), log, Identity(key, peers), executor())
    return DirectExchange(sites)


class Altering:
    """A site behind a server's operator, who alters requests.

    Args:
        alter: a request -> the altered one.
    """

    def __init__(self, site: Site, alter: Callable[[Message], Message]):
        self.site = site
        self.alter = alter

    def answer(self, payload: bytes) -> bytes:
        return self.site.answer(self.alter(Message.from_bytes(payload)).to_bytes())


def alter_sites(exchange: DirectExchange, names: list[str], alter: Callable[[Message], Message]) -> None:
    for name in names:
        exchange.answering[name] = Altering(exchange.answering[name], alter)


def with_facts(message: Message, **facts) -> Message:
    return Message({**message.facts, **facts}, message.arrays)


def plan_request(module: Module) -> Message:
    """The request by which a site gets a plan."""
    data = np.frombuffer(bundle.to_bytes(module), np.uint8)
    return Message({"kind": "plan", "plan": module.digest()}, {"bundle": data})


def ask(site, message: Message) -> Message:
    return Message.from_bytes(site.answer(message.to_bytes()))


def run_request(module: Module, operation: str, run: str, sources: list, arrays=None, **facts) -> Message:
    """A request to run a client stage, outside of masks."""
    common = {"kind": "run", "plan": module.digest(), "operation": operation, "run": run, "index": 0, "seed": 1}
    return Message(
        {**common, "clients": 5, "sources": sources, "digests": {}, "reply_by_s": 0.0, **facts}, arrays or {}
    )


def cohort(exchange: DirectExchange, element: str = "int32") -> fc.Cohort:
    data = fc.deployment.sites(exchange, element)
    return data.cohort(data.client_ids)
