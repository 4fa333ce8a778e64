"""TFF's `as_simple_encoder` and `as_gather_encoder`: an encoder with the dtype and shape of its values."""

import attrs
import tensorflow as tf

from fedcore.aggregators.encoders.encoder import Encoder, require_encoder
from fedcore.errors import TypeMismatch
from fedcore.types import TensorType, to_type


@attrs.frozen
class SpecEncoder:
    """An encoder for values of one dtype and shape.

    Args:
        encoder: an `Encoder`.
        spec: a `tf.TensorSpec`.
    """

    encoder: Encoder
    spec: tf.TensorSpec


def _bind_spec(encoder: Encoder, spec: object, who: str) -> SpecEncoder:
    """The encoder with a spec that may be anything which `to_type` takes."""
    require_encoder(encoder, who)
    type_ = to_type(spec)
    if not isinstance(type_, TensorType):
        raise TypeMismatch(f"{who} takes the spec of a tensor, not {type_}")
    return SpecEncoder(encoder, tf.TensorSpec(type_.shape, type_.dtype.numpy))


def as_simple_encoder(encoder: Encoder, spec: object) -> SpecEncoder:
    """An encoder for broadcasts of one dtype and shape; what an `encoder_fn` may return in place of the encoder.

    Types: an encoder of tensors of the dtype and shape.

    Raises:
        TypeMismatch: it is no encoder, or the spec is not that of a tensor.
    Example:
        >>> encoders = fc.aggregators.encoders
        >>> encoders.as_simple_encoder(encoders.identity(), tf.TensorSpec([3])).spec.shape
        TensorShape([3])
    """
    return _bind_spec(encoder, spec, "as_simple_encoder")


def as_gather_encoder(encoder: Encoder, spec: object) -> SpecEncoder:
    """An encoder for aggregations of one dtype and shape; what an `encoder_fn` may return in place of the encoder.

    Types: an encoder of tensors of the dtype and shape.

    Raises:
        TypeMismatch: it is no encoder, or the spec is not that of a tensor.
    Example:
        >>> encoders = fc.aggregators.encoders
        >>> encoders.as_gather_encoder(encoders.identity(), tf.TensorSpec([3])).spec.shape
        TensorShape([3])
    """
    return _bind_spec(encoder, spec, "as_gather_encoder")
