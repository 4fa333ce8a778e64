"""The fault policy: clients that fail run again, and are then dropped, or raise ClientError."""

import traceback
from collections.abc import Callable, Hashable, Mapping, Sequence

import attrs
import tensorflow as tf

from fedcore.data import client_name
from fedcore.errors import ClientError, FedcoreError, SecureSumError, brief
from fedcore.ir import Module
from fedcore.runtime.client_slice import ClientSlice, SliceResult
from fedcore.runtime.clients.failures import reason
from fedcore.runtime.clients.finite_check import NotFinite
from fedcore.runtime.clients.memory_budget import OverBudget
from fedcore.runtime.clients.protocols import ProtocolBroken
from fedcore.runtime.clients.reader import TooLate
from fedcore.runtime.reports.report import Report
from fedcore.runtime.stopping import Stopped
from fedcore.scalars import python_scalar

_TRACEBACK = "\nTraceback (most recent call last):"

SHOWN = 3
"""Number of dropped clients whose reasons the error of a missed quorum lists."""


@attrs.frozen
class Drop:
    """The policy of `drop()`: clients that fail are left out."""

    min_fraction: float
    max_retries: int


def drop(min_fraction: float = 0.5, max_retries: int = 1) -> Drop:
    """The policy that drops (leaves out) clients that fail, for `fc.runtime.local(on_client_failure=...)`.

    A client fails if its graph fails, if its value does not convert, if it exceeds `client_timeout_s`, if it alone does
    not fit into the device's memory, or if a float that it contributes or returns is not finite. Its contribution is
    the partial of a fold over this client alone. So a metric that is NaN for a client without examples is a failure.

    A dropped client keeps its index and contributes nothing to this stage and to later stages of the call. A result
    with one value per client has None for it. `last_report().dropped` has the reason for each dropped client.

    Args:
        min_fraction: the fraction of clients, 0 to 1, that must not fail; else the call raises ClientError.
        max_retries: how often a client that fails is tried again. Data that can be read only once are not read again.
    Raises:
        FedcoreError: an argument is out of its range.
    Example:
        >>> fc.runtime.local(on_client_failure=fc.runtime.drop(min_fraction=0.8), client_timeout_s=60)
    """
    min_fraction, max_retries = python_scalar(min_fraction), python_scalar(max_retries)
    if isinstance(min_fraction, bool) or not isinstance(min_fraction, int | float) or not 0 <= min_fraction <= 1:
        raise FedcoreError(f"min_fraction is a number from 0 to 1, not {brief(min_fraction)}")
    if isinstance(max_retries, bool) or not isinstance(max_retries, int) or max_retries < 0:
        raise FedcoreError(f"max_retries is a number of times, 0 or more, not {brief(max_retries)}")
    return Drop(float(min_fraction), max_retries)


ClientIds = Sequence | Mapping[int, Hashable]
"""Index of a client -> its id."""

Run = Callable[[ClientSlice], SliceResult | None]
"""Computes a slice; None if all its clients failed where they ran."""


class QuotesNoValue(FedcoreError):
    """An error whose message has no value of a client, so that it may be shown where masks hide clients' values."""


class ClientOutOfMemory(ClientError, tf.errors.ResourceExhaustedError):
    """A single client does not fit into the memory of an idle device."""

    def __init__(self, message: str) -> None:
        tf.errors.ResourceExhaustedError.__init__(self, None, None, message)

    def __str__(self) -> str:
        return self.message


class FaultPolicy:
    """Finds the clients of a slice that fail, and runs the slice again without them.

    Guarantees:
      - Only a slice that fails runs again: first client by client, then as a slice without the clients that failed
        alone.
      - Each attempt drops a client or uses one of the policy's retries, so the number of attempts is bounded.

    Args:
        policy: the policy of `drop()`; None raises ClientError, which names the client.
        where: where clients run, for the message about a graph that fails.
        client_ids: the id of each client by its index, by which messages name it. Default: they give its index.
        masked: whether clients' values are hidden by the masks of secure sums. Of an error only its kind is then told,
            since its message may quote a client's value.
        module: the plan, which knows the user's lines of operations that fail.
    """

    def __init__(
        self,
        policy: Drop | None,
        report: Report,
        where: str = "",
        *,
        client_ids: ClientIds | None = None,
        masked: bool = False,
        module: Module | None = None,
    ) -> None:
        self._client_ids = client_ids
        self._module = module
        self._policy = policy
        self._masked = masked
        self._retries = policy.max_retries if policy else 0
        self._report = report
        self._where = f"\n  {where}" if where else ""

    @property
    def drops(self) -> bool:
        """Whether clients that fail are dropped; otherwise ClientError is raised."""
        return self._policy is not None

    def survivors(self, run: Run, clients: ClientSlice) -> SliceResult | None:
        """The result of the clients that do not fail; None if all clients fail."""
        retries_left = self._retries
        while present := clients.present:
            try:
                return run(clients)
            except (Stopped, ProtocolBroken, OverBudget):
                raise
            except Exception as error:
                if len(present) > 1:
                    failed = self._failing_alone(run, clients)
                else:
                    failed = {} if retries_left else {present[0]: error}
                if not failed and isinstance(error, NotFinite) and len(present) > 1:
                    return error.result  # finite values whose sum is not
                if not failed and not retries_left:
                    raise ClientError(
                        f"the clients {present[0]} to {present[-1]} failed together, though none of them fails alone: "
                        f"{self._reason(error)}"
                    ) from self._cause(error)
                retries_left -= not failed  # a retry is used up only if the attempt drops no client
                for index, why in failed.items():
                    self.drop_or_raise(index, why)
                clients = clients.without(failed)
        return None

    def _failing_alone(self, run: Run, clients: ClientSlice) -> dict[int, Exception]:
        """Index -> error of the clients of a slice that fail alone; only the first such client if failures raise."""
        failed: dict[int, Exception] = {}
        for index in clients.present:
            error = self._error_of(run, clients.with_only([index]))
            if error is not None:
                failed[index] = error
                if not self.drops:
                    break
        return failed

    def _error_of(self, run: Run, client: ClientSlice) -> Exception | None:
        """The error of a client's last try; None if one of its tries succeeds."""
        last_error: Exception | None = None
        for _ in range(1 + self._retries):
            try:
                run(client)
            except (Stopped, ProtocolBroken, OverBudget):
                raise
            except Exception as error:
                last_error = error
            else:
                return None
        return last_error

    def unreadable(self, index: int, error: Exception, *, reads: int, once: bool) -> bool:
        """Whether a client whose value could not be read is dropped; if not, the caller reads the value again.

        Args:
            reads: how many times the value was read.
            once: the value can be read only once.
        Raises:
            ClientError: there is no policy `drop()`. A FedcoreError other than TooLate is raised as it is, since it
                names the argument already, unless values are masked.
        """
        if reads <= self._retries and not once:
            return False
        names_argument = isinstance(error, FedcoreError) and not isinstance(error, TooLate)
        if names_argument and not self.drops and not self._masked:
            raise error
        self.drop_or_raise(index, error)
        return True

    def drop_or_raise(self, index: int, error: Exception) -> None:
        """Drops a client from this call.

        Raises:
            ClientError: there is no policy `drop()`.
        """
        if self.drops:
            name = "" if self._client_ids is None else f"{self._client_ids[index]}: "
            self._report.dropped[index] = name + self._reason_of(index, error)
            return
        message = f"{client_name(self._client_ids, index)} failed: {self._reason_of(index, error)}"
        if isinstance(error, tf.errors.ResourceExhaustedError):
            raise ClientOutOfMemory(message) from self._cause(error)
        if isinstance(error, tf.errors.OpError):
            raise ClientError(message + self._where) from None
        raise ClientError(message) from self._cause(error)

    def _reason_of(self, index: int, error: Exception) -> str:
        """The reason for which a client failed; the report gets the traceback of a Python function that failed.

        TensorFlow puts the traceback of a `py_function` into the message; the reason is the part before it.
        """
        text = self._reason(error)
        message, traceback_mark, _ = text.partition(_TRACEBACK)
        if traceback_mark:
            self._report.tracebacks[index] = text
        elif not self._masked and not isinstance(error, FedcoreError | tf.errors.OpError):
            self._report.tracebacks[index] = "".join(traceback.format_exception(error))
        return message

    def _reason(self, error: Exception) -> str:
        """The message of an error; only its kind where the message may quote a value that masks hide."""
        if not self._masked or isinstance(error, SecureSumError | QuotesNoValue):
            return reason(error, self._module)
        return f"{type(error).__name__} (its message may quote values, which masks hide in this run)"

    def _cause(self, error: Exception) -> Exception | None:
        """The error that a ClientError shows as its cause; None where its message may quote a value that masks hide."""
        return None if self._masked else error

    def check_quorum(self, clients: int) -> None:
        """Raises ClientError if too few of the call's clients did not fail."""
        dropped = self._report.dropped
        if self._policy is None or clients - len(dropped) >= self._policy.min_fraction * clients:
            return
        shown = [(i, *dropped[i].splitlines()[:1]) for i in sorted(dropped)[:SHOWN]]  # an error may have no message
        reasons = "".join(f"\n  client {': '.join(map(str, line))}" for line in shown)
        more = f"\n  and {len(dropped) - len(shown)} more" if len(dropped) > len(shown) else ""
        raise ClientError(
            f"{len(dropped)} of {clients} clients failed, but min_fraction={self._policy.min_fraction:g} of them "
            f"must not fail{reasons}{more}"
        )
