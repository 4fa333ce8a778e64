"""Models as files, which need none of the Python that made them."""

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from fedcore.computation import Computation, tf_computation
from fedcore.computation.files import computation_from
from fedcore.errors import FedcoreError, InvalidValue, TypeMismatch, brief
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.ir import bundle
from fedcore.learning.models.functional_model import FunctionalModel, inputs_type
from fedcore.learning.models.gradients import dense_gradients_of, with_gradients
from fedcore.learning.models.held_variables import HoldsVariables
from fedcore.learning.models.model_weights import ModelWeights, weights_and_values
from fedcore.learning.models.pure_model import BatchOutput, PureModel
from fedcore.learning.models.traced import ModelFn, trace_model
from fedcore.types import Type, explain, to_type
from fedcore.whole_files import write_whole

_FILE = "model.zip"
_PARTS = (
    "initial_weights",
    "initial_metrics",
    "train",
    "evaluate",
    "report",
    "finalize",
    "predict",
    "predict_training",
)


def save(
    model: ModelFn,
    path: str | os.PathLike,
    weights: ModelWeights | None = None,
    input_type: TensorStructure | Type | None = None,
) -> None:
    """Writes a model to a directory: graphs, and nothing of Python.

    The directory holds one file, an uncompressed zip of `.fed` files. It is written whole: after a crash, or where
    several processes save to one directory, it is one whole model.

    Types: a part of the file for each function of `PureModel`; the weights are of the model's type W.

    Args:
        model: a model of `fc.learning`, or a `model_fn` that makes one.
        path: the directory; made where there is none.
        weights: where the loaded model starts, such as `process.get_model_weights(state)`. Default: the model's
            initialisers are kept, not weights: each start from the loaded model draws its own, as with `model_fn`.
        input_type: the type of the inputs of `predict_on_batch`, X. Default: that of a batch's x, or of its first part.
    Raises:
        InvalidValue: the path is a file or empty, or weights of the model have constraints.
        TypeMismatch: the weights are those of another model, or the model does not take inputs of `input_type`.
        TracingError: `model` makes no model of `fc.learning`.
    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     fc.learning.models.save(model_fn, folder, fc.learning.ModelWeights.from_model(keras_model()))
        ...     process = fc.learning.algorithms.build_fed_eval(fc.learning.models.load(folder))
    """
    folder = _folder(path)
    if folder.exists() and not folder.is_dir():
        raise InvalidValue(f"{folder} is a file; a model is saved to a directory")
    traced = trace_model(model)
    inputs = inputs_type(traced.batch_type) if input_type is None else to_type(input_type)
    parts = {
        name: bundle.to_bytes(computation.module)
        for name, computation in _computations(traced, weights, inputs).items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / _FILE, _pack(parts))


def _folder(path: str | os.PathLike) -> Path:
    """The directory; the empty path would be the current one."""
    if not os.fspath(path):
        raise InvalidValue("path is empty; a model has a directory of its own")
    return Path(path)


def _pack(parts: dict[str, bytes]) -> bytes:
    """The bytes of the file; equal for equal parts, since `ZipInfo` has a fixed time."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as file:
        for name, data in parts.items():
            file.writestr(zipfile.ZipInfo(f"{name}.fed"), data)
    return out.getvalue()


def _unpack(path: Path) -> dict[str, bytes]:
    """The parts of a file by name.

    Raises:
        FedcoreError: the file holds something else.
    """
    expected = [f"{name}.fed" for name in _PARTS]
    try:
        with zipfile.ZipFile(path) as file:
            infos = file.infolist()
            size = path.stat().st_size
            plain = all(i.compress_type == zipfile.ZIP_STORED and not i.flag_bits & 1 for i in infos)
            if [i.filename for i in infos] != expected or not plain or sum(i.file_size for i in infos) > size:
                raise InvalidValue(f"{path} is no model: it holds other files than {', '.join(expected)}")
            return {name: file.read(f"{name}.fed") for name in _PARTS}
    except bundle.ZIP_ERRORS as error:
        if isinstance(error, FedcoreError):
            raise
        raise InvalidValue(f"{path} is no model that can be read: {error}") from None


def _start(model: PureModel, weights: ModelWeights | None) -> Computation:
    """The computation of the first weights: the model's initialisers, or the weights themselves."""
    initial = tf_computation(lambda: _parts_of(model.initial_weights()))
    if weights is None:
        return initial
    if not (hasattr(weights, "trainable") and hasattr(weights, "non_trainable")):
        raise TypeMismatch(
            "fc.learning.models.save: `weights` is a fc.learning.ModelWeights, such as "
            f"process.get_model_weights(state), not {brief(weights)}; the type of the inputs is `input_type=`"
        )
    values = ModelWeights(*(tuple(map(np.asarray, part)) for part in (weights.trainable, weights.non_trainable)))
    saved = tf_computation(lambda: tf.nest.map_structure(tf.constant, _parts_of(values)))
    have, want = saved.type_signature.result, initial.type_signature.result
    if have != want:
        raise TypeMismatch(explain("fc.learning.models.save: `weights` does not fit the model", have, want))
    return saved


def _computations(model: PureModel, weights: ModelWeights | None, inputs: Type) -> dict[str, Computation]:
    """The computations of `_PARTS` by name, over weights as tuples.

    Raises:
        InvalidValue: weights of the model have constraints.
    """
    if any(model.trainable_constraints):
        raise InvalidValue(
            "fc.learning.models.save keeps no constraints of weights, which training the saved model would leave out\n"
            "  fix: keras_model.save(path), and from_keras_model of keras.models.load_model(path)"
        )
    batch = model.batch_type
    initial_weights = _start(model, weights)
    initial_metrics = tf_computation(lambda: model.initial_metrics())
    weights_type, metrics = initial_weights.type_signature.result, initial_metrics.type_signature.result

    @tf_computation(weights_type, metrics, batch)
    def train(weights: tuple, metrics: dict, batch: TensorStructure) -> tuple:
        gradients, output, non_trainable, new_metrics = dense_gradients_of(
            model, ModelWeights(*weights), metrics, batch
        )
        return gradients, _output_parts(output), non_trainable, new_metrics

    @tf_computation(weights_type, metrics, batch)
    def evaluate(weights: tuple, metrics: dict, batch: TensorStructure) -> tuple:
        gradients, output, non_trainable, new_metrics = dense_gradients_of(
            model, ModelWeights(*weights), metrics, batch, training=False
        )
        return gradients, _output_parts(output), non_trainable, new_metrics

    report = tf_computation(metrics)(lambda state: model.report_metrics(state))
    finalize = tf_computation(report.type_signature.result)(lambda reported: model.finalize_metrics(reported))

    @tf_computation(weights_type, inputs)
    def predict(weights: tuple, x: TensorStructure) -> TensorStructure:
        return model.predict_on_batch(ModelWeights(*weights), x, training=False)

    @tf_computation(weights_type, inputs)
    def predict_training(weights: tuple, x: TensorStructure) -> TensorStructure:
        return model.predict_on_batch(ModelWeights(*weights), x, training=True)

    parts = (initial_weights, initial_metrics, train, evaluate, report, finalize, predict, predict_training)
    return dict(zip(_PARTS, parts, strict=True))


def _parts_of(weights: ModelWeights) -> tuple:
    """The weights as a tuple, since a process that loads the file may not know the class `ModelWeights`."""
    return tuple(weights.trainable), tuple(weights.non_trainable)


def _output_parts(output: BatchOutput) -> tuple:
    """(loss, predictions, number of examples); () in the place of no predictions, since None has no type."""
    return output.loss, () if output.predictions is None else output.predictions, output.num_examples


def load(path: str | os.PathLike, trusted: bool = False) -> PureModel:
    """Reads a model back: usable wherever a `model_fn` is wanted.

    Types: those of the model that was saved.

    Args:
        path: the directory that `save` wrote.
        trusted: as for `fc.load`. Default: False.
    Raises:
        FedcoreError: the path is empty, or the directory holds no model; or as for `fc.load`.
    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     fc.learning.models.save(model_fn, folder)
        ...     model = fc.learning.models.load(folder)
        >>> print(model.batch_type)
        <float32[?,2],float32[?,1]>
    """
    folder = _folder(path)
    if not (folder / _FILE).is_file():
        raise InvalidValue(f"{folder} holds no model: there is no {_FILE}")
    parts = _unpack(folder / _FILE)
    return _LoadedModel({name: computation_from(bundle.from_bytes(parts[name]), trusted) for name in _PARTS})


def save_functional_model(functional_model: PureModel, path: str | os.PathLike) -> None:
    """Writes a model of functions to a directory, in the one format of `save`.

    Types: those of `save`.

    Raises:
        InvalidValue: the path is a file or empty.
        TypeMismatch: `functional_model` is no model of functions.
    Example:
        >>> import tempfile
        >>> functional = fc.learning.models.functional_model_from_keras(
        ...     keras_model(), keras.losses.MeanSquaredError(), spec)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     fc.learning.models.save_functional_model(functional, folder)
        ...     model = fc.learning.models.load_functional_model(folder)
        >>> process = fc.learning.algorithms.build_fed_sgd(model)
    """
    if not isinstance(functional_model, PureModel):
        raise TypeMismatch(f"{brief(functional_model)} is no model of functions, such as a FunctionalModel")
    save(functional_model, path)


def load_functional_model(path: str | os.PathLike, trusted: bool = False) -> PureModel:
    """Reads back what `save_functional_model` or `save` wrote, as a model of functions: `load`.

    Types: those of the model that was saved.

    Raises:
        FedcoreError: as for `load`.
    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     fc.learning.models.save(model_fn, folder)
        ...     model = fc.learning.models.load_functional_model(folder)
        >>> model.predict_on_batch(model.initial_weights(), np.ones([3, 2], np.float32)).shape
        (3, 1)
    """
    return load(path, trusted)


class _LoadedModel(HoldsVariables):
    """A model of the computations that `_computations` makes."""

    def __init__(self, parts: dict[str, Computation]) -> None:
        self._parts: dict[str, Any] = parts
        self.batch_type = parts["train"].module.main.parameters[2].type

    @weights_and_values
    def initial_weights(self) -> ModelWeights:
        return ModelWeights(*self._parts["initial_weights"]())

    def initial_metrics(self) -> dict:
        return self._parts["initial_metrics"]()

    def step(
        self, weights: ModelWeights, metrics: dict, batch: TensorStructure, training: bool
    ) -> tuple[BatchOutput, tuple, dict]:
        run = self._parts["train" if training else "evaluate"]
        gradients, output, non_trainable, new_metrics = run(_parts_of(weights), metrics, batch)
        loss, predictions, count = output
        return (
            BatchOutput(with_gradients(loss, gradients, weights.trainable), predictions, count),
            non_trainable,
            new_metrics,
        )

    def _predictions(self, weights: ModelWeights, x: TensorStructure, training: bool) -> TensorStructure:
        return self._parts["predict_training" if training else "predict"](_parts_of(weights), x)

    def report_metrics(self, metrics: dict) -> dict:
        return self._parts["report"](metrics)

    def finalize_metrics(self, reported: dict) -> dict:
        return self._parts["finalize"](reported)


FunctionalModel.register(_LoadedModel)
