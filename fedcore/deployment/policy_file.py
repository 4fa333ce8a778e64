"""The file of a site's policy: its parser, and the policy that is read again when the file changes."""

import hashlib
import threading
import tomllib
from pathlib import Path
from typing import Any

import attrs

from fedcore.deployment.policy import Policy, Refusal
from fedcore.errors import FedcoreError, InvalidValue, brief
from fedcore.ir.regular_files import read_regular_file

MAX_POLICY_BYTES = 2**20

LEAST_REPLY_S = 5.0
"""The least `reply_s` of a policy's file: a run that is stopped ends `GRACE_S` seconds later at most."""


@attrs.frozen
class PolicyInForce:
    """A policy, and the digest that the log has beside each run.

    Args:
        digest: SHA-256 of the file; with `signers`, of the file and their raw public keys.
    """

    policy: Policy
    digest: str

    @classmethod
    def of(cls, policy: Policy, content: bytes) -> "PolicyInForce":
        return cls(policy, hashlib.sha256(content + b"".join(policy.signers or ())).hexdigest())


class PolicyFile:
    """A policy by its TOML file, whose keys are the arguments of `Policy`.

    Guarantees:
      - A change of the file, or of a key that it names, holds from the next request.
      - A file that cannot be read, or is no policy, refuses every request until it is mended.

    Args:
        file: the TOML file.
    Raises:
        FedcoreError: the file cannot be read, or a key or a value is none of a policy.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._newest = self._read()

    @property
    def newest(self) -> PolicyInForce:
        """The policy that was read last."""
        return self._newest

    def read(self) -> PolicyInForce:
        """The policy of the file as it is now.

        Raises:
            Refusal: it cannot be read, or is no policy.
        """
        try:
            self._newest = self._read()
        except FedcoreError:  # its message is for the owner
            raise Refusal("policy", "the site's policy cannot be read: fedcore site check says why") from None
        return self._newest

    def _read(self) -> PolicyInForce:
        try:
            content = read_regular_file(self._file, MAX_POLICY_BYTES)
        except OSError as error:
            raise FedcoreError(f"cannot read {self._file}: {error.strerror}") from None
        return PolicyInForce.of(_parse_policy(self._file, content), content)


def _parse_policy(file: Path, content: bytes) -> Policy:
    """The policy of a file's content.

    Raises:
        FedcoreError: a key or a value is none of a policy; or there are none, as in a file that is being written.
    """
    try:
        table = tomllib.loads(content.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidValue(f"{file} is no TOML: {error}") from None
    if not table:
        raise InvalidValue(f"{file} has no rules\n  fix: aggregated = true is a policy, with the defaults")
    fields = attrs.fields_dict(Policy)
    for key in table:
        if key not in fields:
            raise InvalidValue(f"{file}: there is no rule {key!r}; there are {', '.join(fields)}")
    return Policy(**{key: _parse_setting(file, key, value) for key, value in table.items()})


def _parse_setting(file: Path, key: str, value: Any) -> Any:
    texts = isinstance(value, list) and all(isinstance(v, str) for v in value)
    if key in ("aggregated", "client_values", "tells_failures"):
        is_right, wants = isinstance(value, bool), "true or false"
    elif key == "noise":
        is_right, wants = isinstance(value, bool) or (texts and bool(value)), "true, false or a list of names"
    elif key == "delta":
        is_right = isinstance(value, float) and 0 < value < 1
        wants = "a number above 0 and below 1"
    elif key == "reply_s":
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        is_right = is_number and LEAST_REPLY_S <= value <= threading.TIMEOUT_MAX
        wants = f"a number of seconds, {LEAST_REPLY_S:g} or more"
    elif key in ("noise_std", "clip", "max_epsilon"):
        is_right = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
        wants = "a number above 0"
    elif key in ("clients", "bits", "bits_per_day", "rounds_per_day", "failures_per_day"):
        is_right = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        wants = "a whole number, 0 or more"
    else:
        is_right, wants = texts, "a list of texts"
    if not is_right:
        raise InvalidValue(f"{file}: {key} is {wants}, not {brief(value)}")
    if key == "signers":
        return tuple(_public_key(file.parent / name) for name in value)
    return frozenset(value) if isinstance(value, list) else value


def _public_key(file: Path) -> bytes:
    """The raw bytes of an Ed25519 public key in a PEM file.

    Raises:
        FedcoreError: it is none.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(file.read_bytes())
    except (OSError, ValueError) as error:
        raise FedcoreError(f"{file} is no public key in PEM: {error}") from None
    if not isinstance(key, Ed25519PublicKey):
        raise FedcoreError(f"{file} is no Ed25519 key")
    return key.public_bytes_raw()
