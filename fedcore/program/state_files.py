"""A structure as arrays, which stand in safetensors files, and a JSON manifest of the rest and the checksums.

The manifest is `{"checksum": …, "content": {"format": 2, "version": …, "tensors": …, "shared": …, "dtypes": …, "tree":
…}}`. Its checksum is the SHA-256 of the content as it is written. `tensors` has the SHA-256 and the size of the state's
own file. `shared` has for each file that other states have too, in the order of their numbers from 1, its SHA-256, its
size, and `names`: the names of arrays in the state and in the file. Format 1 has no `shared`. A tree is a list: the
kind of a node, and its parts or its value.

Decision 0129.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import ml_dtypes
import numpy as np

from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.program.safetensors_file import Digest
from fedcore.program.serializable import Serializable
from fedcore.program.stored_arrays import SharedFile
from fedcore.program.structures import children_of, with_children
from fedcore.site_value import SiteValue
from fedcore.types import fields_of
from fedcore.types.immutable_arrays import immutable

FORMAT, OLDEST_FORMAT = 2, 1  # that is written, and the oldest that is read
MAX_DEPTH = 150  # far from Python's limit of recursion, which ends a program
STRUCTURES = {"record", "dict", "list", "tuple"}
"""Kinds of nodes of a tree that have parts; a record is a named tuple, or an object of attrs or of a dataclass."""


class Damaged(Exception):
    """The bytes are not those that were written."""


@attrs.frozen
class StateParts:
    """A structure taken apart: nothing in it changes any more.

    Args:
        arrays: by name; arrays that could be written to are copies.
        tree: the rest of the structure, ready for JSON.
    """

    arrays: Mapping[str, np.ndarray]
    tree: list


def take_apart(state: Any) -> StateParts:
    """The parts of a structure.

    Raises:
        TypeMismatch: a leaf is neither an array, a number, a text nor None; the message names it.
    """
    arrays: dict[str, np.ndarray] = {}
    tree = _tree(state, "state", arrays)
    return StateParts(arrays, tree)


def manifest_of(parts: StateParts, version: int, own: Digest, shared: Sequence[SharedFile] = ()) -> bytes:
    """The manifest of a state.

    Args:
        own: digest of the file with the arrays that are not in `shared`.
        shared: the files that other states have too, in the order of their numbers.
    """
    content = {
        "format": FORMAT,
        "version": version,
        "tensors": _digest_entry(own),
        "shared": [{**_digest_entry(part.file.digest), "names": dict(part.names)} for part in shared],
        "dtypes": {name: [array.dtype.name, list(array.shape)] for name, array in parts.arrays.items()},
        "tree": parts.tree,
    }
    return _manifest(content)


def checksums(content: Mapping[str, Any]) -> list[str]:
    """The SHA-256 of each file of a checked manifest, by its number: 0 is the state's own."""
    return [entry["sha256"] for entry in (content["tensors"], *content.get("shared", []))]


def sizes_bytes(content: Mapping[str, Any]) -> list[int]:
    """The size of each file of a checked manifest, by its number."""
    return [entry["bytes"] for entry in (content["tensors"], *content.get("shared", []))]


def texts_of(content: Mapping[str, Any], name: str) -> dict[str, str]:
    """The texts of a dict in the state of a checked manifest, without its tensors; empty if it has no such dict."""
    try:
        _, parts = dict(content["tree"][-1])[name]
        return {key: value for key, (kind, value) in parts if kind == "value" and isinstance(value, str)}
    except (ValueError, LookupError, TypeError):
        return {}


def from_files(content: Mapping[str, Any], files: Sequence[bytes], structure: Any = None) -> Any:
    """Rebuilds a state in the containers of `structure`; without it, or where it has a leaf, in plain containers.

    Plain containers are lists, tuples and dicts.

    Args:
        content: as `check_manifest` gives it.
        files: the content of each file, by its number.
    Raises:
        Damaged: the files are not those of the manifest.
        TypeMismatch: the saved structure is another one; the message names the first difference.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        for data, checksum in zip(files, checksums(content), strict=True):
            if hashlib.sha256(data).hexdigest() != checksum:
                raise Damaged("the tensors have another checksum")
        stored = load(files[0])
        for data, entry in zip(files[1:], content.get("shared", []), strict=True):
            shared = load(data)
            stored |= {name: shared[stored_name] for name, stored_name in entry["names"].items()}
        arrays = {
            name: stored[name].view(dtype_named(dtype)).reshape(shape)
            for name, (dtype, shape) in content["dtypes"].items()
        }
        tree = _decode(content["tree"], arrays)
    except (ValueError, LookupError, TypeError, AttributeError, SafetensorError) as error:
        raise Damaged(f"the manifest is no manifest: {error}") from error
    return _structure(tree, "state", structure)


def restore(tree: list, arrays: Mapping[str, Any], structure: Any = None) -> Any:
    """The structure of a manifest's tree, in containers as those of `from_files`.

    Args:
        arrays: by their names in the tree; any objects with `[()]` may stand in for them.
    """
    return _structure(_decode(tree, arrays), "state", structure)


def check_manifest(manifest: bytes, version: int) -> dict:
    """The content of the manifest of a state that was saved as `version`.

    Raises:
        Damaged: it is not what was written.
        InvalidValue: another version of fedcore wrote it.
    """
    try:
        content = json.loads(manifest)["content"]
        is_intact = _manifest(content) == manifest  # `_manifest` writes the checksum of the content
        format_, saved_version, _ = content["format"], content["version"], checksums(content)
        if not all(type(size) is int and size >= 0 for size in sizes_bytes(content)):
            raise ValueError
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise Damaged("the manifest is no manifest") from error
    if not is_intact:
        raise Damaged("the manifest has another checksum")
    if format_ not in range(OLDEST_FORMAT, FORMAT + 1):
        raise InvalidValue(
            f"the program state has format {brief(format_)}; this version of fedcore reads {OLDEST_FORMAT} to {FORMAT}"
        )
    if saved_version != version:
        raise Damaged(f"the manifest is that of version {brief(saved_version)}")
    return content


def _manifest(content: dict) -> bytes:
    """The manifest of a content, with the content's checksum."""
    text = json.dumps(content, separators=(",", ":"))
    checksum = hashlib.sha256(text.encode()).hexdigest()
    return f'{{"checksum":"{checksum}","content":{text}}}\n'.encode()


def _digest_entry(digest: Digest) -> dict[str, Any]:
    """The digest of a file as a manifest has it; `checksums` and `sizes_bytes` read it."""
    return {"sha256": digest.sha256, "bytes": digest.size_bytes}


def dtype_named(name: str) -> np.dtype:
    """The dtype of this name of numpy or of ml_dtypes, such as `bfloat16`."""
    return np.dtype(getattr(ml_dtypes, name, name))


def _tree(value: Any, path: str, arrays: dict[str, np.ndarray], depth: int = 0) -> list:
    """The tree of a value, ready for JSON. Its arrays go to `arrays`, and the tree has their names.

    | node | of |
    |---|---|
    | `[container, [[key, tree], …]]` | a structure; the container is one of `STRUCTURES` |
    | `["value", value]` | None, or a bool, number or text of Python |
    | `["bytes", base64]` | bytes, or a `Serializable` |
    | `["texts", shape, [["str", text] or ["bytes", base64], …]]` | an array of texts |
    | `["array", name]`, `["scalar", name]` | an array, a number of numpy |
    | `["site value", [site, source, path]]` | a `SiteValue` |

    Args:
        path: of the value in the state, such as `state/model/0`, which names arrays and values in messages.
    Raises:
        TypeMismatch: a leaf or a key cannot be saved, or the value nests too deep.
    """
    if depth > MAX_DEPTH:
        raise TypeMismatch(f"a saved program state nests at most {MAX_DEPTH} deep, not as {brief(path)}")
    if isinstance(value, Serializable):
        return ["bytes", _base64(value.to_bytes())]
    if isinstance(value, SiteValue):
        return ["site value", [value.site, value.source, list(value.path)]]
    fields, children = fields_of(value), children_of(value)
    if children is not None:
        parts = [[key, _tree(child, f"{path}/{key}", arrays, depth + 1)] for key, child in children.items()]
        if isinstance(value, Mapping) and not all(isinstance(key, str | int) for key in value):
            raise TypeMismatch(f"{path}: keys of a saved mapping are texts or whole numbers")
        return [_container(value, fields), parts]
    if value is None or (isinstance(value, bool | int | float | str) and not isinstance(value, np.generic)):
        return ["value", value]
    if isinstance(value, bytes):
        return ["bytes", _base64(value)]
    array = np.asarray(value)
    if array.dtype.kind in "OSU":
        return ["texts", list(array.shape), [_text_node(path, v) for v in array.ravel().tolist()]]
    if array.dtype.kind not in "biufcV" or array.dtype.hasobject or array.dtype.fields:
        raise TypeMismatch(f"{path}: {brief(value)} cannot be saved; take arrays, numbers, texts and None")
    name = _free_name(path, arrays)
    arrays[name] = immutable(array)
    return ["scalar" if isinstance(value, np.generic) else "array", name]


def _free_name(path: str, arrays: Mapping[str, np.ndarray]) -> str:
    """The path, or an extension of it: keys that hold `/`, or a number and its text, can give two leaves one path."""
    while path in arrays:
        path += "'"
    return path


def _container(value: Any, fields: Mapping | None) -> str:
    """The one of `STRUCTURES` that a structure is; `fields` are those of `fields_of(value)`."""
    if fields is not None:
        return "record"
    return "dict" if isinstance(value, Mapping) else "list" if isinstance(value, list) else "tuple"


def _text_node(path: str, value: Any) -> list:
    """An element of an array of texts: `["str", text]` or `["bytes", base64]`.

    Args:
        path: of the array in the state.
    Raises:
        TypeMismatch: it is no text.
    """
    if not isinstance(value, str | bytes):
        raise TypeMismatch(f"{path}: {brief(value)} cannot be saved; take arrays, numbers, texts and None")
    return ["str", value] if isinstance(value, str) else ["bytes", _base64(value)]


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decode(tree: list, arrays: Mapping[str, np.ndarray], depth: int = 0) -> list:
    """The tree of `_tree` with its leaves as values, each `["value", value]` or `["bytes", bytes]`.

    Bytes are told from values, since `structure` alone says whether they are a `Serializable`.

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
    if kind == "site value":
        site, source, path = value
        return ["value", SiteValue(site, source, tuple(path))]
    if kind == "texts":
        texts = [text if text_kind == "str" else base64.b64decode(text) for text_kind, text in value]
        return ["value", np.array(texts, dtype=object).reshape(tree[1])]
    if kind in ("array", "scalar"):
        return ["value", arrays[value] if kind == "array" else arrays[value][()]]
    if kind not in STRUCTURES:
        raise Damaged(f"the manifest is no manifest: {brief(kind)} is no kind of node")
    parts = {key: _decode(part, arrays, depth + 1) for key, part in value}
    return [kind, list(parts.items())]


def _structure(tree: list, path: str, structure: Any) -> Any:
    """The value of a tree of `_decode`, in containers as those of `from_files`.

    Raises:
        TypeMismatch: the tree has other keys than `structure`.
    """
    kind, value = tree
    if kind == "bytes":
        return type(structure).from_bytes(value) if isinstance(structure, Serializable) else value
    if kind == "value":
        return value
    children = None if isinstance(structure, Serializable) else children_of(structure)
    if children is not None and list(children) != [key for key, _ in value]:
        have, want = ([str(key) for key in keys] for keys in (dict(value), children))
        raise TypeMismatch(
            f"{path}: the saved program state has other parts than the given structure\n"
            f"  saved  has    {', '.join(have) or 'none'}\n  given  wants  {', '.join(want) or 'none'}"
        )
    parts = [_structure(part, f"{path}/{key}", None if children is None else children[key]) for key, part in value]
    if children is not None:
        return with_children(structure, parts)
    if kind in ("list", "tuple"):
        return parts if kind == "list" else tuple(parts)
    return {key: part for (key, _), part in zip(value, parts, strict=True)}
