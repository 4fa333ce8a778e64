"""Values as SavedModels."""

import contextlib
import itertools
import os
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.file_errors import as_os_errors
from fedcore.program.release_manager import ReleasedValueNotFoundError, ReleaseManager
from fedcore.program.structures import leaves_with_names, map_leaves
from fedcore.program.type_variables import Key, ReleasableStructure
from fedcore.program.value_reference import materialize_value

if TYPE_CHECKING:
    import tensorflow as tf

_OPERATIONS = {"Placeholder", "Const", "Identity", "NoOp"}
"""The operations of a function that gives released values."""


class SavedModelFileReleaseManager(ReleaseManager[ReleasableStructure, Key]):
    """Releases each value to a directory of its own, as a SavedModel.

    Guarantees:
      - A directory of the name of a key holds a whole SavedModel, also after a crash of the program.

    Args:
        root_dir: the directory of the directories; made where there is none.
        prefix: beginning of the directories' names; the key follows.
    Raises:
        InvalidValue: `root_dir` is empty.
    """

    def __init__(self, root_dir: str | os.PathLike, prefix: str = "release_") -> None:
        if not os.fspath(root_dir):
            raise InvalidValue("root_dir is the path of a directory, not empty")
        self._root = Path(root_dir)
        self._root.mkdir(parents=True, exist_ok=True)
        self._prefix = prefix

    def _path(self, key: Any) -> Path:
        return self._root / f"{self._prefix}{key}"

    async def release(self, value: Any, key: Any) -> None:
        """Writes a value; a value that was released under the key before is replaced.

        Raises:
            TypeMismatch: a leaf is neither a tensor nor None.
            OSError: it cannot be written, such as on a full disk.
        """
        import tensorflow as tf

        value = await materialize_value(value)
        module = tf.Module()
        module.leaves = [_tensor(name, leaf) for name, leaf in leaves_with_names(value) if leaf is not None]
        numbers = itertools.count()
        indices = map_leaves(
            lambda leaf: None if leaf is None else next(numbers), value
        )  # of leaves, in `module.leaves`

        def leaf_at(index: int | None) -> "tf.Tensor | None":
            return None if index is None else tf.identity(module.leaves[index])

        module.value = tf.function(lambda: map_leaves(leaf_at, indices), [])
        aside, old = (self._root / f".{secrets.token_hex(16)}.partial" for _ in range(2))
        try:
            with as_os_errors(self._path(key)):
                tf.saved_model.save(module, os.fspath(aside))
            with contextlib.suppress(FileNotFoundError):
                os.replace(self._path(key), old)  # only an empty directory is replaced, and none is removed at once
            os.replace(aside, self._path(key))
        finally:
            shutil.rmtree(aside, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)

    async def get_value(self, key: Any) -> Any:
        """The value of a key, in numpy arrays and the containers of TensorFlow: lists, tuples, dicts.

        Raises:
            ReleasedValueNotFoundError: nothing was released under the key.
            InvalidValue: something else is there, such as a graph that reads files.
        """
        import tensorflow as tf

        if not self._path(key).is_dir():
            raise ReleasedValueNotFoundError(key)
        loaded = tf.saved_model.load(os.fspath(self._path(key)))
        functions = getattr(getattr(loaded, "value", None), "concrete_functions", ())
        operations = {operation.type for function in functions for operation in function.graph.get_operations()}
        if not functions or not operations <= _OPERATIONS:
            more = ", ".join(sorted(operations - _OPERATIONS)) or "no value"
            raise InvalidValue(f"{self._path(key)} was not released by a SavedModelFileReleaseManager: it holds {more}")
        return tf.nest.map_structure(lambda leaf: None if leaf is None else leaf.numpy(), loaded.value())


def _tensor(name: str, leaf: Any) -> "tf.Tensor":
    """The leaf of this name as a tensor.

    Raises:
        TypeMismatch: it cannot be one.
    """
    import tensorflow as tf

    try:
        return tf.constant(leaf)
    except (ValueError, TypeError):
        raise TypeMismatch(f"{name}: {brief(leaf)} is no tensor") from None
