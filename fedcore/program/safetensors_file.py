"""Writes arrays in the format of safetensors, a piece at a time and without a copy.

A file is the length of its header (uint64, little-endian), the header as JSON, padded with spaces to a multiple of 8,
and the bytes of the arrays. `safetensors.numpy.save` makes two copies of all arrays, and `save_file` gives no digest.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping

import attrs
import numpy as np

PIECE_BYTES = 4 << 20
"""Size of a piece: large against the cost of a write, and small enough to stay in the processor's cache."""

_DTYPES = {
    **{"uint64": "U64", "int64": "I64", "float64": "F64", "complex64": "C64", "float32": "F32", "uint32": "U32"},
    **{"int32": "I32", "float16": "F16", "uint16": "U16", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL"},
}
"""Names of dtypes in safetensors, in the order of their arrays in a file: each array begins at a multiple of its item
size."""

_RANKS = {name: rank for rank, name in enumerate(_DTYPES)}


@attrs.frozen
class Digest:
    """SHA-256 of a file, in hexadecimal digits, and its size in bytes."""

    sha256: str
    size_bytes: int


class SafetensorsFile:
    """The content of a file of arrays; `digest` has its checksum once the content was iterated over.

    Args:
        arrays: by name. Those of a dtype that safetensors lacks are stored as bytes.
        metadata: texts by name. Default: none.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None) -> None:
        self._metadata = dict(metadata or {})
        stored = {name: _as_stored(array) for name, array in arrays.items()}
        self._arrays = dict(sorted(stored.items(), key=lambda item: (_RANKS[item[1].dtype.name], item[0])))
        self.digest: Digest | None = None

    def __iter__(self) -> Iterator[bytes | memoryview]:
        sha256, size_bytes = hashlib.sha256(), 0
        for piece in self._pieces():
            sha256.update(piece)
            size_bytes += len(piece)
            yield piece
        self.digest = Digest(sha256.hexdigest(), size_bytes)

    def _pieces(self) -> Iterator[bytes | memoryview]:
        yield self._header()
        for array in self._arrays.values():
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            for start in range(0, len(data), PIECE_BYTES):
                yield data[start : start + PIECE_BYTES]

    def _header(self) -> bytes:
        entries: dict[str, dict] = {"__metadata__": self._metadata} if self._metadata else {}
        end = 0
        for name, array in self._arrays.items():
            start, end = end, end + array.nbytes
            shape = list(array.shape)
            entries[name] = {"dtype": _DTYPES[array.dtype.name], "shape": shape, "data_offsets": [start, end]}
        text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text


def _as_stored(array: np.ndarray) -> np.ndarray:
    """The array in little-endian order; for a dtype that safetensors lacks, its bytes."""
    if array.dtype.kind != "V":  # not the dtypes of ml_dtypes, which have one byte order
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return array if array.dtype.name in _DTYPES else np.ascontiguousarray(array).reshape(-1).view(np.uint8)
