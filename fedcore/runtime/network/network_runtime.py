"""`fc.runtime.network`: the local runtime with clients at sites of a network."""

import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcore.errors import FedcoreError, TypeMismatch, brief
from fedcore.runtime.clients.faults import Drop
from fedcore.runtime.local import LocalRuntime, client_settings, local
from fedcore.runtime.network.exchange import Exchange
from fedcore.runtime.secure.settings import Masked, settings_of
from fedcore.scalars import real_number

if TYPE_CHECKING:
    import tensorflow as tf

TIMEOUT_S = 600.0
"""Default deadline of a site's reply."""
RETRY_WAIT_S = 2.0
"""Default pause before a request is repeated, in which a site may restart."""


def network(
    exchange: Exchange,
    *,
    server_device: "str | tf.config.LogicalDevice | None" = None,
    vectorize: int | bool | str = "auto",
    xla: bool | str = "auto",
    low_rank: bool | str = "auto",
    compute_dtype: str = "float32",
    intra_op_threads: int | None = None,
    deterministic: bool = False,
    on_client_failure: str | Drop = "raise",
    client_timeout_s: float | None = TIMEOUT_S,
    retry_wait_s: float = RETRY_WAIT_S,
    target: str | None = None,
    secure_aggregation: str | Masked | None = None,
    signatures: Iterable[str | os.PathLike] = (),
) -> LocalRuntime:
    """The runtime over a network: server stages run here, and each client at the site that holds its data.

    Client values are cohorts of `fc.deployment.sites`. The bits are those of `fc.runtime.local()` on the same data in
    the order of the cohort, for any order in which sites reply, if the sites' processes have the server's instruction
    set and versions; `last_report().notes` says what differs. Two kinds of stages have bits of their own, since they
    compute on the data of several clients at once: loops that keep large kernels low-rank (`low_rank=False` here and
    there gives equal bits), and vectorised stages whose clients have data sets of different batch sizes.

    A site checks each plan by its own policy. A site that declines, is offline, fails, or is late is a client that
    failed: `on_client_failure` decides. The report and errors name the site.

    Args:
        exchange: the network, such as `fc.deployment.flare(kit)`; closed with the runtime.
        on_client_failure: as for `fc.runtime.local`.
        secure_aggregation: `"masked"` or `fc.runtime.masked(...)` runs secure sums by the masked protocol between the
            sites: this process gets their sums only. Each site needs a key and the public keys of the others
            (`fedcore site key`). Default: secure sums are added as other sums.
        signatures: files of `fedcore policy sign`, for sites that run signed plans only.
        client_timeout_s: seconds from a request to a site until its reply has arrived.
        retry_wait_s: seconds for which a site that is offline is waited for, before it counts as failed, and between
            two tries of a client that failed (`fc.runtime.drop(max_retries=...)`). So sites may restart in a round.
        server_device, vectorize, xla, low_rank, compute_dtype, intra_op_threads, deterministic, target: as for
            `fc.runtime.local`.
    Raises:
        TypeMismatch: `exchange` is no `fc.deployment.Exchange`.
        FedcoreError: a setting is out of its range.
    Example:
        >>> with fc.use(fc.runtime.network(fc.deployment.flare("kits/server", sites=["north", "south"]))): ...
    """
    from fedcore.runtime.network.executor import NetworkClientsExecutor

    _check(exchange)
    policy, timeout_s = client_settings(on_client_failure, client_timeout_s)
    if timeout_s is None or math.isinf(timeout_s):
        raise FedcoreError("client_timeout_s is a number of seconds, since a site may never reply")
    wait_s = float(real_number("retry_wait_s", retry_wait_s, at_least=0))
    if isinstance(signatures, str | os.PathLike):
        raise TypeMismatch(f"signatures is a list of files, not {brief(signatures)}: give [{brief(signatures)}]")
    signed = dict(map(_read_signature, signatures))
    return local(
        server_device,
        vectorize=vectorize,
        xla=xla,
        low_rank=low_rank,
        compute_dtype=compute_dtype,
        intra_op_threads=intra_op_threads,
        deterministic=deterministic,
        clients_executor=NetworkClientsExecutor(
            exchange, policy, timeout_s, settings_of(secure_aggregation), signed, wait_s
        ),
        target=target,
    )


def _read_signature(file: str | os.PathLike) -> tuple[str, bytes]:
    """(digest of a plan, its signature), from a file of `fedcore policy sign`."""
    try:
        digest, signature = Path(file).read_text().split()
        return digest, bytes.fromhex(signature)
    except OSError as error:
        raise FedcoreError(f"cannot read {file}: {error.strerror}") from None
    except ValueError:
        raise FedcoreError(f"{file} is no signature of `fedcore policy sign`") from None


def _check(exchange: Any) -> None:
    """Raises TypeMismatch if an object lacks a member of `Exchange`."""
    missing = [name for name in ("sites", "is_online", "ask", "close") if not hasattr(exchange, name)]
    if missing:
        raise TypeMismatch(
            f"fc.runtime.network takes an exchange, such as fc.deployment.flare(...), not {brief(exchange)}, which has "
            f"no {', '.join(missing)}"
        )
