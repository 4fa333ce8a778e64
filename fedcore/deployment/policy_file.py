"""The file of a site's policy, which is read again when it changes."""

import hashlib
from pathlib import Path

import attrs

from fedcore.deployment.policy import Policy, Refusal, parse_policy
from fedcore.errors import FedcoreError
from fedcore.ir.regular_files import read_regular_file

MAX_POLICY_BYTES = 2**20


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
    """A policy by its file.

    Guarantees:
      - A change of the file, or of a key that it names, holds from the next request.
      - A file that cannot be read, or is no policy, refuses every request until it is mended.

    Args:
        file: the TOML file.
    Raises:
        FedcoreError: it is no policy now.
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
        return PolicyInForce.of(parse_policy(self._file, content), content)
