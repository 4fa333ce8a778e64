"""The task on federated Shakespeare: predicting the next character."""

import os

import keras
import tensorflow as tf

from fedcore.learning.baselines.task import BaselineTask, BaselineTaskDatasets, ClientSpec, Preprocess, evaluation_spec
from fedcore.learning.baselines.token_metrics import MaskedCategoricalAccuracy, NumTokensCounter
from fedcore.learning.models import from_keras_model
from fedcore.learning.models.pure_model import PureModel
from fedcore.scalars import whole_number
from fedcore.simulation.datasets import shakespeare

DEFAULT_SEQUENCE_LENGTH = 80
_CHARACTERS = "dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:\naeimquyAEIMQUY]!%)-159\r"
_PADDING, _UNKNOWN = 0, len(_CHARACTERS) + 1  # a character's token is its position in the list, from 1
_START, _END = len(_CHARACTERS) + 2, len(_CHARACTERS) + 3
VOCAB_LENGTH = len(_CHARACTERS) + 4
_TOKEN_OF_BYTE = [_CHARACTERS.find(chr(byte)) + 1 or _UNKNOWN for byte in range(256)]
_SHUFFLE_BUFFER = 50
_EVALUATION_BATCH = 32


def create_character_prediction_task(
    train_client_spec: ClientSpec,
    eval_client_spec: ClientSpec | None = None,
    sequence_length: int = DEFAULT_SEQUENCE_LENGTH,
    cache_dir: str | os.PathLike | None = None,
    use_synthetic_data: bool = False,
) -> BaselineTask:
    """Predicting each character of a snippet from those before it, by two recurrent layers.

    Types: a batch is `<int64[?,sequence_length],int64[?,sequence_length]>`: tokens, and the tokens after them. A
    snippet begins and ends with a token of its own, and is padded with 0 to whole sequences.

    Args:
        train_client_spec: how training clients read their data; `max_elements` counts snippets.
        eval_client_spec: how clients to evaluate do. Default: one pass in order, batches of 32.
        sequence_length: tokens of a sequence, at least 1.
        cache_dir: of `shakespeare.load_data`.
        use_synthetic_data: `shakespeare.get_synthetic()` in place of downloaded data, for tests.
    Raises:
        FedcoreError: `sequence_length` is out of range; or as for `shakespeare.load_data`.
    Source:
        McMahan et al. 2017, arXiv:1602.05629; Reddi et al. 2020, arXiv:2003.00295.
    Example:
        >>> spec = fc.simulation.baselines.ClientSpec(num_epochs=1, batch_size=10)
        >>> task = fc.simulation.baselines.shakespeare.create_character_prediction_task(spec, use_synthetic_data=True)
        >>> task.datasets.element_type_structure[0].shape[1]
        80
    """
    length = whole_number("sequence_length", sequence_length, at_least=1)
    train, test = (shakespeare.get_synthetic(),) * 2 if use_synthetic_data else shakespeare.load_data(cache_dir)

    def preprocess(spec: ClientSpec) -> Preprocess:
        def tokens(example: dict[str, tf.Tensor]) -> tf.Tensor:
            return _sequences(example["snippets"], length + 1)

        def batches(dataset: tf.data.Dataset) -> tf.data.Dataset:
            sequences = spec.elements_of(dataset, _SHUFFLE_BUFFER).map(tokens).unbatch()
            return sequences.batch(spec.batch_size).map(lambda batch: (batch[:, :-1], batch[:, 1:]))

        return batches

    datasets = BaselineTaskDatasets(
        train,
        test,
        train_preprocess_fn=preprocess(train_client_spec),
        eval_preprocess_fn=preprocess(evaluation_spec(eval_client_spec, _EVALUATION_BATCH)),
    )

    def model_fn() -> PureModel:
        return from_keras_model(
            _model(length),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            input_spec=datasets.element_type_structure,
            metrics=[NumTokensCounter([_PADDING]), MaskedCategoricalAccuracy([_PADDING])],
        )

    return BaselineTask(datasets, model_fn)


def _sequences(text: tf.Tensor, length: int) -> tf.Tensor:
    """The tokens of a text: `[sequences, length]`."""
    tokens = tf.gather(tf.constant(_TOKEN_OF_BYTE, tf.int64), tf.cast(tf.io.decode_raw(text, tf.uint8), tf.int32))
    tokens = tf.concat([[_START], tokens, [_END]], 0)
    return tf.reshape(tf.pad(tokens, [[0, -tf.size(tokens) % length]]), [-1, length])


def _model(length: int) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((length,)),
            keras.layers.Embedding(VOCAB_LENGTH, 8, mask_zero=True),
            keras.layers.LSTM(256, kernel_initializer="he_normal", return_sequences=True),
            keras.layers.LSTM(256, kernel_initializer="he_normal", return_sequences=True),
            keras.layers.Dense(VOCAB_LENGTH),
        ]
    )
