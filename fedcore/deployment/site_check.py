"""Checks a site's settings, data, policy, keys and connection, without training: `fedcore site check`."""

import collections
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from fedcore.deployment.policy import Policy
from fedcore.deployment.site_data import FunctionData, TableData, is_blank, text_of
from fedcore.deployment.site_settings import SiteSettings
from fedcore.deployment.site_tables import parse_texts
from fedcore.errors import FedcoreError, TypeMismatch, brief
from fedcore.privacy.events import dp_accounting
from fedcore.types import Type

if TYPE_CHECKING:
    from fedcore.deployment.flare_exchange import Kit

CONNECT_S = 10.0
"""Seconds that the server has to accept a connection, and then to answer."""

SHOWN = 12
"""Different texts of a column that are listed."""


@attrs.frozen
class Finding:
    """A result of a check.

    Args:
        part: of the site, such as `data` or `keys`.
        state: `ok`, `note` or `wrong`.
        text: for the site's owner.
    """

    part: str
    state: str
    text: str


def check_site(settings: SiteSettings, element: Type | None = None, *, connects: bool = True) -> Iterator[Finding]:
    """The findings about a site.

    Args:
        element: the type of a data set that a plan asks for, such as `<x=float32[?,4],y=int32[?]>*`.
        connects: whether the server is asked for a connection.
    """
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("data", lambda: _check_data(settings.data, element)),
        ("policy", lambda: _check_policy(settings)),
        ("keys", lambda: _check_keys(settings)),
        ("log", lambda: _check_log(settings.log)),
        *([("connection", lambda: _check_connection(settings))] if connects else []),
    ]
    for part, check in checks:
        try:
            yield from check()
        except FedcoreError as error:
            yield Finding(part, "wrong", str(error))


def _check_data(data: TableData | FunctionData, element: Type | None) -> Iterator[Finding]:
    if isinstance(data, TableData):
        findings = [*_check_table(data)]
        yield from findings
        if not has_passed(findings):
            return
    elif element is None:
        yield Finding("data", "note", "a function of yours; --element TYPE has it called and its value checked")
    if element is not None:
        from fedcore.data import columns_of  # imports TensorFlow
        from fedcore.runtime.arguments import prepare

        dataset = data.dataset(element)
        prepare(dataset, element, "data", columns_of)  # checks the type, as a run does
        number = sum(1 for _ in dataset)
        yield Finding("types", "ok", f"the data is of type {element}: {number} batches or elements, with repetitions")


def _check_table(data: TableData) -> Iterator[Finding]:
    """Findings about the rows of a table, and about each column."""
    names = _column_names(data)
    table = data.read(names)
    texts = {name for name in names if name not in data.categories and _is_text(table[name])}
    rows = data.rows(texts)
    total, count = (len(next(iter(columns.values()))) for columns in (table, rows))
    dropped = f"; {total - count} with blank cells are left out" if total > count else ""
    yield Finding("data", "ok" if count else "wrong", f"{count} rows of {data.file}{dropped}")
    if data.held_out_every is not None:
        yield Finding("data", "ok", f"{count // data.held_out_every} of these are held out for evaluations")
    for name in names:
        column = rows[name]
        if name in texts:
            distinct = {text_of(v) for v in column[~is_blank(column)].tolist()}
            fix = f"a plan that asks for numbers needs [data.categories], {name} = [{_quoted_list(distinct)}]"
            yield Finding("data", "note", f"column {name} has {len(distinct)} different texts; {fix}")
        elif name in data.categories:
            yield _check_categories(name, column, data.categories[name])
        else:
            yield Finding("data", "ok", f"column {name}: {_range(column)}")


def _column_names(data: TableData) -> list[str]:
    """The columns of which the site's elements are made, each once."""
    return [*dict.fromkeys(name for leaf in data.elements for name in data.columns_of(leaf))]


def _check_categories(name: str, column: np.ndarray, categories: tuple[str, ...]) -> Finding:
    """How many cells of a column have each of its categories; wrong if a cell has none of them."""
    counts = collections.Counter(text_of(v).strip() for v in column.tolist())
    unknown = {text for text in counts if text not in categories}
    if unknown:
        cells = sum(counts[text] for text in unknown)
        where = f"column {name}: {cells} of {len(column)} cells are none of data.categories.{name}"
        fix = f"add {_quoted_list(unknown)} there, at all sites in equal places"
        return Finding("data", "wrong", f"{where}\n  fix: {fix}")
    return Finding("data", "ok", f"column {name}: {', '.join(f'{text} {counts[text]}' for text in categories)}")


def _quoted_list(texts: set[str]) -> str:
    """The first `SHOWN` texts in quotes, as a TOML list has them."""
    return ", ".join(f'"{text}"' for text in sorted(texts)[:SHOWN]) + (", …" if len(texts) > SHOWN else "")


def _is_text(column: np.ndarray) -> bool:
    """Whether a cell of the column is neither blank nor a number."""
    if column.dtype.kind not in "OUS":
        return False
    return parse_texts(column[~is_blank(column)].tolist()).dtype.kind in "OUS"


def _range(column: np.ndarray) -> str:
    """The dtype of a column, the shape of its cells, and its least and greatest number."""
    numbers = parse_texts(column.tolist()) if column.dtype.kind in "OUS" else column
    shape = f" {list(numbers.shape[1:])}" if numbers.ndim > 1 else ""
    values = f", {numbers.min():g} to {numbers.max():g}" if numbers.size and numbers.dtype.kind in "iuf" else ""
    return f"{numbers.dtype}{shape}{values}"


def _check_policy(settings: SiteSettings) -> Iterator[Finding]:
    policy = settings.policy
    rules = {f.name: getattr(policy, f.name) for f in attrs.fields(Policy)}
    rules_that_hold = {name: rule for name, rule in rules.items() if rule not in (None, frozenset())}
    yield Finding("policy", "ok", ", ".join(f"{name} = {_rule(rule)}" for name, rule in rules_that_hold.items()))
    if settings.policy_file is not None:
        yield Finding("policy", "ok", f"digest {settings.policy_file.newest.digest}, as the log has it")
    if policy.aggregated and settings.identity is None:
        yield Finding("policy", "wrong", "aggregated = true needs key and peers in site.toml, for masked sums")
    if policy.max_epsilon is not None and policy.digests is None and policy.signers is None:
        yield Finding(
            "policy", "wrong", "max_epsilon needs digests or signers: a plan that nobody has read trains nothing"
        )
    if policy.columns is not None and isinstance(settings.data, TableData):
        yield from _check_columns(settings.data, policy.columns)
    if policy.max_epsilon is not None:
        dp_accounting()


def _check_columns(data: TableData, columns: frozenset[str]) -> Iterator[Finding]:
    """Notes where the policy's columns and those of the site's elements differ."""
    used = {*_column_names(data)}
    if forbidden := sorted(used - columns):
        yield Finding("policy", "note", f"columns leaves out {', '.join(forbidden)}: plans may not read them")
    for name in sorted(columns - used):
        try:
            data.read([name])
        except TypeMismatch as error:
            yield Finding("policy", "note", f"of columns: {error}")


def _rule(value: Any) -> str:
    """A value of a policy as its file has it; of keys only their number."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"{len(value)} keys"
    return brief(sorted(value)) if isinstance(value, frozenset) else brief(value)


def _check_keys(settings: SiteSettings) -> Iterator[Finding]:
    identity = settings.identity
    if identity is None:
        yield Finding("keys", "note", "site.toml names no key and peers: the site takes part in no masked sums")
        return
    name, public_key = _site_name(settings), identity.key.public_key().public_bytes_raw()
    if name not in identity.peers:
        has = ", ".join(identity.peers)
        yield Finding("keys", "wrong", f"peers has no key of this site, {name}; it has {has}")
    elif identity.peers[name] != public_key:
        yield Finding("keys", "wrong", f"peers has another key for {name} than that of this site, {public_key.hex()}")
    else:
        yield Finding("keys", "ok", f"public key {public_key.hex()}; peers: {', '.join(sorted(identity.peers))}")
    sites, clients = len(identity.peers), settings.policy.clients
    if sites < clients:
        yield Finding("keys", "wrong", f"peers has {sites} sites, and the policy asks for {clients} in a sum")
    elif clients < sites:
        text = f"{sites} sites, and the policy asks for {clients} in a sum: two sums that differ by one site show its"
        yield Finding("keys", "note", f"peers has {text} value; clients = {sites} allows sums of all sites only")


def _site_name(settings: SiteSettings) -> str:
    """The name of the site in its network: that of its certificate, or behind a socket that of site.toml."""
    return settings.name if settings.kit is None else _read_kit(settings.kit).name


def _read_kit(folder: Path) -> "Kit":
    """The kit in a folder. NVIDIA FLARE, an optional package, is imported here."""
    from fedcore.deployment.engines import engine_installed

    with engine_installed():
        from fedcore.deployment.flare_exchange import Kit
    return Kit.read(folder)


def _check_log(log: Path) -> Iterator[Finding]:
    if not os.access(log if log.exists() else log.parent, os.W_OK):
        yield Finding("log", "wrong", f"{log} cannot be written")
        return
    yield Finding("log", "ok", f"{log}, {log.stat().st_size if log.exists() else 0} bytes")


def _check_connection(settings: SiteSettings) -> Iterator[Finding]:
    if settings.kit is None:
        assert settings.socket is not None
        is_writable = os.access(settings.socket.parent, os.W_OK)
        text = f"the folder of the socket {settings.socket}"
        yield Finding(
            "connection", "ok" if is_writable else "wrong", f"{text} {'is' if is_writable else 'is not'} there"
        )
        return
    kit = _read_kit(settings.kit)
    files = kit.credentials
    yield from _check_certificate(Path(files["client_cert"]))
    try:
        context = ssl.create_default_context(cafile=files["ca_cert"])
        context.load_cert_chain(files["client_cert"], files["client_key"])
    except (OSError, ssl.SSLError) as error:
        yield Finding("connection", "wrong", f"the kit's certificates cannot be read: {error}")
        return
    context.set_alpn_protocols(["h2"])  # of gRPC, which the server speaks
    yield _shake_hands(kit, context)


def _check_certificate(file: Path) -> Iterator[Finding]:
    from cryptography import x509

    try:
        until = x509.load_pem_x509_certificate(file.read_bytes()).not_valid_after_utc
    except (OSError, ValueError) as error:
        yield Finding("connection", "wrong", f"{file} is no certificate: {error}")
        return
    days_left = (until - datetime.now(UTC)).days
    state = "wrong" if days_left < 0 else "note" if days_left < 30 else "ok"
    yield Finding("connection", state, f"the certificate is valid until {until.date()}")


def _shake_hands(kit: "Kit", context: ssl.SSLContext) -> Finding:
    """Whether the server answers with a certificate of the kit's root, and takes that of the site."""
    try:
        plain = socket.create_connection((kit.host, kit.port), CONNECT_S)
    except OSError as error:
        why = error.strerror or str(error) or "no answer"
        fix = "\n  fix: the server's program has to run, and a firewall to let this machine through to the port"
        return Finding("connection", "wrong", f"no server listens at {kit.address}: {why}{fix}")
    try:
        with plain, context.wrap_socket(plain, server_hostname=kit.server_identity) as connection:
            connection.settimeout(CONNECT_S)
            is_answered = bool(connection.recv(1))  # TLS 1.3 refuses a client's certificate after the handshake
    except ssl.SSLError as error:
        return Finding("connection", "wrong", f"{kit.address} and this site do not trust each other: {error.reason}")
    except OSError as error:
        return Finding("connection", "wrong", f"{kit.address} ends the connection: {error}")
    if not is_answered:
        return Finding("connection", "wrong", f"{kit.address} ends the connection")
    return Finding("connection", "ok", f"{kit.address} answers, with mutual TLS")


def has_passed(findings: list[Finding]) -> bool:
    """Whether nothing is wrong."""
    return all(finding.state != "wrong" for finding in findings)


def as_json(findings: list[Finding]) -> Any:
    return [attrs.asdict(finding) for finding in findings]
