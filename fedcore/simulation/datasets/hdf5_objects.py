"""Objects of an HDF5 file from elsewhere: what it names in other files is not followed, and sizes are checked first.

Decision 0221.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from fedcore.errors import brief
from fedcore.ir.regular_files import ALWAYS_TAKEN_BYTES, MAX_RATIO, check_taken
from fedcore.simulation.datasets.structures import as_bytes

_MAX_LINKS = 16
"""Number of soft links that are followed to an object, as in HDF5."""

_TEXTS_AT_ONCE = 64
"""Texts of variable length that are read at once: each may be as long as the file."""


def member(group: Any, name: str) -> Any:
    """The group, data set or type of a name in a group, along soft links; None if there is none.

    Raises:
        ValueError: it is a link to another file, or a soft link without an end.
    """
    from h5py import h5l

    current, names_to_go, links_followed = group, [name], 0
    while names_to_go:
        next_name = names_to_go.pop(0)
        # Asking h5py whether a name is there would open the file that an external link names.
        links = getattr(current.id, "links", None)
        encoded = next_name.encode(errors="surrogateescape")
        if links is None or not links.exists(encoded):
            return None
        kind = links.get_info(encoded).type
        if kind == h5l.TYPE_HARD:
            current = current[next_name]
            continue
        links_followed += 1
        if kind != h5l.TYPE_SOFT or links_followed > _MAX_LINKS:
            problem = "is a soft link without an end" if kind == h5l.TYPE_SOFT else "is a link to another file"
            raise ValueError(f"{brief(name)} in {brief(group.name)} {problem}")
        path = links.get_val(encoded).decode(errors="surrogateescape")
        current = current.file if path.startswith("/") else current
        names_to_go = [part for part in path.split("/") if part not in ("", ".")] + names_to_go
    return current


def members(group: Any) -> dict[str, Any]:
    """The objects of a group by name."""
    return {name: member(group, name) for name in group}


def text_attribute(owner: Any, name: str, file_bytes: int) -> str | None:
    """The text of an attribute; None if there is none, or it is no text.

    Raises:
        ValueError: it takes more bytes than the file.
    """
    if name not in owner.attrs:
        return None
    check_taken(f"the attribute {name}", owner.attrs.get_id(name).get_storage_size(), file_bytes)
    value = owner.attrs[name]
    return value if isinstance(value, str) else None


def offset_of(dataset: Any) -> int | None:
    """The position in the file of a data set that lies in it in one piece; None if it is empty.

    Raises:
        ValueError: it is no such data set.
    """
    from h5py import h5d

    _check_is_here(dataset, getattr(dataset, "name", "a column"))
    if dataset.id.get_create_plist().get_layout() != h5d.CONTIGUOUS:
        raise ValueError(f"{dataset.name} does not lie in the file in one piece")
    return dataset.id.get_offset() if dataset.size else None


def values_of(datasets: Mapping[str, Any], file_bytes: int) -> dict[str, np.ndarray]:
    """The values of data sets; text as bytes objects.

    Raises:
        ValueError: one is no data set of numbers or text in this file, or they take memory out of proportion to it.
    """
    for name, dataset in datasets.items():
        _check_is_here(dataset, name)
        if dataset.shape is None or not (dataset.dtype.kind in "biufcS" or _is_text(dataset)):
            raise ValueError(f"{brief(name)} holds neither numbers nor text, but {dataset.dtype}")
        check_taken(f"a chunk of {brief(name)}", _size_bytes(dataset, dataset.chunks or ()), file_bytes)
    size_bytes = sum(_size_bytes(dataset, dataset.shape) for dataset in datasets.values())
    allowed = min(MAX_RATIO * file_bytes, _allowed_bytes(datasets.values(), file_bytes))
    if size_bytes > max(ALWAYS_TAKEN_BYTES, allowed):
        raise ValueError(
            f"{', '.join(map(brief, datasets))} take {size_bytes} bytes of memory, far more than in the file"
        )
    return {name: _values(name, dataset, file_bytes) for name, dataset in datasets.items()}


def _check_is_here(dataset: Any, name: str) -> None:
    """Raises ValueError for anything else than a data set whose content lies in its own file."""
    import h5py

    if not isinstance(dataset, h5py.Dataset):
        raise ValueError(f"{brief(name)} is no data set")
    if dataset.is_virtual or dataset.id.get_create_plist().get_external_count():
        raise ValueError(f"{brief(name)} has its content in another file")


def _is_text(dataset: Any) -> bool:
    import h5py

    return h5py.check_string_dtype(dataset.dtype) is not None


def _size_bytes(dataset: Any, shape: tuple[int, ...]) -> int:
    """The bytes in memory of a part of a data set that has this shape."""
    return math.prod(shape) * dataset.dtype.itemsize


def _allowed_bytes(datasets: Iterable[Any], file_bytes: int) -> int:
    """The memory that data sets may take by the bytes that they have in the file; several names are one data set."""
    from h5py import h5o

    allowed_at_address = {}
    for dataset in datasets:
        stored_bytes = min(file_bytes, dataset.id.get_storage_size())
        is_packed = dataset.id.get_create_plist().get_nfilters() > 0
        allowed_at_address[h5o.get_info(dataset.id).addr] = stored_bytes * (MAX_RATIO if is_packed else 1)
    return sum(allowed_at_address.values())


def _values(name: str, dataset: Any, file_bytes: int) -> np.ndarray:
    """The values of a data set; texts of variable length are read in pieces, since only then their sizes are known."""
    if dataset.dtype.kind != "O":
        values = dataset[()]
        return as_bytes(values) if values.dtype.kind == "S" else values
    texts = np.empty(dataset.shape, object)
    size_bytes = 0
    for piece in _pieces(dataset.shape, max(_TEXTS_AT_ONCE, ALWAYS_TAKEN_BYTES // max(1, file_bytes))):
        texts[piece] = dataset[piece]
        size_bytes += sum(map(len, np.ravel(texts[piece])))
        check_taken(f"the text of {brief(name)}", size_bytes, file_bytes, ratio=1)
    return as_bytes(texts)


def _pieces(shape: tuple[int, ...], count: int) -> Iterator[tuple]:
    """Indices of pieces of at most `count` elements, which together are an array of this shape."""
    if not shape:
        yield ()
        return
    for outer in np.ndindex(shape[:-1]):
        for start in range(0, shape[-1], count):
            yield (*outer, slice(start, start + count))
