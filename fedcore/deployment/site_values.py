"""Values that client stages leave at their site, such as the states of clients, in files of the site."""

import hashlib
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from fedcore.errors import FedcoreError
from fedcore.lru_cache import LruEntries
from fedcore.runtime.network.leaves import from_arrays, to_arrays
from fedcore.runtime.network.messages import MalformedMessage, Message
from fedcore.runtime.network.transcript import KeptName
from fedcore.types import TensorType, Type, leaves, to_type
from fedcore.whole_files import write_whole

MAX_VALUES = 16
"""Values in memory."""

MAX_FILES = 256
"""Values on the disk; those go first that were stored or read longest ago."""


FAILED: Any = object()
"""Stands for the value of a stage that has failed."""


@attrs.frozen
class KeptValue:
    """A value that is to be kept, as a later stage finds it, whether in memory or in its file.

    Args:
        value: as a later stage gets it.
        arrays: by name, those of the file; None for a value with sequences, which stays in memory only.
    """

    value: Any
    arrays: Mapping[str, np.ndarray] | None

    @classmethod
    def of(cls, value: Any, type_: Type) -> "KeptValue":
        """The value read back from what its file will hold. Whatever it raises depends on the value: a graph may give
        other shapes than its type says, bytes that are no bool, or more axes than a file takes.
        """
        if not _has_file(type_):
            return cls(value, None)
        arrays = Message.from_bytes(Message({"kind": "value"}, to_arrays(value, type_, "v")).to_bytes()).arrays
        return cls(from_arrays(arrays, type_, "v"), arrays)


class SiteValues:
    """Values by the digest of their plan and the `KeptName` of the stage that left them.

    Guarantees:
      - A value of tensors is on the disk before its name leaves the site, so that it survives a restart. So is
        a failure in its place, and no other, so that what is forgotten tells nothing.
      - A value is to be had by the plan that left it only, and by what it was computed from.
      - There is one value of a kind, ever: what a stage leaves when it is asked again goes nowhere, also after a
        failure or a restart, or when the value has gone.
      - Names of files are digests: what a server sends reaches no other file.
      - Methods may be called in several threads.

    Args:
        folder: of the files; made when the first value is stored.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._memory: LruEntries[str, Any] = LruEntries(MAX_VALUES)
        self._lock = threading.Lock()
        self._kinds: set[str] | None = None  # digests of the kinds stored ever; None until their file is read

    def store(self, plan: str, name: KeptName, kept: KeptValue, type_: Type, kind: str) -> None:
        """Stores a value, unless there has been one of its kind."""
        message = None
        if kept.arrays is not None:
            message = Message({"kind": "value", "type": str(type_)}, dict(kept.arrays))
        self._put(_key(plan, name), kept.value, message, kind)

    def store_failure(self, plan: str, name: KeptName, type_: Type, kind: str) -> None:
        """Stores that a stage has failed, in the place of its value, unless there has been one of its kind."""
        self._put(_key(plan, name), FAILED, Message({"kind": "failure"}) if _has_file(type_) else None, kind)

    def _put(self, key: str, value: Any, message: Message | None, kind: str) -> None:
        """Keeps a value in memory and, as a message, in its file, unless there has been one of its kind."""
        with self._lock:
            self._folder.mkdir(exist_ok=True)
            with (self._folder / "kinds").open("a+") as file:  # the digest of each kind, a line each
                if self._kinds is None:
                    file.seek(0)
                    self._kinds = set(file.read().split())
                digest = _digest(kind)
                if digest in self._kinds or self._has(key):
                    return
                file.write(f"\n{digest}\n")  # a line before may have been cut off by the process's end
            self._kinds.add(digest)
            self._memory.put(key, value)
            if message is not None:
                self._write(key, message)

    def _write(self, key: str, message: Message) -> None:
        """Writes the file of a value, and deletes the oldest files beyond `MAX_FILES`."""
        write_whole(self._file(key), message.to_bytes())
        for old in sorted(self._folder.glob("*.safetensors"), key=lambda path: path.stat().st_mtime_ns)[:-MAX_FILES]:
            old.unlink(missing_ok=True)

    def check(self, plan: str, name: KeptName) -> None:
        """Checks that there is a value of a name, without reading it: that would take a time of the value's size.

        Raises:
            MalformedMessage: the site does not have it, or it was computed from something else.
        """
        with self._lock:
            if not self._has(_key(plan, name)):
                raise MalformedMessage("the request names a value that the site does not have")

    def find(self, plan: str, name: KeptName) -> Any:
        """The value of a name; `FAILED` if the stage has failed.

        Raises:
            MalformedMessage: as for `check`, or the site cannot read it.
        """
        self.check(plan, name)
        key = _key(plan, name)
        with self._lock:
            file, value = self._file(key), self._memory.find(key, None)
            if file.exists():
                file.touch()
            if value is None:
                value = _parse_file(file.read_bytes())
                self._memory.put(key, value)
            return value

    def _has(self, key: str) -> bool:
        return key in self._memory or self._file(key).exists()

    def _file(self, key: str) -> Path:
        return self._folder / f"{key}.safetensors"


def _has_file(type_: Type) -> bool:
    """Whether values of a type are on the disk; those with sequences are not."""
    return all(isinstance(leaf, TensorType) for _, leaf in leaves(type_))


def _parse_file(content: bytes) -> Any:
    """The value of a file.

    Raises:
        MalformedMessage: it is no file of a value. What is wrong with it may depend on the value, and is not told.
    """
    try:
        message = Message.from_bytes(content)
        if message.facts["kind"] == "failure":
            return FAILED
        return from_arrays(message.arrays, to_type(message.fact("type", str)), "v")
    except FedcoreError:
        raise MalformedMessage("the request names a value that the site cannot read") from None


def _key(plan: str, name: KeptName) -> str:
    """The key of a value in memory, and the name of its file."""
    return _digest(f"{plan}/{name}")


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
