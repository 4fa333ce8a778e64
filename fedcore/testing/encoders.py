"""Checks the laws of an encoder."""

from typing import Any

import numpy as np
import tensorflow as tf

import fedcore as fc
from fedcore.aggregators.encoders.encoded_values import value_codec
from fedcore.aggregators.encoders.encoder import Encoder, require_encoder
from fedcore.errors import FedcoreError, brief
from fedcore.testing.laws import LawBroken
from fedcore.types import TensorType, to_type

CLIENTS = 3


def check_encoder(encoder: Encoder, value_type: object, *, relative_error: float = 0.0) -> None:
    """Checks the laws of an encoder, with generated values of a type.

    Laws: neither side raises; the decoded value has the type; its squared error is at most `relative_error` of the
    squared norm, on average over normal values and their negatives; equal seeds give equal codes; the sum of clients
    that are batched is that of clients that run one by one; a code of which a bit was altered in transit decodes to a
    value of the type or to an error.

    Args:
        value_type: a tensor of a known shape.
        relative_error: 0 for a lossless encoder.
    Raises:
        LawBroken: names the law, and shows what was found.
        TypeMismatch: it is no encoder, or does not encode values of the type.
    Example:
        >>> fc.testing.check_encoder(fc.aggregators.encoders.lloyd_max(3), ('float32', [100]), relative_error=0.1)
    """
    require_encoder(encoder, "check_encoder")
    type_ = to_type(value_type)
    if not isinstance(type_, TensorType):
        raise LawBroken("an encoder is checked with a tensor", f"the type is {brief(type_)}")
    values = [_value(type_, seed) for seed in range(CLIENTS)]
    with fc.use(seed=1):
        try:
            codec = value_codec(lambda spec: encoder, type_, "check_encoder")
            mirrored = [-value for value in values] if type_.dtype.is_float else []
            _check_errors(codec, type_, [*values, *mirrored], relative_error)
        except (FedcoreError, LawBroken):
            raise
        except Exception as error:
            law = "values are encoded and decoded"
            raise LawBroken(law, f"it raises {type(error).__name__}: {brief(str(error))}") from error
        _check_altered(codec, type_, values[0])
        _check_sums(encoder, type_, values)


def _value(type_: TensorType, seed: int) -> np.ndarray:
    rng, shape = np.random.default_rng(seed), [s or 0 for s in type_.sizes]
    if type_.dtype.is_integer:
        return rng.integers(0, 100, shape).astype(type_.dtype.numpy)
    return rng.standard_normal(shape).astype(type_.dtype.numpy)


def _check_errors(codec: Any, type_: TensorType, values: list[np.ndarray], relative_error: float) -> None:
    state, errors, worst = codec.initial_state(), [], (-1.0, "")
    for seed, value in enumerate(values):
        code, _ = codec.encode(value, seed, state)
        again, _ = codec.encode(value, seed, state)
        if _bytes(code) != _bytes(again):
            raise LawBroken("equal seeds give equal codes", f"seed {seed} gave two codes of {brief(value)}")
        decoded = codec.decode(code, state)
        if np.shape(decoded) != value.shape or np.asarray(decoded).dtype != value.dtype:
            actual = f"{np.asarray(decoded).dtype}{list(np.shape(decoded))}"
            raise LawBroken("the decoded value has the type of the value", f"wants {type_}, has {actual}")
        difference = np.asarray(decoded, np.float64) - np.asarray(value, np.float64)
        errors.append(np.square(difference).sum() / max(np.square(np.asarray(value, np.float64)).sum(), 1e-300))
        if difference.size:
            entry = int(np.argmax(np.abs(difference)))
            text = f"{value.flat[entry]} of entry {entry} is decoded as {np.asarray(decoded).flat[entry]}"
            worst = max(worst, (float(np.abs(difference).flat[entry]), text))
    if np.mean(errors) > relative_error:
        law = "the squared error is at most `relative_error` of the squared norm"
        raise LawBroken(law, f"wants at most {relative_error}, has {np.mean(errors):.3g}; {worst[1]}")


def _bytes(code: object) -> list[bytes]:
    return [np.asarray(t).tobytes() for t in tf.nest.flatten(code)]


def _check_altered(codec: Any, type_: TensorType, value: np.ndarray) -> None:
    state = codec.initial_state()
    (codes, seeds), _ = codec.encode(value, 1, state)
    flat = [np.asarray(t) for t in tf.nest.flatten(codes)]
    rng = np.random.default_rng(0)
    for _ in range(4):
        altered = [np.array(t) for t in flat]
        for t in altered:
            if t.size:
                data = t.reshape(-1).view(np.uint8)
                data[rng.integers(min(data.size, 64))] ^= np.uint8(1 << rng.integers(8))
        try:
            decoded = codec.decode((tf.nest.pack_sequence_as(codes, altered), seeds), state)
        except (FedcoreError, tf.errors.OpError):
            continue
        if np.shape(decoded) != type_.sizes:
            raise LawBroken("an altered code decodes to a value of the type", f"its shape is {np.shape(decoded)}")


def _check_sums(encoder: Encoder, type_: TensorType, values: list[np.ndarray]) -> None:
    process = fc.aggregators.EncodedSumFactory(lambda spec: encoder).create(type_)
    sums = []
    for vectorize in ("auto", False):
        runtime = fc.runtime.local(vectorize=vectorize, workers_per_device=1)
        try:
            with fc.use(runtime):
                sums.append(process.next.invoke(process.initialize(), values, seed=1).result)
        finally:
            runtime.close()
    if not np.allclose(sums[0], sums[1], rtol=1e-4, atol=1e-4):
        law = "the sum of batched clients is that of clients that run one by one"
        raise LawBroken(law, f"batched: {brief(sums[0])}\none by one: {brief(sums[1])}")
