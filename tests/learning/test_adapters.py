"""Adapters on a frozen base: what crosses, what is saved, and what a file of them says of its base."""

import asyncio
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import InvalidValue

L, algorithms, learning, models = keras.layers, fc.learning.algorithms, fc.learning, fc.learning.models
CROSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
RNG = np.random.default_rng(3)
X = RNG.normal(size=(24, 150)).astype(np.float32)
Y = (X[:, :6] @ RNG.normal(size=(6, 3))).argmax(1).astype(np.int32)
DATA = [fc.data.ClientDataset.from_columns((X[i::2], Y[i::2])).batch(6) for i in range(2)]
SPEC = DATA[0].element_spec
TRAINED = 150 * 2 + 2 * 150 + 150 + 150 * 3 + 3
FROZEN = 150 * 150


def lora():
    """A frozen kernel of 88 KiB with an adapter, and a head."""
    model = keras.Sequential([keras.Input((150,)), L.Dense(150, activation="relu", name="base"), L.Dense(3)])
    model.layers[0].enable_lora(2)
    return model


class Lora(L.Layer):
    """An adapter layer of one's own."""

    def build(self, shape):
        self.base = self.add_weight(shape=(shape[-1], 150), initializer="glorot_uniform", trainable=False, name="base")
        self.a = self.add_weight(shape=(shape[-1], 2), initializer="he_uniform", name="a")
        self.b = self.add_weight(shape=(2, 150), initializer="zeros", name="b")

    def call(self, x):
        return x @ self.base + (x @ self.a) @ self.b


def own_layers():
    return keras.Sequential([keras.Input((150,)), Lora(), L.ReLU(), L.Dense(3)])


def frozen_embedding():
    inputs = keras.Input((150,))
    frozen = L.Dense(150, activation="relu", trainable=False)
    return keras.Model(inputs, L.Dense(3)(frozen(inputs)))


def hub_backbone():
    hub = pytest.importorskip("keras_hub")
    backbone = hub.models.BertBackbone(
        vocabulary_size=500, num_layers=1, num_heads=2, hidden_dim=64, intermediate_dim=64, max_sequence_length=150
    )
    backbone.trainable = False
    inputs = keras.Input((150,))
    tokens = keras.ops.cast(keras.ops.clip(keras.ops.abs(inputs) * 100, 0, 499), "int32")
    parts = {"token_ids": tokens, "padding_mask": tokens >= 0, "segment_ids": keras.ops.zeros_like(tokens)}
    return keras.Model(inputs, L.Dense(3)(backbone(parts)["pooled_output"]))


MODELS = [lora, own_layers, frozen_embedding, hub_backbone]


def model_fn_of(make):
    return lambda: learning.from_keras_model(make(), CROSS, SPEC)


model_fn = model_fn_of(lora)


def sgd():
    return keras.optimizers.SGD(0.1)


@functools.cache
def process_of(make):
    """Unweighted federated averaging, built and compiled once."""
    return algorithms.build_unweighted_fed_avg(model_fn_of(make), sgd)


def crossing(kind):
    return sum(c.bits for c in fc.context.last_report().crossings if c.kind == kind)


@pytest.mark.parametrize("make", MODELS)
def test_a_state_holds_no_frozen_weight(make):
    process = process_of(make)
    state = process.next(process.initialize(), DATA).state
    model = make()
    assert [w.shape for w in state.model.trainable] == [tuple(v.shape) for v in model.trainable_variables]
    assert state.model.non_trainable == ()
    weights = process.get_model_weights(state)
    frozen = [v for v in model.non_trainable_variables if "float" in v.dtype]
    assert [w.shape for w in weights.non_trainable] == [tuple(v.shape) for v in frozen]


@pytest.mark.parametrize("make", MODELS)
def test_training_moves_the_loss_of_the_whole_model(make):
    """The loss that clients report is that of Keras with the weights of the state, so the base is used."""
    process, evaluation = process_of(make), algorithms.build_fed_eval(model_fn_of(make))
    state = process.next(process.initialize(), DATA).state
    evaluated = evaluation.set_model_weights(evaluation.initialize(), process.get_model_weights(state))
    metrics = evaluation.next(evaluated, DATA).metrics["client_work"]["eval"]["current_round_metrics"]
    model = make()
    process.get_model_weights(state).assign_weights_to(model)
    np.testing.assert_allclose(metrics["loss"], CROSS(Y, model(X)), rtol=1e-4)


def test_the_base_crosses_once():
    process = process_of(lora)
    with fc.use(fc.runtime.local()):
        state, sent = process.initialize(), []
        for _ in range(3):
            state = process.next(state, DATA).state
            sent.append(crossing("broadcast"))
    adapters = len(DATA) * 32 * (TRAINED + 1)  # and the learning rate
    assert sent == [adapters + len(DATA) * 32 * FROZEN, adapters, adapters]


def test_an_evaluation_on_the_same_base_sends_it_no_second_time():
    process, evaluation = process_of(lora), algorithms.build_fed_eval(model_fn)
    with fc.use(fc.runtime.local()):
        state = process.next(process.initialize(), DATA).state
        evaluation.next(evaluation.set_model_weights(evaluation.initialize(), process.get_model_weights(state)), DATA)
        assert crossing("broadcast") == len(DATA) * 32 * TRAINED


def test_clients_send_the_adapters_alone():
    process = process_of(lora)
    process.next(process.initialize(), DATA)
    sent = [c.bits for c in fc.context.last_report().crossings if c.tensor.startswith("update")]
    assert sum(sent) == len(DATA) * 32 * TRAINED


AGGREGATORS = {
    "plain": None,
    "private": fc.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(1.0, 10, clip=1.0),
    "secure": learning.secure_aggregator(weighted=False),
    "compressed": learning.compression_aggregator(weighted=False),
}


@pytest.mark.filterwarnings("ignore:.*encodes nothing")  # of these small models
@pytest.mark.parametrize("name", AGGREGATORS)
def test_the_frozen_weights_keep_their_bits(name):
    process = algorithms.build_unweighted_fed_avg(model_fn, sgd, model_aggregator=AGGREGATORS[name])
    state = process.initialize()
    before = [w.tobytes() for w in process.get_model_weights(state).non_trainable]
    for _ in range(20):
        state = process.next(state, DATA).state
    assert [w.tobytes() for w in process.get_model_weights(state).non_trainable] == before
    assert len(before[0]) == 4 * FROZEN


def test_a_checkpoint_is_of_the_size_of_the_adapters(tmp_path):
    process, manager = process_of(lora), fc.program.FileProgramStateManager(tmp_path)
    asyncio.run(manager.save(process.next(process.initialize(), DATA).state, version=1))
    sizes = [path.stat().st_size for path in tmp_path.glob("*.safetensors")]
    assert sum(sizes) < 4 * TRAINED + 1000


def test_two_processes_have_one_base():
    first, second = (models.trace_model(model_fn) for _ in range(2))
    assert first.frozen_weights is second.frozen_weights


def test_adapters_come_back_from_a_file(tmp_path):
    process, path = process_of(lora), tmp_path / "adapters.safetensors"
    state = process.next(process.initialize(), DATA).state
    weights = process.get_model_weights(state)
    models.save_adapters(model_fn, weights, path)
    assert path.stat().st_size < 4 * TRAINED + 1000
    loaded = models.load_adapters(model_fn, path)
    for have, want in zip(tf.nest.flatten(tuple(loaded)), tf.nest.flatten(tuple(weights)), strict=True):
        np.testing.assert_array_equal(have, want)
    process.next(process.set_model_weights(state, loaded), DATA)


def other_base():
    """Like `lora`, with another kernel."""
    model = lora()
    model.layers[0].non_trainable_variables[0].assign(np.ones([150, 150], np.float32))
    return model


def test_adapters_of_another_base_are_refused_with_both_digests(tmp_path):
    models.save_adapters(model_fn, process_of(lora).initialize().model, tmp_path / "a.safetensors")
    digests = [models.trace_model(fn).frozen_weights.digest for fn in (model_fn_of(other_base), model_fn)]
    with pytest.raises(InvalidValue) as caught:
        models.load_adapters(model_fn_of(other_base), tmp_path / "a.safetensors")
    for digest in digests:
        assert f"sha256:{digest}" in str(caught.value)


def test_adapters_of_another_model_are_refused(tmp_path):
    models.save_adapters(model_fn, process_of(lora).initialize().model, tmp_path / "a.safetensors")
    with pytest.raises(InvalidValue, match="holds weights of another model"):
        models.load_adapters(model_fn_of(frozen_embedding), tmp_path / "a.safetensors")


def test_a_file_of_a_base_holds_no_adapters(tmp_path):
    models.save_base(model_fn, tmp_path / "base.safetensors")
    with pytest.raises(InvalidValue, match="holds fedcore base, not fedcore adapters"):
        models.load_adapters(model_fn, tmp_path / "base.safetensors")


def test_a_process_begins_from_a_base_in_a_file(tmp_path):
    models.save_base(model_fn_of(other_base), tmp_path / "base.safetensors")
    model = models.with_base(model_fn, tmp_path / "base.safetensors")
    process = algorithms.build_unweighted_fed_avg(model, sgd)
    state = process.next(process.initialize(), DATA).state
    np.testing.assert_array_equal(process.get_model_weights(state).non_trainable[0], np.ones([150, 150]))


def test_a_damaged_base_is_refused(tmp_path):
    path = tmp_path / "base.safetensors"
    models.save_base(model_fn_of(other_base), path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(InvalidValue, match="is damaged"):
        models.with_base(model_fn, path)


def test_a_model_takes_the_base_of_a_keras_model():
    model = models.with_base(model_fn, other_base())
    assert model.frozen_weights is models.trace_model(model_fn_of(other_base)).frozen_weights


def test_a_base_of_other_shapes_is_refused():
    with pytest.raises(InvalidValue, match="the base has other weights"):
        models.with_base(model_fn, learning.ModelWeights((), (np.ones([2, 2], np.float32),)))


def test_weights_on_another_base_are_refused_with_the_fix():
    process = process_of(lora)
    with pytest.raises(InvalidValue, match=r"(?s)the frozen weights are constants.*fix: fc.learning.models.with_base"):
        process.set_model_weights(process.initialize(), other_base())


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras with numpy 2
def test_merged_adapters_predict_as_before(tmp_path):
    process, model = process_of(lora), lora()
    weights = process.get_model_weights(process.next(process.initialize(), DATA).state)
    weights.assign_weights_to(model)
    wanted = model(X)
    merged = models.merge_adapters(lora(), weights)
    np.testing.assert_allclose(merged(X), wanted, rtol=1e-4, atol=1e-5)
    merged.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert not any("lora" in v.path for v in loaded.variables)
    np.testing.assert_allclose(loaded(X), wanted, rtol=1e-4, atol=1e-5)


def test_a_model_with_own_arrays_as_base_keeps_them_out_of_the_state():
    """A model of functions: the second non-trainable weight is returned as it is."""
    base = RNG.normal(size=(150, 150)).astype(np.float32)

    def predict(weights, x, training=False):
        return tf.nn.relu(x @ weights[1][0]) @ weights[0][0]

    def loss(output, labels, weights=None):
        return CROSS(labels, output)

    model = models.FunctionalModel(
        ((np.zeros([150, 3], np.float32),), (base,)),
        predict_on_batch_fn=predict,
        loss_fn=loss,
        input_spec=SPEC,
    )
    process = algorithms.build_weighted_fed_avg(model, sgd)
    state = process.next(process.initialize(), DATA).state
    assert state.model.non_trainable == ()
    np.testing.assert_array_equal(process.get_model_weights(state).non_trainable[0], base)
