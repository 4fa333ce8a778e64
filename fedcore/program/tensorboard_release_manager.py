"""Values for TensorBoard."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.file_errors import as_os_errors
from fedcore.program.optional_packages import optional_package
from fedcore.program.release_manager import ReleaseManager
from fedcore.program.structures import leaves_with_names
from fedcore.program.type_variables import ReleasableStructure
from fedcore.program.value_reference import materialize_value


class TensorBoardReleaseManager(ReleaseManager[ReleasableStructure, int]):
    """Releases numbers as scalars and arrays of numbers as histograms of TensorBoard; leaves out everything else.

    A summary's name joins the leaf's keys by `/`; its step is the key of the release. What was released is in the file
    when `release` returns.

    Args:
        summary_dir: the directory that `tensorboard --logdir` gets; made where there is none.
        hparams: the settings that this was computed with, by name: numbers, texts, true or false. TensorBoard's tab
            HPARAMS shows them beside the metrics. Default: none.
    Raises:
        InvalidValue: `summary_dir` is empty, or tensorboard is not installed.
        TypeMismatch: a setting is of another kind.
        OSError: the directory cannot be written.
    """

    def __init__(self, summary_dir: str | os.PathLike, *, hparams: Mapping[str, Any] | None = None) -> None:
        if not os.fspath(summary_dir):
            raise InvalidValue("summary_dir is the path of a directory, not empty")
        optional_package("tensorboard", "TensorBoardReleaseManager", extra="tensorboard")  # tf.summary imports it
        import tensorflow as tf

        os.makedirs(summary_dir, exist_ok=True)
        self._path = os.fspath(summary_dir)
        with as_os_errors(self._path):
            self._writer = tf.summary.create_file_writer(self._path)
        if hparams:
            self._write_hparams(hparams)

    def _write_hparams(self, hparams: Mapping[str, Any]) -> None:
        """Writes the settings for the tab HPARAMS.

        Raises:
            TypeMismatch: a setting is no number, text, true or false.
        """
        from tensorboard.plugins.hparams import api

        for name, value in hparams.items():
            if not isinstance(value, bool | int | float | str):
                raise TypeMismatch(f"hparams[{name!r}] is a number, a text, true or false, not {brief(value)}")
        with as_os_errors(self._path), self._writer.as_default():
            api.hparams(dict(hparams))
            self._writer.flush()

    async def release(self, value: Any, key: int) -> None:
        """Writes the value's summaries.

        Raises:
            OSError: they cannot be written, such as on a full disk.
        """
        import tensorflow as tf

        value = await materialize_value(value)
        with as_os_errors(self._path), self._writer.as_default(step=key):
            for name, leaf in leaves_with_names(value):
                array = np.asarray(list(leaf.as_numpy_iterator()) if hasattr(leaf, "as_numpy_iterator") else leaf)
                if array.dtype.kind in "biuf":
                    (tf.summary.histogram if array.shape else tf.summary.scalar)(name, array)
            self._writer.flush()
