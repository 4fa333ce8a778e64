"""Pickles in which plans and arrays are names by digest, so that each place receives them once.

Decision 0165.
"""

import hashlib
import io
import itertools
import pickle
from collections.abc import Callable, Container, Mapping
from typing import Any

import attrs
import numpy as np
import tensorflow as tf

from fedcore.errors import ExecutionError
from fedcore.graphs.tensors.identity_cache import IdentityCache
from fedcore.ir import Module
from fedcore.ir.bundle import from_bytes
from fedcore.runtime.client_slice import ClientSlice

SMALL_BYTES = 1024
"""Arrays of fewer bytes travel in the pickle itself."""

MAX_DIGESTS = 4096
"""Number of tensors whose digests are cached."""


@attrs.frozen
class Parcel:
    """A pickled object.

    Args:
        data: the pickle; plans, and arrays that have names, are digests in it.
        buffers: memory that the pickle refers to, of arrays without names; at least `SMALL_BYTES` each, uint8.
        names: digests of the arrays and tensors that are names in the pickle.
        arrays: digest -> array, of the arrays among `names` that travel with the parcel.
    """

    data: bytes
    buffers: list[np.ndarray]
    names: list[str]
    arrays: dict[str, np.ndarray]

    def __reduce__(self) -> tuple[type["Parcel"], tuple]:
        return Parcel, (self.data, self.buffers, self.names, self.arrays)

    def without(self, digests: Container[str]) -> "Parcel":
        """The parcel without the arrays of these digests, which the receiver has."""
        return attrs.evolve(self, arrays={d: a for d, a in self.arrays.items() if d not in digests})


def pack(value: Any, *, names_arrays: bool = False) -> Parcel:
    """Pickles an object.

    Args:
        names_arrays: plans, arrays and tensors become names, their digests, as for clients' data and weights that
            several rounds read. Else they are in the pickle and its buffers.
    """
    buffers: list[np.ndarray] = []
    arrays: dict[str, np.ndarray] = {}
    stream = io.BytesIO()

    def travels_inside(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < SMALL_BYTES:
            return True
        buffers.append(np.frombuffer(raw, np.uint8))
        return False

    pickler = (_Pickler if names_arrays else pickle.Pickler)(stream, protocol=5, buffer_callback=travels_inside)
    if isinstance(pickler, _Pickler):
        pickler.arrays = arrays
    pickler.dump(value)
    return Parcel(stream.getvalue(), buffers, list(arrays), arrays)


def pack_clients(clients: ClientSlice) -> Parcel:
    """Packs a run, with arrays by digest."""
    types = set(map(type, itertools.chain.from_iterable(clients.values)))
    return pack(clients, names_arrays=not types <= _ATOMS)  # the pickler of names calls Python for each object


def unpack(
    parcel: Parcel,
    *,
    plan: Callable[[str], Module] | None = None,
    arrays: Mapping[str, np.ndarray] | None = None,
    tensor: Callable[[str], tf.Tensor] | None = None,
) -> Any:
    """The object of a parcel.

    Args:
        plan: digest -> plan; needed if the pickle has names of plans.
        arrays: digest -> array; needed if the pickle has names of arrays.
        tensor: digest -> tensor; by default makes a tensor of the array.
    """
    if tensor is None and arrays is not None:

        def tensor(digest: str) -> tf.Tensor:
            return tf.convert_to_tensor(arrays[digest])

    unpickler = _Unpickler(io.BytesIO(parcel.data), buffers=parcel.buffers)
    unpickler.objects = {"plan": plan, "array": None if arrays is None else arrays.__getitem__, "tensor": tensor}
    return unpickler.load()


class _Pickler(pickle.Pickler):
    """Pickles plans, large arrays and large tensors as names (kind, digest).

    Attributes:
        arrays: digest -> array, of the arrays and tensors that became names.
    """

    arrays: dict[str, np.ndarray]

    def persistent_id(self, value: Any) -> tuple[str, str] | None:
        """The name of an object, as `pickle` asks for it; None for an object that is pickled itself."""
        if type(value) in _PLAIN:  # most of the objects
            return None
        if isinstance(value, Module):
            return "plan", value.digest()
        if type(value) is np.ndarray and not value.dtype.hasobject and value.nbytes >= SMALL_BYTES:
            digest = array_digest(value)
            self.arrays[digest] = value
            return "array", digest
        if isinstance(value, tf.Tensor) and _is_large(value):
            digest = _digests.get("digest", [value], lambda: array_digest(value.numpy()))
            self.arrays[digest] = value.numpy()
            return "tensor", digest
        return None


_ATOMS = {str, int, float, bool, type(None), bytes}
_PLAIN = {*_ATOMS, tuple, list, dict}


def _is_large(tensor: tf.Tensor) -> bool:
    """Whether a tensor has a numpy array of `SMALL_BYTES` or more."""
    if not tensor.dtype.is_numpy_compatible or tensor.dtype == tf.string:
        return False
    return tensor.shape.num_elements() * tensor.dtype.size >= SMALL_BYTES


_digests: IdentityCache[str] = IdentityCache(MAX_DIGESTS)


class _Unpickler(pickle.Unpickler):
    """Replaces the names of a `_Pickler` by their objects.

    Attributes:
        objects: kind of a name -> function from a digest to the object.
    """

    objects: dict[str, Any]

    def persistent_load(self, name: tuple[str, str]) -> Any:
        kind, digest = name
        return self.objects[kind](digest)


def array_digest(array: np.ndarray) -> str:
    """The digest of an array's type, shape and content."""
    content = hashlib.blake2b(f"{array.dtype.str}{array.dtype.name}{array.shape}".encode(), digest_size=20)
    content.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return content.hexdigest()


def checked_plan(data: bytes, digest: str) -> Module:
    """The plan that bytes hold, after a check that it is the plan that the driver compiled.

    Raises:
        ExecutionError: the plan has another digest than `digest`.
    """
    plan = from_bytes(data)
    if plan.digest() != digest:
        raise ExecutionError(f"a plan arrived with the digest {plan.digest()}, but the driver compiled {digest}")
    return plan
