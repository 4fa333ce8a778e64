"""Writes the global model as a Keras file while it is trained."""

import contextlib
import os
import secrets
import warnings
from pathlib import Path
from typing import Any

from fedcore.errors import InvalidValue, NotFound, brief
from fedcore.learning.programs.callback import Callback
from fedcore.learning.programs.model_card import model_card
from fedcore.learning.programs.monitor import Monitor
from fedcore.scalars import whole_number
from fedcore.whole_files import write_whole


class ModelCheckpoint(Callback):
    """Writes the global model to a `.keras` file, and its `model_card` to a `.md` file beside it.

    To resume a training, give `train` a directory instead.

    Types: the model's variables are those of the process's weights.

    Args:
        filepath: may hold names of the logs in braces, as in `"model-{round:03d}-{val_loss:.2f}.keras"`.
        keras_model: a model of the same architecture; its weights are overwritten.
        monitor: the metric for `save_best_only`.
        save_best_only: whether only a better model is written.
        mode: as for `EarlyStopping`.
        save_freq: every how many rounds it is written.
    Raises:
        InvalidValue: the model has other variables, `filepath` does not end in .keras, its braces hold no names, the
            logs do not fit their formats, or `mode` is another word.
        NotFound: the rounds have no such metric, or a round that is written has none that `filepath` names. Where none
            is evaluated, one of the evaluation costs a warning at the end.
    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + '/{round}.keras'
        >>> write = fc.learning.programs.ModelCheckpoint(path, keras_model())
        >>> history = fc.learning.programs.train(process, data, 1, clients_per_round=2, callbacks=[write])
        >>> trained = keras.models.load_model(path.format(round=1))
    """

    def __init__(
        self,
        filepath: str | os.PathLike,
        keras_model: Any,
        monitor: str = "val_loss",
        save_best_only: bool = False,
        mode: str = "auto",
        save_freq: int = 1,
    ) -> None:
        self._path = os.fspath(filepath)
        if not self._path.endswith(".keras"):
            raise InvalidValue(f"ModelCheckpoint writes whole models, to a path that ends in .keras, not {filepath!r}")
        _check_template(self._path)
        self._model = keras_model
        self._monitor = Monitor(monitor, mode)
        self._best_only = save_best_only
        self._every = whole_number("save_freq", save_freq, at_least=1)

    def on_round_end(self, round_number: int, logs: dict[str, Any]) -> None:
        if self._best_only:
            value = self._monitor.value(logs)
            if value is None or not self._monitor.is_better(value, self._monitor.best):
                return
            self._monitor.best = value
        elif round_number % self._every:
            return
        path = self._path_of(logs)
        self.training.process.get_model_weights(self.training.state).assign_weights_to(self._model)
        self._write(path)
        write_whole(path.with_suffix(".md"), model_card(self.training, path.stem))

    def on_train_end(self) -> None:
        if self._best_only:
            self._monitor.check_was_there(self.training.history.rows)

    def _path_of(self, logs: dict[str, Any]) -> Path:
        """The path of a round's model, with the round's logs in the place of names in braces."""
        try:
            return Path(self._path.format_map(logs))
        except KeyError as error:
            raise NotFound(
                f"ModelCheckpoint: {self._path} names {error.args[0]}, but round {logs['round']} has "
                f"{', '.join(logs)}; with save_best_only and a monitor of val_… only evaluated rounds are written"
            ) from None
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            values = ", ".join(f"{name}={brief(value)}" for name, value in logs.items())
            raise InvalidValue(f"ModelCheckpoint: {self._path} does not fit {values}: {error}") from None

    def _write(self, path: Path) -> None:
        """Saves the model under another name first, so that a crash leaves no half of a file at the path."""
        path.parent.mkdir(parents=True, exist_ok=True)
        aside_path = path.with_name(f".{secrets.token_hex(16)}.keras")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # Keras 3.15 calls numpy 2.4 in an older way
                self._model.save(aside_path)
            write_whole(path, aside_path.read_bytes())
        finally:
            aside_path.unlink(missing_ok=True)

    def get_state(self) -> Any:
        return {"best": self._monitor.best}

    def set_state(self, state: Any) -> None:
        self._monitor.best = state["best"]


class _AnyValue(float):
    """Stands for a value of the logs: a number, whole or not, a text, or a list of them."""

    def __format__(self, code: str) -> str:
        for sample in (0, ""):
            with contextlib.suppress(ValueError):
                return format(sample, code)
        return super().__format__(code)

    def __getitem__(self, index: Any) -> "_AnyValue":
        return self


class _AnyLogs(dict):
    """Logs that have every name."""

    def __missing__(self, name: str) -> _AnyValue:
        return _AnyValue()


def _check_template(path: str) -> None:
    """Refuses a path whose braces no round can fill.

    Raises:
        InvalidValue: its braces hold no names, their format is none, or a brace has no other.
    """
    try:
        path.format_map(_AnyLogs())
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise InvalidValue(
            f"ModelCheckpoint: braces of the path hold names of the logs, as in model-{{round:03d}}.keras, not as in "
            f"{path}: {error}\n  a brace of the path itself is doubled: {{{{"
        ) from None
