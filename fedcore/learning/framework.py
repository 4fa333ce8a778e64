"""`fc.learning.framework`: parts of learning processes, by the names of TFF's tutorials."""

from typing import TYPE_CHECKING

from fedcore.aggregators.encoders.encoded_values import EncoderFn, value_codec
from fedcore.computation import federated_computation
from fedcore.intrinsics import (
    federated_broadcast,
    federated_eval,
    federated_map,
    federated_random_seed,
    federated_value,
    message,
)
from fedcore.ir import Value
from fedcore.learning.models import trace_model
from fedcore.learning.models.frozen_weights import changing_type
from fedcore.learning.models.traced import ModelFn
from fedcore.templates import MeasuredProcess, MeasuredProcessOutput
from fedcore.tff_names import tff_names
from fedcore.types import SERVER, FederatedType, Type, to_type

__all__ = ["build_encoded_broadcast_process", "build_encoded_broadcast_process_from_model"]


def build_encoded_broadcast_process(value_type: Type, encoder_fn: EncoderFn) -> MeasuredProcess:
    """The process that sends a server value to the clients as codes, which each client decodes.

    Types, for values of type V and states S of adaptive encoders (<> if there are none):
        initialize  (-> S@SERVER)
        next        (<S@SERVER,V@SERVER> -> <state=S@SERVER,result={V}@CLIENTS,measurements=<>@SERVER>)

    All clients get the same code. They get a seed (64 bits) too, if an encoder needs one to decode, and the state.

    Args:
        value_type: V, of tensors of known shapes.
        encoder_fn: as for `fc.aggregators.EncodedSumFactory`.
    Raises:
        TypeMismatch: V holds text or an unknown shape, or the function returns no encoder.
    Example:
        >>> eight_bits = fc.aggregators.encoders.uniform_quantization(bits=8)
        >>> sending = fc.learning.framework.build_encoded_broadcast_process(('float32', [3]), lambda spec: eight_bits)
        >>> print(sending.next.type_signature.result['result'])
        {float32[3]}@CLIENTS
    """
    value_type = to_type(value_type)
    codec = value_codec(encoder_fn, value_type, "build_encoded_broadcast_process")

    @federated_computation
    def initialize() -> Value:
        return federated_eval(codec.initial_state, SERVER)

    @federated_computation(initialize.type_signature.result, FederatedType(value_type, SERVER))
    def next_fn(state: Value, value: Value) -> MeasuredProcessOutput:
        encoded = federated_map(codec.encode, (value, federated_random_seed(SERVER), state))
        sent = federated_map(lambda codes, before: (message(codes), before), (encoded[0], state))
        received = federated_broadcast(sent)
        result = federated_map(lambda pair: codec.decode(pair[0], pair[1]), received)
        return MeasuredProcessOutput(encoded[1], result, federated_value((), SERVER))

    return MeasuredProcess(initialize, next_fn)


def build_encoded_broadcast_process_from_model(model_fn: ModelFn, encoder_fn: EncoderFn) -> MeasuredProcess:
    """The process that sends a model's weights as codes; what `broadcast_process=` and `model_distributor=` take.

    Types: those of `build_encoded_broadcast_process`, for the weights of the model without frozen ones.

    Args:
        model_fn: makes the model.
        encoder_fn: function (`tf.TensorSpec` -> encoder) for each weight, None for one that is sent as it is; or an
            encoder, for the float weights of more than 10,000 elements. Clients start from what they decode, so
            encoders whose error is as large as a weight, such as `top_k`, are for the changes only.
    Raises:
        TracingError: `model_fn` makes no model of `fc.learning`.
        TypeMismatch: the function returns no encoder.
    Example:
        >>> eight_bits = fc.aggregators.encoders.uniform_quantization(bits=8)
        >>> sending = fc.learning.framework.build_encoded_broadcast_process_from_model(
        ...     model_fn, lambda spec: eight_bits)
        >>> process = fc.learning.algorithms.build_weighted_fed_avg(
        ...     model_fn, lambda: keras.optimizers.SGD(0.1), model_distributor=sending)
        >>> state, metrics = process.next(process.initialize(), [client_a, client_b])
    """
    return build_encoded_broadcast_process(changing_type(trace_model(model_fn)), encoder_fn)


if not TYPE_CHECKING:
    __getattr__ = tff_names("fedcore.learning.framework")
