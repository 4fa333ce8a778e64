"""Updates in fewer bits: Konečný et al. 2016, arXiv:1610.05492."""

from classifiers import load_digits, model_fn_for

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
    return load_digits(data["clients"], lambda d: d.shuffle(100).repeat(data["epochs"]).batch(10), data["alpha"])


def build_process(train, sending):
    def encoder_fn(spec):
        return ENCODERS[sending["encoder"]] if len(spec.shape) == 2 else None  # biases are sent as they are

    algorithms, client = fc.learning.algorithms, fc.learning.optimizers.build_sgdm(0.1)
    if sending["encoder"].endswith("feedback"):
        return algorithms.build_fed_avg_with_error_feedback(
            model_fn_for(train, hidden_units=200), client, encoder_fn=encoder_fn
        )
    mean = MeanFactory(EncodedSumFactory(encoder_fn))
    return algorithms.build_weighted_fed_avg(model_fn_for(train, hidden_units=200), client, model_aggregator=mean)


def build_evaluation(train):
    return fc.learning.algorithms.build_fed_eval(model_fn_for(train, hidden_units=200))
