"""Keras' callbacks in a training, called by Keras' own `CallbackList`.

A round is an epoch to them. The server sees no batches, so callbacks with hooks for batches are refused.
"""

import contextlib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from fedcore.context import NON_FINITE_CLIENTS
from fedcore.errors import InvalidValue
from fedcore.graphs import private_api, private_api_keras
from fedcore.learning.models.model_weights import ModelWeights
from fedcore.learning.programs.callback import Callback

_K = keras.callbacks
_BATCH_HOOKS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
_TEST_HOOKS = ("on_test_begin", "on_test_end", "on_test_batch_begin", "on_test_batch_end")
_REPLACEMENTS: tuple[tuple[type, str], ...] = (
    (_K.BackupAndRestore, "train(directory=…), which writes checkpoints and resumes from them"),
    (_K.ProgbarLogger, "train(progress=True)"),
    (
        _K.SwapEMAWeights,
        "keras.optimizers.SGD(use_ema=True) for the clients, who end with the averages as their weights",
    ),
    (_K.OrbaxCheckpoint, "keras.callbacks.ModelCheckpoint for the model, train(directory=…) for the state"),
    (_K.ModelCheckpoint, 'save_freq="epoch", which is each round'),
    (_K.TensorBoard, 'update_freq="epoch" and write_steps_per_second=False'),
)
"""(A class of callbacks that do not run, or not with all settings; what the user writes instead), in order."""

_ATTRIBUTES_NOT_KEPT = ("params", "min_delta")  # Keras gives `min_delta` its sign anew, together with `monitor_op`


class KerasCallbacks(Callback):
    """Callbacks of Keras, for which a round is an epoch of one batch.

    Guarantees:
      - In each hook the Keras model has the weights of the training's state, and its optimizer the learning rate of
        the clients. What the hook changes of these goes into the state; `model.stop_training` ends the training.
      - What the callbacks' attributes hold in numbers, texts and arrays, and in lists, tuples and dicts of them, is
        part of a checkpoint.

    Types: `logs` are the loss and the metrics of the round and, with `val_`, of its evaluation: floats. A round whose
    clients' work is all not finite has a loss of NaN for `TerminateOnNaN`, and none for an epoch.

    Args:
        callbacks: those of Keras, which read logs and weights before or after an epoch.
    Raises:
        InvalidValue: a callback is called for each batch, or sets a learning rate that the process has not; or the
            process was built of no Keras model.
    """

    def __init__(self, callbacks: Sequence[keras.callbacks.Callback]) -> None:
        for callback in callbacks:
            _refuse_batch_hooks(callback)
        self._callbacks = list(callbacks)
        self._model: Any = None
        self._callback_list: Any = None
        self._first_attributes: list[dict] | None = None
        """For each callback its plain attributes at the beginning of the training, by name; None before it."""
        self._restored_attributes: list[Mapping] = []
        """For each callback the attributes that a checkpoint kept, by name; empty without a checkpoint."""

    def on_train_begin(self) -> None:
        pure: Any = self.training.process.pure_model
        self._model = getattr(pure, "keras_model", None)
        if self._model is None:
            names = ", ".join(type(callback).__name__ for callback in self._callbacks)
            raise InvalidValue(
                f"{names}: Keras' callbacks are given the Keras model that the process was built of, but this process "
                "was built of none\n  fix: build it of fc.learning.from_keras_model, or write a "
                "fc.learning.programs.Callback"
            )
        if not hasattr(self._model, "optimizer"):
            self._model.optimizer = None
        self._check_rate_setters()
        pure.build_compiled_metrics()
        self._model.stop_training = False
        self._callback_list = _K.CallbackList(
            self._callbacks, model=self._model, epochs=self.training.rounds, steps=1, verbose=0
        )
        with self._model_of_state():
            self._callback_list.on_train_begin()
        self._first_attributes = [_plain_attributes(callback) for callback in self._callbacks]
        for callback, attributes in zip(self._callbacks, self._restored_attributes, strict=False):  # may be empty
            vars(callback).update(attributes)

    def _check_rate_setters(self) -> None:
        """Refuses callbacks that set the learning rate of an optimizer, which the model does not have."""
        setters = [c for c in self._callbacks if isinstance(c, _K.ReduceLROnPlateau | _K.LearningRateScheduler)]
        if setters and self._model.optimizer is None:
            raise InvalidValue(
                f"{type(setters[0]).__name__} sets model.optimizer.learning_rate, but {self._model.name} has no "
                "optimizer\n  fix: model.compile(optimizer=…), or fc.learning.programs.LearningRateScheduler"
            )

    @contextlib.contextmanager
    def _model_of_state(self) -> Iterator[None]:
        """Runs a hook: before it, the Keras model gets the state's weights and rate; after it, the state the model's.

        Raises:
            InvalidValue: the hook changed a learning rate that the process has not.
        """
        training, model = self.training, self._model
        weights = training.process.get_model_weights(training.state)
        weights.assign_weights_to(model)
        optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
        rate = None if optimizer is None else private_api_keras.learning_rate_variable(optimizer)
        hparams = training.process.get_hparams(training.state).get("client_work", {})
        if rate is not None and "learning_rate" in hparams:
            rate.assign(hparams["learning_rate"])
        old_rate = None if rate is None else float(rate.numpy())
        with warnings.catch_warnings():  # Keras 3.15 calls numpy 2.4 in an older way
            warnings.filterwarnings("ignore", "__array__ implementation doesn't", DeprecationWarning)
            yield
        new_weights = ModelWeights.from_model(model)
        if not all(map(_equal_arrays, _all_weights(weights), _all_weights(new_weights))):
            training.state = training.process.set_model_weights(training.state, new_weights)
        if rate is not None and float(rate.numpy()) != old_rate:
            if "learning_rate" not in hparams:
                raise InvalidValue(
                    f"a callback sets the learning rate of {model.name}'s optimizer, but the process has no "
                    "hyperparameter client_work.learning_rate, which is that of the clients' optimizer\n"
                    "  fix: fc.learning.programs.LearningRateScheduler sets other hyperparameters"
                )
            changes = {"client_work": {"learning_rate": float(rate.numpy())}}
            training.state = training.process.set_hparams(training.state, changes)
        training.stop_training = training.stop_training or bool(model.stop_training)

    def on_round_begin(self, round_number: int) -> None:
        with self._model_of_state():
            self._callback_list.on_epoch_begin(round_number - 1)
            self._callback_list.on_train_batch_begin(0)

    def on_round_end(self, round_number: int, logs: dict[str, Any]) -> None:
        metrics = _model_metrics(logs)
        trained = {name: value for name, value in metrics.items() if not name.startswith("val_")}
        if not trained and logs.get(NON_FINITE_CLIENTS):
            trained = {"loss": math.nan}
        with self._model_of_state():
            self._callback_list.on_train_batch_end(0, trained)
            self._callback_list.on_epoch_end(round_number - 1, metrics)

    def on_train_end(self) -> None:
        with self._model_of_state():
            self._callback_list.on_train_end()

    def get_state(self) -> Any:
        if self._first_attributes is None:
            return [(type(callback).__name__, {}) for callback in self._callbacks]
        pairs = zip(self._callbacks, self._first_attributes, strict=True)
        return [(type(callback).__name__, _changed_attributes(callback, start)) for callback, start in pairs]

    def set_state(self, state: Any) -> None:
        saved_names, names = [name for name, _ in state], [type(callback).__name__ for callback in self._callbacks]
        if saved_names != names:
            have, want = (", ".join(group) or "none" for group in (saved_names, names))
            raise InvalidValue(f"the checkpoint has states of Keras' callbacks {have}; those that are given are {want}")
        self._restored_attributes = [attributes for _, attributes in state]


def with_keras_callbacks(callbacks: Sequence[Any]) -> list[Callback]:
    """The callbacks of a training; those of Keras together, after the others.

    Raises:
        InvalidValue: a callback of Keras cannot be called.
    """
    keras_callbacks = [callback for callback in callbacks if isinstance(callback, _K.Callback)]
    others = [callback for callback in callbacks if not isinstance(callback, _K.Callback)]
    return [*others, KerasCallbacks(keras_callbacks)] if keras_callbacks else others


def _model_metrics(row: Mapping[str, Any]) -> dict[str, float]:
    """The model's metrics in a row, by name, also `val_…`; without those of no examples, which measure nothing."""

    def has_examples(name: str) -> bool:
        return row.get("val_num_examples" if name.startswith("val_") else "num_examples") != 0

    return {n: v for n, v in row.items() if isinstance(v, float) and "/" not in n and has_examples(n)}


def _refuse_batch_hooks(callback: keras.callbacks.Callback) -> None:
    """Refuses a callback that needs more than the logs and the weights of a round.

    Raises:
        InvalidValue: it is called for each batch, or in Keras' own validation.
    """
    name = type(callback).__name__
    hooks = [hook for hook in (*_BATCH_HOOKS, *_TEST_HOOKS) if _overrides(callback, hook)]
    if _is_by_epoch(callback) and all(private_api.is_defined_by_keras(getattr(callback, h)) for h in hooks):
        return
    instead = next((text for kind, text in _REPLACEMENTS if isinstance(callback, kind)), None)
    if instead is not None:
        raise InvalidValue(f"{name} does not run in a training of rounds\n  fix: {instead}")
    if not hooks:
        return
    if hooks[0] in _TEST_HOOKS:
        raise InvalidValue(
            f"{name} has {hooks[0]}, which fit calls in its validation; here clients evaluate\n"
            "  fix: on_epoch_end(epoch, logs), whose logs have the metrics val_… of evaluated rounds"
        )
    raise InvalidValue(
        f"{name} has {hooks[0]}, which fit calls for each batch; here clients take their batches in a graph, without "
        "Python\n  fix: on_epoch_begin(epoch) and on_epoch_end(epoch, logs), which are called for each round"
    )


def _overrides(callback: keras.callbacks.Callback, hook: str) -> bool:
    return hook in vars(callback) or getattr(type(callback), hook) is not getattr(_K.Callback, hook)


def _is_by_epoch(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback is one of Keras whose hooks for batches, with its settings, act once an epoch."""
    if isinstance(callback, _K.ModelCheckpoint):
        return callback.save_freq == "epoch"
    if isinstance(callback, _K.TensorBoard):
        return callback.update_freq == "epoch" and not callback.write_steps_per_second
    return isinstance(callback, _K.TerminateOnNaN)


def _plain_attributes(callback: keras.callbacks.Callback) -> dict[str, Any]:
    """The attributes that a checkpoint can hold, by name; containers are copied."""
    return {n: _copy_containers(v) for n, v in vars(callback).items() if n not in _ATTRIBUTES_NOT_KEPT and _is_plain(v)}


def _changed_attributes(callback: keras.callbacks.Callback, start: Mapping) -> dict[str, Any]:
    """The plain attributes that differ from those at the start, and all containers, by name."""

    def has_changed(name: str, value: Any) -> bool:
        is_container = isinstance(value, dict | list | tuple | np.ndarray)
        return is_container or name not in start or type(start[name]) is not type(value) or start[name] != value

    return {name: value for name, value in _plain_attributes(callback).items() if has_changed(name, value)}


def _is_plain(value: object) -> bool:
    """Whether a checkpoint can hold the value: a number, text, array or None, or a dict, list or tuple of them."""
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple):
        return type(value) in (list, tuple) and all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | np.ndarray | np.generic)


def _copy_containers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy_containers(child) for key, child in value.items()}
    if type(value) is tuple:
        return tuple(map(_copy_containers, value))
    return [_copy_containers(child) for child in value] if type(value) is list else value


def _all_weights(weights: ModelWeights) -> list:
    return [*weights.trainable, *weights.non_trainable]


def _equal_arrays(a: Any, b: Any) -> bool:
    return np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True)
