"""Updates in fewer bits: Konečný et al. 2016, arXiv:1610.05492."""

import keras

import fedcore as fc
from fedcore.aggregators import EncodedSumFactory, MeanFactory, encoders

ENCODERS = {
    "plain": None,
    "8-bit": encoders.uniform_quantization(bits=8),
    "rotated-2-bit": encoders.chain(encoders.hadamard(), encoders.uniform_quantization(bits=2)),
    "rotated-entropy-coded": encoders.chain(
        encoders.hadamard(), encoders.uniform_quantization(step=encoders.RMS, rounding="dithered"), encoders.entropy()
    ),
    "top-2%-with-feedback": encoders.top_k(0.02),
}


def load_data(data):
    train, test = fc.simulation.datasets.digits.load_data(data["clients"], data["alpha"])
    train, test = (c.preprocess(lambda d: d.map(lambda e: (e["pixels"], e["label"]))) for c in (train, test))
    train = train.preprocess(lambda d: d.shuffle(100).repeat(data["epochs"]).batch(10))
    return train, test.preprocess(lambda d: d.batch(300))


def _model(clients):
    layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(200, "relu"), keras.layers.Dense(10)]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metrics = [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
    spec = clients.element_type_structure
    return lambda: fc.learning.from_keras_model(keras.Sequential(layers), loss, input_spec=spec, metrics=metrics)


def build_process(train, sending):
    def encoder_fn(spec):
        return ENCODERS[sending["encoder"]] if len(spec.shape) == 2 else None  # biases are sent as they are

    algorithms, client = fc.learning.algorithms, fc.learning.optimizers.build_sgdm(0.1)
    if sending["encoder"].endswith("feedback"):
        return algorithms.build_fed_avg_with_error_feedback(_model(train), client, encoder_fn=encoder_fn)
    mean = MeanFactory(EncodedSumFactory(encoder_fn))
    return algorithms.build_weighted_fed_avg(_model(train), client, model_aggregator=mean)


def build_evaluation(train):
    return fc.learning.algorithms.build_fed_eval(_model(train))
