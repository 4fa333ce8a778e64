"""Arrays that a file has already, so that a later program state need not store them again.

States share a file by hard links: with references in their place, a removal would read all manifests.
"""

import contextlib
import os
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs
import numpy as np

from fedcore.program.safetensors_file import Digest, SafetensorsFile
from fedcore.whole_files import write_whole

MIN_SHARED_BYTES = 2**16
"""Size of the smallest array that is looked for; to store a smaller one again is cheaper than a link."""


@attrs.frozen
class StoredFile:
    """A file of arrays that is whole.

    Args:
        path: one of its names.
        inode, modified_ns: tell whether the path still names this file.
    """

    path: Path
    digest: Digest
    inode: int
    modified_ns: int

    @classmethod
    def at(cls, path: Path, digest: Digest) -> "StoredFile":
        """The file that the path names now."""
        status = os.stat(path)
        return cls(path, digest, status.st_ino, status.st_mtime_ns)

    def link(self, path: Path) -> "StoredFile | None":
        """The file under a second name, which outlives the first; None where that cannot be.

        The first name may be removed or may name another file by now, and some file systems have no hard links.
        """
        try:
            os.link(self.path, path)
            linked = self.at(path, self.digest)
        except OSError:
            linked = None
        if linked is None or (linked.inode, linked.modified_ns) != (self.inode, self.modified_ns):
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        return linked


def store(arrays: Mapping[str, np.ndarray], path: Path) -> StoredFile:
    """Writes arrays whole to a file.

    Raises:
        OSError: the file cannot be written.
    """
    content = SafetensorsFile(arrays)
    write_whole(path, content)
    assert content.digest is not None
    return StoredFile.at(path, content.digest)


@attrs.frozen
class SharedFile:
    """A file of arrays that several states have.

    Args:
        names: name of an array in this state -> its name in the file.
    """

    file: StoredFile
    names: Mapping[str, str]

    def is_mostly(self, arrays: Mapping[str, np.ndarray]) -> bool:
        """Whether at least half of the file's bytes are arrays of this state, so that keeping it wastes little."""
        return 2 * sum(arrays[name].nbytes for name in self.names) >= self.file.digest.size_bytes


class StoredArrays:
    """The arrays of the program state that was saved last, by identity, with the files that have them.

    Guarantees:
      - No array is kept alive, compared or read.
      - Only arrays of `MIN_SHARED_BYTES` or more are remembered. They must not change.
    """

    def __init__(self) -> None:
        # id of an array -> (the array, the file that has it, its name there)
        self._entries: dict[int, tuple[weakref.ref[np.ndarray], StoredFile, str]] = {}

    def find(self, arrays: Mapping[str, np.ndarray]) -> list[SharedFile]:
        """The files that have some of the arrays."""
        names: dict[StoredFile, dict[str, str]] = {}
        for name, array in arrays.items():
            reference, file, stored_name = self._entries.get(id(array), (None, None, ""))
            if reference is not None and file is not None and reference() is array:
                names.setdefault(file, {})[name] = stored_name
        return [SharedFile(file, names_of_file) for file, names_of_file in names.items()]

    def remember(self, arrays: Mapping[str, np.ndarray], files: Iterable[SharedFile]) -> None:
        """Remembers these arrays in place of those before."""
        self._entries = {
            id(arrays[name]): (weakref.ref(arrays[name]), shared.file, stored_name)
            for shared in files
            for name, stored_name in shared.names.items()
            if arrays[name].nbytes >= MIN_SHARED_BYTES
        }
