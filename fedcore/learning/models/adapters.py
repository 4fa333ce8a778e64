"""Models on a frozen base: files of the adapters alone and of the base, and adapters merged for export."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.graphs import private_api
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.learning.models.frozen_weights import (
    FrozenWeights,
    frozen_weights,
    join_weights,
    other_base,
    split_weights,
)
from fedcore.learning.models.functional_model import FunctionalModel
from fedcore.learning.models.held_variables import HoldsVariables
from fedcore.learning.models.model_weights import ModelWeights, weights_and_values
from fedcore.learning.models.pure_model import BatchOutput, PureModel
from fedcore.learning.models.traced import ModelFn, trace_model
from fedcore.program.safetensors_file import SafetensorsFile
from fedcore.whole_files import write_whole

_BASE, _ADAPTERS = "fedcore base", "fedcore adapters"


def save_adapters(
    model: ModelFn,
    weights: ModelWeights | Mapping[str, TensorStructure] | Sequence[TensorStructure],
    path: str | os.PathLike,
) -> None:
    """Writes the weights that training changes to a `.safetensors` file, with the digest of the frozen ones.

    Types: arrays `trainable.0`, `trainable.1`, …, then `assigned.0`, … for weights that training steps assign.

    Args:
        model: the model, or the `model_fn` that makes it.
        weights: of the model, with the frozen ones or without: `process.get_model_weights(state)`.
        path: the file; it is written whole.
    Raises:
        InvalidValue: the weights have other frozen weights than the model.
        OSError: the file cannot be written.
    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     fc.learning.models.save_adapters(model_fn, process.get_model_weights(state), f'{folder}/a.safetensors')
        ...     weights = fc.learning.models.load_adapters(model_fn, f'{folder}/a.safetensors')
    """
    traced = trace_model(model)
    metadata = {"format": _ADAPTERS, "base": traced.frozen_weights.digest}
    write_whole(path, SafetensorsFile(_changing_arrays(split_weights(traced, weights)), metadata))


def load_adapters(model: ModelFn, path: str | os.PathLike) -> ModelWeights:
    """Reads adapters that `save_adapters` wrote, and joins them with the model's own frozen weights.

    Types: all weights of the model, `model.weights_type`.

    Args:
        model: the model, or the `model_fn` that makes it, on the base that the adapters were trained on.
    Raises:
        InvalidValue: the adapters were trained on another base (the message has both digests), or the file holds no
            adapters of this model.
        OSError: the file cannot be read.
    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     fc.learning.models.save_adapters(model_fn, state.global_model_weights, f'{folder}/a.safetensors')
        ...     weights = fc.learning.models.load_adapters(model_fn, f'{folder}/a.safetensors')
        >>> state = process.set_model_weights(state, weights)
    """
    traced = trace_model(model)
    weights = traced.initial_changing_weights()
    expected = _changing_arrays(ModelWeights(*(tuple(map(np.asarray, part)) for part in weights)))
    arrays, base = _read_arrays(path, _ADAPTERS, expected)
    if base != traced.frozen_weights.digest:
        raise InvalidValue(other_base(traced.frozen_weights.digest, "the adapters were trained on", str(base)))
    groups: list[list[np.ndarray]] = [
        [array for name, array in arrays.items() if name.startswith(group)] for group in ("trainable.", "assigned.")
    ]
    return join_weights(traced, ModelWeights(*map(tuple, groups)))


def save_base(model: ModelFn, path: str | os.PathLike) -> None:
    """Writes the frozen weights of a model to a `.safetensors` file.

    Types: arrays `frozen.0`, `frozen.1`, …, in the order of the model's non-trainable weights.

    Args:
        model: the model, or the `model_fn` that makes it.
    Raises:
        InvalidValue: no weight is frozen.
        OSError: the file cannot be written.
    Example:
        >>> def lora_keras_model():
        ...     model = keras_model()
        ...     model.layers[0].enable_lora(1)
        ...     return model
        >>> def lora_model_fn():
        ...     return fc.learning.from_keras_model(lora_keras_model(), 'mse', client_a.element_spec)
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     fc.learning.models.save_base(lora_model_fn, f'{folder}/base.safetensors')
        ...     model = fc.learning.models.with_base(lora_model_fn, f'{folder}/base.safetensors')
    """
    base = trace_model(model).frozen_weights
    if not base.constants:
        raise InvalidValue("the model has no frozen weights, so there is no base to save")
    write_whole(path, SafetensorsFile(_frozen_arrays(base), {"format": _BASE, "base": base.digest}))


def with_base(model: ModelFn, base: str | os.PathLike | keras.Model | ModelWeights) -> PureModel:
    """The model with other frozen weights, such as those of a pretrained model; usable wherever a `model_fn` is wanted.

    Types: those of the model.

    Args:
        model: the model, or the `model_fn` that makes it.
        base: a file that `save_base` wrote; or a Keras model of the same architecture, or a `ModelWeights` of it, of
            which the frozen weights are taken.
    Raises:
        InvalidValue: the base has other shapes than the model's frozen weights, or the file holds no base.
        TypeMismatch: `base` is none of these.
        OSError: the file cannot be read.
    Example:
        >>> def lora_keras_model():
        ...     model = keras_model()
        ...     model.layers[0].enable_lora(1)
        ...     return model
        >>> def lora_model_fn():
        ...     return fc.learning.from_keras_model(lora_keras_model(), 'mse', client_a.element_spec)
        >>> model = fc.learning.models.with_base(lora_model_fn, lora_keras_model())
        >>> process = fc.learning.algorithms.build_weighted_fed_avg(model, lambda: keras.optimizers.SGD(0.1))
    """
    traced = trace_model(model)
    if isinstance(base, str | os.PathLike):
        arrays, digest = _read_arrays(base, _BASE, _frozen_arrays(traced.frozen_weights))
        values = list(arrays.values())
        base_weights = frozen_weights(values)
        if base_weights.digest != digest:
            raise InvalidValue(
                f"{Path(base)} is damaged: it holds sha256:{base_weights.digest}, but names sha256:{digest}"
            )
        return _OnBase(traced, base_weights)
    weights = ModelWeights.from_model(base) if isinstance(base, keras.Model) else base
    if not isinstance(weights, ModelWeights):
        raise TypeMismatch(f"with_base: base is a file, a Keras model or a ModelWeights, not {brief(base)}")
    places = traced.weight_roles.frozen
    values = [np.array(w) for i, w in enumerate(weights.non_trainable) if i in places]
    have, want = ([(v.dtype.name, v.shape) for v in group] for group in (values, traced.frozen_weights.arrays))
    if have != want:
        raise InvalidValue(f"with_base: the base has other weights\n  base   {have}\n  model  {want}")
    return _OnBase(traced, frozen_weights(values))


def merge_adapters(keras_model: keras.Model, weights: ModelWeights | None = None) -> keras.Model:
    """Adds the adapters that Keras' `enable_lora` made to the kernels of a model, in place, for an export.

    Types: the model's variables keep their shapes.

    The layers then have no adapters: predictions are the same up to rounding, and files hold the merged kernels alone.
    Adapter layers of one's own stay as they are.

    Args:
        weights: put into the model before: `process.get_model_weights(state)`. Default: those that it has.
    Returns:
        The model.
    Raises:
        InvalidValue: the model has other weights.
    Example:
        >>> def lora_keras_model():
        ...     model = keras_model()
        ...     model.layers[0].enable_lora(1)
        ...     return model
        >>> model = fc.learning.models.merge_adapters(lora_keras_model())
        >>> any(layer.lora_enabled for layer in model.layers)
        False
    """
    if weights is not None:
        weights.assign_weights_to(keras_model)
    for layer in private_api.layers_within(keras_model):
        if getattr(layer, "lora_enabled", False):
            merged: dict = {}
            layer.save_own_variables(merged)  # Keras saves a kernel with its adapter added
            layer.load_own_variables(merged)
            layer.lora_enabled, layer.lora_rank = False, None
    return keras_model


def _changing_arrays(weights: ModelWeights) -> dict[str, np.ndarray]:
    """The changing weights by the names that they have in a file of adapters: `trainable.0`, `assigned.0`."""
    groups = {"trainable": tf.nest.flatten(weights.trainable), "assigned": weights.non_trainable}
    return {f"{group}.{i}": np.asarray(w) for group, values in groups.items() for i, w in enumerate(values)}


def _frozen_arrays(base: FrozenWeights) -> dict[str, np.ndarray]:
    """The frozen weights by the names that they have in a file of a base."""
    return {f"frozen.{i}": array for i, array in enumerate(base.arrays)}


def _read_arrays(
    path: str | os.PathLike, format_: str, expected: Mapping[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], str | None]:
    """Reads a file; returns its arrays in the order of `expected`, and the digest of the base that it names.

    Args:
        format_: `_BASE` or `_ADAPTERS`.
        expected: arrays of the names, dtypes and shapes that the file has to have.

    Raises:
        InvalidValue: the file has another format, or arrays of other names, dtypes or shapes.
    """
    import safetensors

    with Path(path).open("rb"):  # the error of a file that is not there
        pass
    try:
        with safetensors.safe_open(os.fspath(path), "np") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except safetensors.SafetensorError as error:
        raise InvalidValue(f"{Path(path)} is no file of safetensors: {error}") from None
    if metadata.get("format") != format_:
        raise InvalidValue(f"{Path(path)} holds {metadata.get('format', 'other arrays')}, not {format_}")
    read = {name: _view_as(arrays[name], like) for name, like in expected.items() if name in arrays}
    have, want = (
        ", ".join(f"{name} {a.dtype.name}{list(a.shape)}" for name, a in sorted(group.items()))
        for group in ({**arrays, **read}, expected)
    )
    if have != want:
        raise InvalidValue(
            f"{Path(path)} holds weights of another model\n  the file has   {have}\n  the model has  {want}"
        )
    return read, metadata.get("base")


def _view_as(array: np.ndarray, like: np.ndarray) -> np.ndarray:
    """The array; in the dtype and shape of `like`, if the file holds its bytes, since safetensors lacks its dtype."""
    is_bytes = array.dtype == np.uint8 and array.nbytes == like.nbytes and like.dtype != np.uint8
    return array.view(like.dtype).reshape(like.shape) if is_bytes else array


class _OnBase(HoldsVariables):
    """A model with other frozen weights; all else is the model's."""

    def __init__(self, model: PureModel, frozen: FrozenWeights) -> None:
        self._model = model
        self.batch_type = model.batch_type
        self.weights_type = model.weights_type
        self.weight_roles = model.weight_roles
        self.frozen_weights = frozen
        self.trainable_names = model.trainable_names
        self.trainable_paths = model.trainable_paths
        self.trainable_constraints = model.trainable_constraints
        self.optimizer = model.optimizer

    def initial_changing_weights(self) -> ModelWeights:
        return self._model.initial_changing_weights()

    def initial_metrics(self) -> dict:
        return self._model.initial_metrics()

    def step(
        self, weights: ModelWeights, metrics: dict, batch: TensorStructure, training: bool
    ) -> tuple[BatchOutput, tuple, dict]:
        return self._model.step(weights, metrics, batch, training)

    def forward(
        self, weights: ModelWeights, metrics: dict, batch: TensorStructure, training: bool
    ) -> tuple[BatchOutput, ModelWeights, dict]:
        return self._model.forward(weights, metrics, batch, training)

    def report_metrics(self, metrics: dict) -> dict:
        return self._model.report_metrics(metrics)

    def finalize_metrics(self, reported: dict) -> dict:
        return self._model.finalize_metrics(reported)

    def finalize_metric(self, reported: dict, name: str) -> TensorStructure:
        return self._model.finalize_metric(reported, name)

    @weights_and_values
    def initial_weights(self) -> ModelWeights:
        frozen = [tf.constant(array) for array in self.frozen_weights.arrays]
        return self.weight_roles.join(self.initial_changing_weights(), frozen)

    def _predictions(self, weights: ModelWeights, x: TensorStructure, training: bool) -> TensorStructure:
        return self._model.predict_on_batch(weights, x, training)


FunctionalModel.register(_OnBase)
