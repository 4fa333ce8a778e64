"""A structure as two texts of bytes: its arrays as safetensors, the rest and the checksums as a JSON manifest.

The manifest is `{"checksum": …, "content": {"format": 1, "version": …, "tensors": …, "dtypes": …, "tree": …}}`. Its
checksum is the SHA-256 of the content as it is written; `tensors` has the SHA-256 and the size of the other file. A
tree is a list: the kind of a node, and its parts or its value.
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.program.serializable import Serializable
from fedcore.program.structures import children_of, with_children
from fedcore.types import fields_of

FORMAT = 1
MAX_DEPTH = 150
_STRUCTURES = {"record", "dict", "list", "tuple"}
_NATIVE = {
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64"),
}


class Damaged(Exception):
    """The bytes are not those that were written."""


def to_files(state: Any, version: int) -> tuple[bytes, bytes]:
    """The bytes of the tensors and of the manifest.

    Raises:
        TypeMismatch: a leaf is neither an array, a number, a text nor None; the message names it.
    """
    from safetensors.numpy import save

    arrays: dict[str, np.ndarray] = {}
    tree = _tree(state, "state", arrays)
    dtypes = {name: [array.dtype.name, list(array.shape)] for name, array in arrays.items()}
    tensors = save({name: _as_native(array) for name, array in arrays.items()})
    content = {
        "format": FORMAT,
        "version": version,
        "tensors": {"sha256": hashlib.sha256(tensors).hexdigest(), "bytes": len(tensors)},
        "dtypes": dtypes,
        "tree": tree,
    }
    return tensors, _manifest(content)


def from_files(tensors: bytes, manifest: bytes, version: int, structure: Any = None) -> Any:
    """The structure; without `structure`, or where it has a leaf, in plain lists, tuples and dicts.

    Raises:
        Damaged: the files are not those that `to_files` made for this version.
        TypeMismatch: the saved structure is another one; the message names the first difference.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    content = checked(manifest, version)
    if hashlib.sha256(tensors).hexdigest() != content["tensors"]["sha256"]:
        raise Damaged("the tensors have another checksum")
    try:
        stored = load(tensors)
        arrays = {
            name: stored[name].view(_dtype(dtype)).reshape(shape) for name, (dtype, shape) in content["dtypes"].items()
        }
        tree = _decoded(content["tree"], arrays)
    except (ValueError, LookupError, TypeError, AttributeError, SafetensorError) as error:
        raise Damaged(f"the manifest is no manifest: {error}") from error
    return _structure(tree, "state", structure)


def checked(manifest: bytes, version: int) -> dict:
    """The content of a manifest.

    Raises:
        Damaged: it is not what was written.
        InvalidValue: another version of fedcore wrote it.
    """
    try:
        content = json.loads(manifest)["content"]
        whole = _manifest(content) == manifest
        written_as, written_for, _ = content["format"], content["version"], content["tensors"]["sha256"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise Damaged("the manifest is no manifest") from error
    if not whole:
        raise Damaged("the manifest has another checksum")
    if written_as != FORMAT:
        raise InvalidValue(f"the program state has format {brief(written_as)}; this version of fedcore reads {FORMAT}")
    if written_for != version:
        raise Damaged(f"the manifest is that of version {brief(written_for)}")
    return content


def _manifest(content: dict) -> bytes:
    text = json.dumps(content, separators=(",", ":"))
    checksum = hashlib.sha256(text.encode()).hexdigest()
    return f'{{"checksum":"{checksum}","content":{text}}}\n'.encode()


def _as_native(array: np.ndarray) -> np.ndarray:
    """An array of a dtype that safetensors has; of others the bytes."""
    array = np.ascontiguousarray(array).reshape(array.shape)
    return array if array.dtype.name in _NATIVE else np.frombuffer(array.tobytes(), np.uint8)


def _dtype(name: str) -> np.dtype:
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name, name))


def _tree(value: Any, path: str, arrays: dict[str, np.ndarray], depth: int = 0) -> list:
    if depth > MAX_DEPTH:
        raise TypeMismatch(f"a saved program state nests at most {MAX_DEPTH} deep, not as {brief(path)}")
    if isinstance(value, Serializable):
        return ["bytes", _text(value.to_bytes())]
    fields, children = fields_of(value), children_of(value)
    if children is not None:
        parts = [[key, _tree(child, f"{path}/{key}", arrays, depth + 1)] for key, child in children.items()]
        if isinstance(value, Mapping) and not all(isinstance(key, str | int) for key in value):
            raise TypeMismatch(f"{path}: keys of a saved mapping are texts or whole numbers")
        return [_kind(value, fields), parts]
    if value is None or (isinstance(value, bool | int | float | str) and not isinstance(value, np.generic)):
        return ["value", value]
    if isinstance(value, bytes):
        return ["bytes", _text(value)]
    array = np.asarray(value)
    if array.dtype.kind in "OSU":
        return ["texts", list(array.shape), [_text_leaf(path, v) for v in array.ravel().tolist()]]
    if array.dtype.kind not in "biufcV" or array.dtype.hasobject or array.dtype.fields:
        raise TypeMismatch(f"{path}: {brief(value)} cannot be saved; take arrays, numbers, texts and None")
    name = _free_name(path, arrays)
    arrays[name] = array
    return ["scalar" if isinstance(value, np.generic) else "array", name]


def _free_name(path: str, arrays: Mapping[str, np.ndarray]) -> str:
    """The path, or an extension of it: keys that hold `/`, or a number and its text, can give two leaves one path."""
    while path in arrays:
        path += "'"
    return path


def _kind(value: Any, fields: Mapping | None) -> str:
    if fields is not None:
        return "record"
    return "dict" if isinstance(value, Mapping) else "list" if isinstance(value, list) else "tuple"


def _text_leaf(path: str, value: Any) -> list:
    if not isinstance(value, str | bytes):
        raise TypeMismatch(f"{path}: {brief(value)} cannot be saved; take arrays, numbers, texts and None")
    return ["str", value] if isinstance(value, str) else ["bytes", _text(value)]


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decoded(tree: list, arrays: Mapping[str, np.ndarray], depth: int = 0) -> list:
    """The tree with its leaves as values.

    Raises:
        Damaged, ValueError, LookupError, TypeError: it is no tree.
    """
    if depth > MAX_DEPTH:
        raise Damaged(f"the manifest is no manifest: it nests more than {MAX_DEPTH} deep")
    kind, value = tree[0], tree[-1]
    if kind == "value":
        return ["value", value]
    if kind == "bytes":
        return ["bytes", base64.b64decode(value)]
    if kind == "texts":
        texts = [text if of == "str" else base64.b64decode(text) for of, text in value]
        return ["value", np.array(texts, dtype=object).reshape(tree[1])]
    if kind in ("array", "scalar"):
        return ["value", arrays[value] if kind == "array" else arrays[value][()]]
    if kind not in _STRUCTURES:
        raise Damaged(f"the manifest is no manifest: {brief(kind)} is no kind of node")
    parts = {key: _decoded(part, arrays, depth + 1) for key, part in value}
    return [kind, list(parts.items())]


def _structure(tree: list, path: str, structure: Any) -> Any:
    """A decoded tree in the containers of `structure`."""
    kind, value = tree
    if kind == "bytes":
        return type(structure).from_bytes(value) if isinstance(structure, Serializable) else value
    if kind == "value":
        return value
    wanted = None if isinstance(structure, Serializable) else children_of(structure)
    if wanted is not None and list(wanted) != [key for key, _ in value]:
        have, want = ([str(key) for key in keys] for keys in (dict(value), wanted))
        raise TypeMismatch(
            f"{path}: the saved program state has other parts than the given structure\n"
            f"  saved  has    {', '.join(have) or 'none'}\n  given  wants  {', '.join(want) or 'none'}"
        )
    parts = [_structure(part, f"{path}/{key}", None if wanted is None else wanted[key]) for key, part in value]
    if wanted is not None:
        return with_children(structure, parts)
    if kind in ("list", "tuple"):
        return parts if kind == "list" else tuple(parts)
    return {key: part for (key, _), part in zip(value, parts, strict=True)}
