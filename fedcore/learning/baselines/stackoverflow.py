"""Tasks on federated Stack Overflow: predicting tags, and the next word."""

import os
from collections.abc import Callable

import keras
import tensorflow as tf

from fedcore.learning.baselines.task import BaselineTask, BaselineTaskDatasets, ClientSpec, Preprocess, evaluation_spec
from fedcore.learning.baselines.token_metrics import MaskedCategoricalAccuracy, NumTokensCounter
from fedcore.learning.models import from_keras_model
from fedcore.learning.models.pure_model import PureModel
from fedcore.scalars import whole_number
from fedcore.simulation.datasets import ClientData, stackoverflow

DEFAULT_SEQUENCE_LENGTH = 20
DEFAULT_TAG_VOCAB_SIZE = 500
DEFAULT_WORD_VOCAB_SIZE = 10000
_SHUFFLE_BUFFER = 1000


def create_tag_prediction_task(
    train_client_spec: ClientSpec,
    eval_client_spec: ClientSpec | None = None,
    word_vocab_size: int = DEFAULT_WORD_VOCAB_SIZE,
    tag_vocab_size: int = DEFAULT_TAG_VOCAB_SIZE,
    cache_dir: str | os.PathLike | None = None,
    use_synthetic_data: bool = False,
) -> BaselineTask:
    """Predicting a question's tags from its words, by a logistic regression for each tag.

    Types: a batch is `<float32[?,words],float32[?,tags]>`: the share of each word among the known words of the sentence
    and the title, and 1 for each tag.

    Args:
        train_client_spec: how training clients read their data.
        eval_client_spec: how clients to evaluate do. Default: one pass in order, batches of 100.
        word_vocab_size, tag_vocab_size: how many of the most frequent words and tags are known, at least 1.
        cache_dir: of `stackoverflow.load_data`.
        use_synthetic_data: `stackoverflow.get_synthetic()` in place of downloaded data, for tests.
    Raises:
        FedcoreError: a size is out of range; or as for `stackoverflow.load_data`.
    Source:
        Reddi et al. 2020, arXiv:2003.00295.
    Example:
        >>> spec = fc.simulation.baselines.ClientSpec(num_epochs=1, batch_size=10)
        >>> task = fc.simulation.baselines.stackoverflow.create_tag_prediction_task(
        ...     spec, word_vocab_size=20, tag_vocab_size=3, use_synthetic_data=True)
        >>> task.datasets.element_type_structure[1].shape[1]
        3
    """
    known_words = whole_number("word_vocab_size", word_vocab_size, at_least=1)
    known_tags = whole_number("tag_vocab_size", tag_vocab_size, at_least=1)
    data, words = _data_and_words(known_words, cache_dir, use_synthetic_data)
    tag_counts = (
        stackoverflow.get_synthetic_tag_counts() if use_synthetic_data else stackoverflow.load_tag_counts(cache_dir)
    )
    tags = list(tag_counts)[:known_tags]

    def preprocess(spec: ClientSpec) -> Preprocess:
        def batches(dataset: tf.data.Dataset) -> tf.data.Dataset:
            word_table, tag_table = _table(words, 1), _table(tags, 1)

            def shares_and_tags(example: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
                text = tf.strings.join([example["tokens"], example["title"]], separator=" ")
                word_ids = word_table.lookup(tf.strings.split(text))
                counts = tf.reduce_sum(tf.one_hot(word_ids, len(words)), 0)
                tag_ids = tag_table.lookup(tf.strings.split(example["tags"], "|"))
                has_tag = tf.reduce_sum(tf.one_hot(tag_ids, len(tags)), 0)
                return tf.math.divide_no_nan(counts, tf.reduce_sum(counts)), has_tag

            return spec.elements_of(dataset, _SHUFFLE_BUFFER).map(shares_and_tags).batch(spec.batch_size)

        return batches

    datasets = _datasets(data, preprocess, train_client_spec, evaluation_spec(eval_client_spec, 100))

    def model_fn() -> PureModel:
        return from_keras_model(
            keras.Sequential([keras.Input((len(words),)), keras.layers.Dense(len(tags), activation="sigmoid")]),
            loss=keras.losses.BinaryCrossentropy(reduction="sum"),
            input_spec=datasets.element_type_structure,
            metrics=[keras.metrics.Precision(name="precision"), keras.metrics.Recall(top_k=5, name="recall_at_5")],
        )

    return BaselineTask(datasets, model_fn)


def create_word_prediction_task(
    train_client_spec: ClientSpec,
    eval_client_spec: ClientSpec | None = None,
    sequence_length: int = DEFAULT_SEQUENCE_LENGTH,
    vocab_size: int = DEFAULT_WORD_VOCAB_SIZE,
    num_out_of_vocab_buckets: int = 1,
    cache_dir: str | os.PathLike | None = None,
    use_synthetic_data: bool = False,
) -> BaselineTask:
    """Predicting each word of a sentence from those before it, by a recurrent network.

    Types: a batch is `<int64[?,sequence_length],int64[?,sequence_length]>`: tokens, and the tokens after them. 0 pads;
    then come the known words, the buckets of unknown ones, and the sentence's start and end.

    Args:
        train_client_spec: how training clients read their data.
        eval_client_spec: how clients to evaluate do. Default: one pass in order, batches of 64.
        sequence_length: words of a sentence that are read, at least 1.
        vocab_size: how many of the most frequent words are known, at least 1.
        num_out_of_vocab_buckets: tokens of unknown words, at least 1.
        cache_dir: of `stackoverflow.load_data`.
        use_synthetic_data: `stackoverflow.get_synthetic()` in place of downloaded data, for tests.
    Raises:
        FedcoreError: a number is out of range; or as for `stackoverflow.load_data`.
    Source:
        Reddi et al. 2020, arXiv:2003.00295.
    Example:
        >>> spec = fc.simulation.baselines.ClientSpec(num_epochs=1, batch_size=10)
        >>> task = fc.simulation.baselines.stackoverflow.create_word_prediction_task(
        ...     spec, vocab_size=20, use_synthetic_data=True)
        >>> task.datasets.element_type_structure[1].shape[1]
        20
    """
    length = whole_number("sequence_length", sequence_length, at_least=1)
    buckets = whole_number("num_out_of_vocab_buckets", num_out_of_vocab_buckets, at_least=1)
    data, words = _data_and_words(whole_number("vocab_size", vocab_size, at_least=1), cache_dir, use_synthetic_data)
    unknown = list(range(len(words) + 1, len(words) + 1 + buckets))
    start, end = unknown[-1] + 1, unknown[-1] + 2

    table = _table(words, buckets)

    def tokens(example: dict[str, tf.Tensor]) -> tf.Tensor:
        word_ids = table.lookup(tf.strings.split(example["tokens"]))[:length] + 1
        sentence = tf.concat([[start], word_ids, [end]], 0)[: length + 1]
        return tf.ensure_shape(tf.pad(sentence, [[0, length + 1 - tf.size(sentence)]]), [length + 1])

    def preprocess(spec: ClientSpec) -> Preprocess:
        def batches(dataset: tf.data.Dataset) -> tf.data.Dataset:
            sentences = spec.elements_of(dataset, _SHUFFLE_BUFFER).map(tokens).batch(spec.batch_size)
            return sentences.map(lambda batch: (batch[:, :-1], batch[:, 1:]))

        return batches

    datasets = _datasets(data, preprocess, train_client_spec, evaluation_spec(eval_client_spec, 64))

    def model_fn() -> PureModel:
        return from_keras_model(
            _recurrent(end + 1),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            input_spec=datasets.element_type_structure,
            metrics=[
                NumTokensCounter([0]),
                MaskedCategoricalAccuracy([0], name="accuracy"),
                MaskedCategoricalAccuracy([0, *unknown], name="accuracy_without_out_of_vocab"),
                MaskedCategoricalAccuracy([0, end, *unknown], name="accuracy_without_out_of_vocab_or_end_of_sentence"),
            ],
        )

    return BaselineTask(datasets, model_fn)


def _data_and_words(
    size: int, cache_dir: str | os.PathLike | None, synthetic: bool
) -> tuple[tuple[ClientData, ...], list[str]]:
    """((training, held-out and test data), the `size` most frequent words)."""
    if synthetic:
        return (stackoverflow.get_synthetic(),) * 3, list(stackoverflow.get_synthetic_word_counts())[:size]
    return stackoverflow.load_data(cache_dir), list(stackoverflow.load_word_counts(cache_dir, size))


def _datasets(
    data: tuple[ClientData, ...],
    preprocess: Callable[[ClientSpec], Preprocess],
    train: ClientSpec,
    evaluation: ClientSpec,
) -> BaselineTaskDatasets:
    training, held_out, test = data
    return BaselineTaskDatasets(training, test, held_out, preprocess(train), preprocess(evaluation))


def _table(words: list[str], buckets: int) -> tf.lookup.StaticVocabularyTable:
    """A table from a word to its position in the list; from an unknown word to a bucket after the last position."""
    positions = tf.lookup.KeyValueTensorInitializer(words, tf.range(len(words), dtype=tf.int64))
    return tf.lookup.StaticVocabularyTable(positions, num_oov_buckets=buckets)


def _recurrent(vocabulary: int) -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((None,)),
            layers.Embedding(vocabulary, 96, mask_zero=True),
            layers.LSTM(670, return_sequences=True),
            layers.Dense(96),
            layers.Dense(vocabulary),
        ]
    )
