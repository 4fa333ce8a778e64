"""Values that client stages leave at their site, such as the states of clients, in files of the site."""

import re
from pathlib import Path
from typing import Any

from fedcore.errors import FedcoreError
from fedcore.lru_cache import LruEntries
from fedcore.runtime.network.leaves import from_arrays, to_arrays
from fedcore.runtime.network.messages import MalformedMessage, Message
from fedcore.types import Type, to_type
from fedcore.whole_files import write_whole

MAX_VALUES = 16
"""Values in memory."""

MAX_FILES = 256
"""Values on the disk; those go first that were stored or read longest ago."""

_NAME = re.compile(r"[0-9a-f]{32}")


class SiteValues:
    """Values by name.

    Guarantees:
      - A value of tensors is on the disk before its name leaves the site, so that it survives a restart.
      - Names are 32 hexadecimal digits: what a server sends reaches no other file.

    Args:
        folder: of the files; made when the first value is stored.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._memory: LruEntries[str, Any] = LruEntries(MAX_VALUES)

    def store(self, name: str, value: Any, type_: Type) -> None:
        """Stores a value. One with sequences stays in memory only."""
        file = self._file(name)
        self._memory.put(name, value)
        try:
            arrays = to_arrays(value, type_, "v")
        except FedcoreError:
            return
        self._folder.mkdir(exist_ok=True)
        write_whole(file, Message({"kind": "value", "type": str(type_)}, arrays).to_bytes())
        for old in sorted(self._folder.glob("*.safetensors"), key=lambda path: path.stat().st_mtime_ns)[:-MAX_FILES]:
            old.unlink(missing_ok=True)

    def find(self, name: str) -> Any:
        """The value of a name.

        Raises:
            MalformedMessage: the site does not have it.
        """
        file, value = self._file(name), self._memory.find(name, None)
        if file.exists():
            file.touch()
        if value is None and file.exists():
            message = Message.from_bytes(file.read_bytes())
            value = from_arrays(message.arrays, to_type(message.fact("type", str)), "v")
            self._memory.put(name, value)
        if value is None:
            raise MalformedMessage("the request names a value that the site does not have")
        return value

    def _file(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise MalformedMessage("the request names a value by something else than 32 hexadecimal digits")
        return self._folder / f"{name}.safetensors"
