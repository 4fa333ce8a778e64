"""Sums of client values that are encoded on the way to the server; `encoders` has the codes."""

import tensorflow as tf

from fedcore.aggregators.encoders.encoded_values import EncoderFn, LargeFloats, value_codec
from fedcore.aggregators.encoders.uniform_quantization import uniform_quantization
from fedcore.aggregators.factory import UnweightedAggregationFactory, aggregation_process, require
from fedcore.computation import federated_computation, tf_computation
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.intrinsics import (
    federated_broadcast,
    federated_eval,
    federated_map,
    federated_mean,
    federated_random_seed,
    federated_sum,
    federated_value,
    message,
)
from fedcore.ir.values import Value
from fedcore.scalars import whole_number
from fedcore.templates import AggregationProcess, MeasuredProcessOutput
from fedcore.types import CLIENTS, SERVER, Type


class EncodedSumFactory(UnweightedAggregationFactory):
    """The sum of what the server decodes of the clients' codes; no clients give zeros. Measures nothing.

    Types, for numeric V of known shapes and states S of adaptive encoders (<> if there are none):
        next  (<state=S@SERVER,value={V}@CLIENTS> -> <state=S@SERVER,result=V@SERVER,measurements=<>@SERVER>)

    A client sends its codes; a seed (64 bits) if an encoder needs one to decode; and the states after its value, if
    encoders are adaptive. The next state is the mean of these that is finite, else the state before.

    Args:
        encoder_fn: function (`tf.TensorSpec` -> encoder) for each tensor of V; None is a tensor that is sent as it is.
            Or an encoder, for the float tensors of more than 10,000 elements; the others are sent as they are.
    Raises:
        TypeMismatch: V is not numeric or has an unknown shape, or the function returns no encoder.
    Example:
        >>> eight_bits = fc.aggregators.encoders.uniform_quantization(bits=8)
        >>> factory = fc.aggregators.EncodedSumFactory(lambda spec: eight_bits)
        >>> process = factory.create(fc.to_type(('float32', [2])))
        >>> process.next(process.initialize(), [[0.0, 255.0], [1.0, 256.0]]).result
        array([  1., 511.], dtype=float32)
    """

    def __init__(self, encoder_fn: EncoderFn) -> None:
        self._encoder_fn = encoder_fn

    @classmethod
    def quantize_above_threshold(cls, quantization_bits: int = 8, threshold: int = 20000) -> "EncodedSumFactory":
        """Quantizes float tensors of more than `threshold` elements uniformly; the others are sent as they are.

        `create` warns if there are none, as of an encoder in the place of `encoder_fn`.

        Args:
            quantization_bits: of each element, 1 to 16.
        Raises:
            FedcoreError: the bits are outside their range, or the threshold is negative.
        Example:
            >>> sums = fc.aggregators.EncodedSumFactory.quantize_above_threshold(quantization_bits=8, threshold=1000)
            >>> factory = fc.aggregators.MeanFactory(value_sum_factory=sums)
        """
        encoder = uniform_quantization(bits=quantization_bits)
        threshold = whole_number("threshold", threshold, at_least=0)
        return cls(LargeFloats(encoder, threshold))

    def create(self, value_type: Type) -> AggregationProcess:
        require("numeric", value_type, "EncodedSumFactory")
        codec = value_codec(self._encoder_fn, value_type, "EncodedSumFactory")

        @federated_computation
        def initialize() -> Value:
            return federated_eval(codec.initial_state, SERVER)

        @tf_computation
        def next_state(state: TensorStructure, mean_state: TensorStructure) -> TensorStructure:
            return tf.nest.map_structure(lambda b, a: tf.where(tf.math.is_finite(a), a, b), state, mean_state)

        def body(state: Value, value: Value, _: tuple[()]) -> MeasuredProcessOutput:
            shared = federated_broadcast(state)
            encoded = federated_map(codec.encode, (value, federated_random_seed(CLIENTS), shared))
            sent = federated_map(lambda code: message(code), encoded[0])
            total = federated_sum(federated_map(codec.decode, (sent, shared)))
            if codec.is_adaptive:
                state = federated_map(next_state, (state, federated_mean(encoded[1])))
            return MeasuredProcessOutput(state, total, federated_value((), SERVER))

        return aggregation_process(initialize, value_type, None, body)
