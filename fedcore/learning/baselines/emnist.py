"""Tasks on federated EMNIST: recognizing characters, and an autoencoder of them."""

import enum
import os
from collections.abc import Callable

import keras
import tensorflow as tf

from fedcore.errors import InvalidValue
from fedcore.learning.baselines.task import BaselineTask, BaselineTaskDatasets, ClientSpec, Preprocess, evaluation_spec
from fedcore.learning.models import from_keras_model
from fedcore.learning.models.pure_model import PureModel
from fedcore.simulation.datasets import emnist

_SHUFFLE_BUFFER = 418  # examples of the client with the most
_EVALUATION_BATCH = 64


class CharacterRecognitionModel(enum.Enum):
    """The models that recognize characters."""

    CNN_DROPOUT = "cnn_dropout"
    CNN = "cnn"
    TWO_LAYER_DNN = "2nn"


def create_character_recognition_task(
    train_client_spec: ClientSpec,
    eval_client_spec: ClientSpec | None = None,
    model_id: str | CharacterRecognitionModel = "cnn_dropout",
    only_digits: bool = False,
    cache_dir: str | os.PathLike | None = None,
    use_synthetic_data: bool = False,
    debug_seed: int | None = None,
) -> BaselineTask:
    """Classifying images of digits, or of digits and letters.

    Types: a batch is `<float32[?,28,28,1],int32[?]>`.

    Args:
        train_client_spec: how training clients read their data.
        eval_client_spec: how clients to evaluate do. Default: one pass in order, batches of 64.
        model_id: `cnn_dropout`, a convolutional network with dropout; `cnn`, that of the source; or `2nn`, two hidden
            layers of 200 units.
        only_digits: ten classes instead of 62.
        cache_dir: of `emnist.load_data`.
        use_synthetic_data: `emnist.get_synthetic()` in place of downloaded data, for tests.
        debug_seed: seed of shuffles and initial weights. Default: the call's.
    Raises:
        FedcoreError: there is no such model; or as for `emnist.load_data`.
    Source:
        McMahan et al. 2017, arXiv:1602.05629, for `cnn` and `2nn`; Reddi et al. 2020, arXiv:2003.00295, for
        `cnn_dropout`.
    Example:
        >>> spec = fc.simulation.baselines.ClientSpec(num_epochs=1, batch_size=10)
        >>> task = fc.simulation.baselines.emnist.create_character_recognition_task(spec, use_synthetic_data=True)
        >>> task.datasets.element_type_structure[1].shape.rank
        1
    """
    try:
        model = CharacterRecognitionModel(model_id)
    except ValueError:
        names = ", ".join(repr(m.value) for m in CharacterRecognitionModel)
        raise InvalidValue(f"model_id is one of {names}, not {model_id!r}") from None
    datasets = _datasets(
        train_client_spec, eval_client_spec, _image_and_label, only_digits, cache_dir, use_synthetic_data, debug_seed
    )

    def model_fn() -> PureModel:
        return from_keras_model(
            _MODELS[model](10 if only_digits else 62, _Initializers(debug_seed)),
            loss=keras.losses.SparseCategoricalCrossentropy(),
            input_spec=datasets.element_type_structure,
            metrics=[keras.metrics.SparseCategoricalAccuracy()],
        )

    return BaselineTask(datasets, model_fn)


def create_autoencoder_task(
    train_client_spec: ClientSpec,
    eval_client_spec: ClientSpec | None = None,
    only_digits: bool = False,
    cache_dir: str | os.PathLike | None = None,
    use_synthetic_data: bool = False,
) -> BaselineTask:
    """Compressing images of characters to 30 numbers and back; ink is 1.0.

    Types: a batch is `<float32[?,784],float32[?,784]>`.

    Args:
        train_client_spec, eval_client_spec, only_digits, cache_dir, use_synthetic_data: as for
            `create_character_recognition_task`.
    Raises:
        FedcoreError: as for `emnist.load_data`.
    Source:
        Reddi et al. 2020, arXiv:2003.00295.
    Example:
        >>> spec = fc.simulation.baselines.ClientSpec(num_epochs=1, batch_size=10)
        >>> task = fc.simulation.baselines.emnist.create_autoencoder_task(spec, use_synthetic_data=True)
        >>> task.datasets.element_type_structure[0].shape[1]
        784
    """
    datasets = _datasets(
        train_client_spec, eval_client_spec, _image_twice, only_digits, cache_dir, use_synthetic_data, None
    )

    def model_fn() -> PureModel:
        return from_keras_model(
            _autoencoder(),
            loss=keras.losses.MeanSquaredError(),
            input_spec=datasets.element_type_structure,
            metrics=[keras.metrics.MeanSquaredError(), keras.metrics.MeanAbsoluteError()],
        )

    return BaselineTask(datasets, model_fn)


def _datasets(
    train_spec: ClientSpec,
    eval_spec: ClientSpec | None,
    to_batch: Callable[[dict[str, tf.Tensor]], tuple[tf.Tensor, tf.Tensor]],
    only_digits: bool,
    cache_dir: str | os.PathLike | None,
    synthetic: bool,
    seed: int | None,
) -> BaselineTaskDatasets:
    train, test = (emnist.get_synthetic(),) * 2 if synthetic else emnist.load_data(only_digits, cache_dir)

    def preprocess(spec: ClientSpec) -> Preprocess:
        return lambda d: spec.elements_of(d, _SHUFFLE_BUFFER, seed).batch(spec.batch_size).map(to_batch)

    return BaselineTaskDatasets(
        train,
        test,
        train_preprocess_fn=preprocess(train_spec),
        eval_preprocess_fn=preprocess(evaluation_spec(eval_spec, _EVALUATION_BATCH)),
    )


def _image_and_label(batch: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.expand_dims(batch["pixels"], -1), batch["label"]


def _image_twice(batch: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    ink = 1 - tf.reshape(batch["pixels"], [-1, 28 * 28])
    return ink, ink


class _Initializers:
    """Glorot's uniform initializer for one layer after another, each with a seed of its own."""

    def __init__(self, seed: int | None) -> None:
        self._seed = seed

    def __call__(self) -> keras.initializers.Initializer:
        if self._seed is None:
            return keras.initializers.GlorotUniform()
        self._seed += 1
        return keras.initializers.GlorotUniform(self._seed)


def _cnn_dropout(classes: int, start: _Initializers) -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu", kernel_initializer=start()),
            layers.Conv2D(64, 3, activation="relu", kernel_initializer=start()),
            layers.MaxPooling2D(2),
            layers.Dropout(0.25),
            layers.Flatten(),
            layers.Dense(128, activation="relu", kernel_initializer=start()),
            layers.Dropout(0.5),
            layers.Dense(classes, activation="softmax", kernel_initializer=start()),
        ]
    )


def _cnn(classes: int, start: _Initializers) -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 5, padding="same", activation="relu", kernel_initializer=start()),
            layers.MaxPooling2D(2, padding="same"),
            layers.Conv2D(64, 5, padding="same", activation="relu", kernel_initializer=start()),
            layers.MaxPooling2D(2, padding="same"),
            layers.Flatten(),
            layers.Dense(512, activation="relu", kernel_initializer=start()),
            layers.Dense(classes, activation="softmax", kernel_initializer=start()),
        ]
    )


def _two_hidden_layers(classes: int, start: _Initializers) -> keras.Model:
    layers = keras.layers
    hidden = [layers.Dense(200, activation="relu", kernel_initializer=start()) for _ in range(2)]
    last = layers.Dense(classes, activation="softmax", kernel_initializer=start())
    return keras.Sequential([keras.Input((28, 28, 1)), layers.Flatten(), *hidden, last])


def _autoencoder() -> keras.Model:
    encoder = [keras.layers.Dense(units, activation="sigmoid") for units in (1000, 500, 250)]
    code = keras.layers.Dense(30, activation="linear")
    decoder = [keras.layers.Dense(units, activation="sigmoid") for units in (250, 500, 1000, 784)]
    return keras.Sequential([keras.Input((784,)), *encoder, code, *decoder])


_MODELS = {
    CharacterRecognitionModel.CNN_DROPOUT: _cnn_dropout,
    CharacterRecognitionModel.CNN: _cnn,
    CharacterRecognitionModel.TWO_LAYER_DNN: _two_hidden_layers,
}
