"""Program states as files."""

import contextlib
import functools
import hashlib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs

from fedcore.errors import InvalidValue, brief
from fedcore.ir.regular_files import open_regular_file, read_regular_file
from fedcore.program.program_state_manager import (
    ProgramStateDamagedError,
    ProgramStateExistsError,
    ProgramStateManager,
    ProgramStateNotFoundError,
)
from fedcore.program.safetensors_file import SafetensorsFile
from fedcore.program.state_files import (
    Damaged,
    StateParts,
    check_manifest,
    checksums,
    from_files,
    manifest_of,
    sizes_bytes,
    take_apart,
)
from fedcore.program.stored_arrays import SharedFile, StoredArrays, StoredFile, store
from fedcore.program.type_variables import ProgramStateStructure
from fedcore.program.value_reference import materialize_value
from fedcore.scalars import whole_number
from fedcore.whole_files import lock_file, write_whole, written_and_locked

MANIFEST, TENSORS = ".json", ".safetensors"
MAX_MANIFEST_BYTES = 2**28


class FileProgramStateManager(ProgramStateManager[ProgramStateStructure]):
    """Keeps program states in a directory: for each version a safetensors file, and a JSON manifest with checksums.

    Guarantees:
      - After a crash of the program or the machine at any moment, `load_latest` gives the state that was saved last, or
        the state before it.
      - A save that fails, such as on a full disk, raises an `OSError` and leaves the older states as they are.
      - A bit that changed in a file is noticed: `load` raises, `load_latest` takes the state before.
      - Numbers and arrays come back bit for bit, in their dtypes.
      - Older states are removed only after the new one is on the disk.
      - Threads and processes may save different versions at once.
      - Arrays are streamed to the file. Those that nobody can write to, such as results of calls, are not copied.
      - An array object of 64 KiB or more that the state saved before had too is not stored again: both states link to
        one file. Each state has all its files under names of its own, so any other one may be removed.

    A manifest is written after its tensors, each file aside and renamed; a version without a manifest does not count.

    Args:
        root_dir: the directory; made where there is none.
        prefix: beginning of the files' names.
        keep_total: number of states that are kept; 0 or less for all.
        keep_first: whether the oldest state is one of them.
        keep_every_k: of the others, only versions that k divides are kept. The newest state is always kept.
    Raises:
        InvalidValue: `root_dir` is empty, or `prefix` is a path.
        OSError: the directory cannot be made.
    Example:
        >>> manager = fc.program.FileProgramStateManager(folder, keep_total=3)
        >>> asyncio.run(manager.save({"round": 1}, version=1))
        >>> asyncio.run(manager.load_latest(None))
        ({'round': 1}, 1)
    """

    def __init__(
        self,
        root_dir: str | os.PathLike,
        prefix: str = "program_state_",
        keep_total: int = 5,
        keep_first: bool = True,
        keep_every_k: int = 1,
    ) -> None:
        if not os.fspath(root_dir):
            raise InvalidValue("root_dir is the path of a directory, not empty")
        if os.path.basename(prefix) != prefix:
            raise InvalidValue(f"prefix is the beginning of a file's name, not the path {brief(prefix)}; fix: root_dir")
        self._root = Path(root_dir)
        self._root.mkdir(parents=True, exist_ok=True)
        self._prefix = prefix
        self._keep_total = whole_number("keep_total", keep_total)
        self._keep_first = keep_first
        self._keep_every_k = whole_number("keep_every_k", keep_every_k, at_least=1)
        self._stored = StoredArrays()

    async def get_versions(self) -> list[int] | None:
        return self._versions(MANIFEST) or None

    async def load(self, version: int, structure: Any = None) -> Any:
        """A saved state, in numpy arrays; without a structure, in plain lists, tuples and dicts."""
        version = whole_number("version", version)
        try:
            content = self._manifest_of(version)
            files = [
                self._read(self._tensors(version, number), size_bytes)
                for number, size_bytes in enumerate(sizes_bytes(content))
            ]
            return from_files(content, files, structure)
        except FileNotFoundError as error:
            if version not in self._versions(MANIFEST):
                raise ProgramStateNotFoundError(version) from None
            raise self._damage_error(version, error) from error
        except (OSError, Damaged) as error:
            raise self._damage_error(version, error) from error

    def check(self, version: int) -> Any:
        """Compares a saved state's files with their checksums, without loading them; returns the manifest's content.

        Raises:
            ProgramStateDamagedError: a file is missing, or is not what was written.
            InvalidValue: another version of fedcore wrote the state.
        """
        try:
            content = self._manifest_of(version)
            if not self._has_checksums(version, content):
                raise Damaged("the tensors have another checksum")
        except (OSError, Damaged) as error:
            raise self._damage_error(version, error) from error
        return content

    def _manifest_of(self, version: int) -> dict:
        """The content of a version's manifest, as `check_manifest` gives it."""
        return check_manifest(self._read(self._path(version, MANIFEST), MAX_MANIFEST_BYTES), version)

    def _has_checksums(self, version: int, content: dict) -> bool:
        """Whether each file of arrays of a version has the checksum that the content of its manifest names."""
        entries = zip(checksums(content), sizes_bytes(content), strict=True)
        return all(
            self._sha256(self._tensors(version, n), size) == checksum for n, (checksum, size) in enumerate(entries)
        )

    async def save(self, program_state: Any, version: int) -> None:
        write = await self.begin_save(program_state, version)
        write()

    async def begin_save(self, program_state: Any, version: int) -> Callable[[], None]:
        """Takes a state, and returns the function that writes it. Only arrays that can be written to are copied.

        The function raises an `OSError` if the files cannot be written.
        """
        version = whole_number("version", version)
        if self._path(version, MANIFEST).exists() and self._is_whole(version):
            raise ProgramStateExistsError(version=version, path=str(self._root))
        return functools.partial(self._write, take_apart(await materialize_value(program_state)), version)

    async def remove_all(self) -> None:
        for version in self._versions(MANIFEST):
            self._remove(version)

    def size_bytes(self, version: int) -> int:
        """The size of the files of a version, those that other versions share included; a missing file has no bytes."""
        paths = [self._path(version, MANIFEST), *self._tensors_of(version)]
        return sum(path.stat().st_size for path in paths if path.exists())

    def _write(self, parts: StateParts, version: int) -> None:
        """Writes the state's own arrays, then links or writes those that other states have, then the manifest."""
        stored = self._stored.find(parts.arrays)
        worth_linking = [file for file in stored if file.is_mostly(parts.arrays)]
        unchanged = {name for file in stored for name in file.names}  # names of arrays that the state before has too
        own = SafetensorsFile({name: array for name, array in parts.arrays.items() if name not in unchanged})
        try:
            with written_and_locked(self._tensors(version), own):
                assert own.digest is not None
                shared = self._link(worth_linking, version)
                remaining = {  # unchanged arrays of files that are not linked
                    name: parts.arrays[name] for name in unchanged.difference(*(file.names for file in shared))
                }
                if remaining:
                    path = self._tensors(version, len(shared) + 1)
                    shared.append(SharedFile(store(remaining, path), {name: name for name in remaining}))
                write_whole(self._path(version, MANIFEST), manifest_of(parts, version, own.digest, shared))
        except OSError:
            if not self._path(version, MANIFEST).exists():
                with contextlib.suppress(OSError):
                    self._remove_tensors(version)
            raise
        own_file = StoredFile.at(self._tensors(version), own.digest)
        own_names = {name: name for name in parts.arrays if name not in unchanged}
        self._stored.remember(parts.arrays, [SharedFile(own_file, own_names), *shared])
        self._remove_old(version)

    def _link(self, files: Sequence[SharedFile], version: int) -> list[SharedFile]:
        """Links the files under names of this version, numbered from 1; leaves out files that cannot be linked."""
        linked: list[SharedFile] = []
        for shared in files:
            file = shared.file.link(self._tensors(version, len(linked) + 1))
            if file is not None:
                linked.append(attrs.evolve(shared, file=file))
        return linked

    def _is_whole(self, version: int) -> bool:
        """Whether the files of a version are there as they were written."""
        try:
            return self._has_checksums(version, self._manifest_of(version))
        except (OSError, Damaged):
            return False

    def _remove_old(self, saved: int) -> None:
        """Removes states that need not be kept, and tensors without a manifest. Versions after `saved` stay."""
        versions = [v for v in self._versions(MANIFEST) if v <= saved]
        for version in set(versions) - self._versions_to_keep(versions):
            self._remove(version)
        for orphan in set(self._versions(TENSORS)) - set(self._versions(MANIFEST)):
            with contextlib.suppress(FileNotFoundError), lock_file(self._tensors(orphan)) as has_lock:
                # A file that another process has locked is that of a save which has yet to write its manifest.
                if has_lock and not self._path(orphan, MANIFEST).exists():
                    self._remove_tensors(orphan)

    def _versions_to_keep(self, versions: list[int]) -> set[int]:
        """The versions that `keep_total`, `keep_first` and `keep_every_k` keep of these, which ascend."""
        first = versions[:1] if self._keep_first else []
        retained = [v for v in versions if v in first or v % self._keep_every_k == 0 or v == versions[-1]]
        if 0 < self._keep_total < len(retained):
            retained = [*first, *retained[len(retained) - max(1, self._keep_total - len(first)) :]]
        return set(retained)

    def _remove(self, version: int) -> None:
        """Removes the manifest first: a state without a manifest does not count."""
        self._path(version, MANIFEST).unlink(missing_ok=True)
        self._remove_tensors(version)

    def _remove_tensors(self, version: int) -> None:
        """Removes the state's own file last, which marks a state without a manifest as one to be removed."""
        for path in reversed(self._tensors_of(version)):
            path.unlink(missing_ok=True)

    def _read(self, path: Path, max_bytes: int) -> bytes:
        """The content of a file.

        Raises:
            Damaged: it is no regular file, such as a pipe, which would never end, or is larger than `max_bytes`.
        """
        try:
            return read_regular_file(path, max_bytes, inside=self._root)
        except InvalidValue as error:
            raise Damaged(str(error)) from None

    def _sha256(self, path: Path, max_bytes: int) -> str:
        """The checksum of a file's content, which is not read into memory as a whole.

        Raises:
            Damaged: as of `_read`.
        """
        try:
            with open_regular_file(path, max_bytes, inside=self._root) as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except InvalidValue as error:
            raise Damaged(str(error)) from None

    def _versions(self, ending: str) -> list[int]:
        """The versions that have a file of this ending, `MANIFEST` or `TENSORS`, in ascending order."""
        name = re.compile(re.escape(self._prefix) + r"(-?[0-9]+)" + re.escape(ending))
        try:
            matches = [name.fullmatch(entry) for entry in os.listdir(self._root)]
        except FileNotFoundError:
            return []
        return sorted(int(match[1]) for match in matches if match)

    def _path(self, version: int, ending: str) -> Path:
        return self._root / f"{self._prefix}{version}{ending}"

    def _tensors(self, version: int, number: int = 0) -> Path:
        """The file of a state's own arrays, and from number 1 the files of arrays that other states may have too."""
        return self._path(version, f".{number}{TENSORS}" if number else TENSORS)

    def _tensors_of(self, version: int) -> list[Path]:
        """The files of arrays of a version; its own comes first, whether it is there or not."""
        name = re.compile(re.escape(f"{self._prefix}{version}") + r"\.[1-9][0-9]*" + re.escape(TENSORS))
        shared = [self._root / entry for entry in os.listdir(self._root) if name.fullmatch(entry)]
        return [self._tensors(version), *sorted(shared)]

    def _damage_error(self, version: int, error: Exception) -> ProgramStateDamagedError:
        return ProgramStateDamagedError(f"{self._path(version, MANIFEST)} is damaged: {error}")
