"""Chains of encoders, such as a rotation before a quantizer.

Encoder i + 1 encodes the first tensor of encoder i's code (`CodeStructure.first`); the other tensors of that code are
sent beside the last code. With a state in one of its encoders, a chain has the states of all.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

import tensorflow as tf

from fedcore.aggregators.encoders.encoder import (
    AdaptiveEncoder,
    CodeStructure,
    Encoder,
    decode_tensor,
    encode_tensor,
    initial_state,
    parts_of,
    require_encoder,
    seed_at,
)
from fedcore.errors import TypeMismatch


class _Chain:
    """The encoding and decoding of both kinds of chains.

    A code is a tuple: the last encoder's code; then for each encoder before it, in order, the parts of its code without
    the first tensor (`parts_of`). `states` has a state for each encoder, () if it has none.
    """

    def __init__(self, encoders: tuple[Encoder, ...]) -> None:
        self.encoders = encoders
        self._structures_by_spec: dict[tuple, list[CodeStructure]] = {}

    def _structures(self, spec: tf.TensorSpec) -> list[CodeStructure]:
        """The structures of the codes of all encoders but the last, for a chain's values of a dtype and shape."""
        key = spec.dtype, tuple(spec.shape)
        if key not in self._structures_by_spec:
            structures: list[CodeStructure] = []
            for encoder in self.encoders[:-1]:
                structures.append(CodeStructure(encoder, structures[-1].first if structures else spec))
            self._structures_by_spec[key] = structures
        return self._structures_by_spec[key]

    def _encode(self, value: tf.Tensor, seed: tf.Tensor, states: Sequence) -> tuple[Any, tuple]:
        """(code, next state of each encoder)."""
        others, next_states = [], []
        for i, (encoder, state) in enumerate(zip(self.encoders, states, strict=True)):
            code, state = encode_tensor(encoder, value, seed_at(seed, i), state)
            next_states.append(state)
            if i < len(self.encoders) - 1:
                value, remainder = parts_of(code)
                others.append(remainder)
        return (code, *others), tuple(next_states)

    def _decode(self, code: tuple, seed: tf.Tensor, spec: tf.TensorSpec, states: Sequence) -> tf.Tensor:
        structures = self._structures(spec)
        specs = [spec, *(s.first for s in structures)]
        encoder_code, *others = code
        for i in reversed(range(len(self.encoders))):
            value = decode_tensor(self.encoders[i], encoder_code, seed_at(seed, i), specs[i], states[i])
            encoder_code = structures[i - 1].with_first(value, others[i - 1]) if i else None
        return value


class Chain(_Chain, Encoder):
    """See `chain`."""

    def encode(self, value: tf.Tensor, seed: tf.Tensor) -> tuple:
        return self._encode(value, seed, [()] * len(self.encoders))[0]

    def decode(self, code: tuple, seed: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
        return self._decode(code, seed, spec, [()] * len(self.encoders))


class AdaptiveChain(_Chain, AdaptiveEncoder):
    """A chain in which an encoder has a state."""

    def initial_state(self, spec: tf.TensorSpec) -> tuple:
        specs = [spec, *(s.first for s in self._structures(spec))]
        return tuple(initial_state(e, s) for e, s in zip(self.encoders, specs, strict=True))

    def encode(self, value: tf.Tensor, seed: tf.Tensor, state: tuple) -> tuple:  # type: ignore[override]
        return self._encode(value, seed, state)[0]

    def encode_and_update(self, value: tf.Tensor, seed: tf.Tensor, state: tuple) -> tuple[tuple, tuple]:
        return self._encode(value, seed, state)

    def decode(self, code: tuple, seed: tf.Tensor, spec: tf.TensorSpec, state: tuple) -> tf.Tensor:  # type: ignore[override]
        return self._decode(code, seed, spec, state)

    def update_state(self, state: tuple, code: tuple, value: tf.Tensor) -> NoReturn:
        raise NotImplementedError  # `encode_and_update` has the codes between the encoders


def chain(*encoders: Encoder) -> Encoder:
    """Encoders one after the other: each encodes the first tensor of the code before it.

    The other tensors of a code, such as a step, are sent as they are; `Integers` among them are packed.

    Types: an encoder of what the first encoder takes.

    Returns:
        An encoder of what the first encoder takes; an `AdaptiveEncoder` if one of them is.
    Raises:
        TypeMismatch: there are no encoders, or one is something else.
    Example:
        >>> encoders = fc.aggregators.encoders
        >>> encoder = encoders.chain(encoders.hadamard(), encoders.uniform_quantization(bits=6))
        >>> fc.testing.check_encoder(encoder, ('float32', [100]), relative_error=0.01)
    """
    if not encoders:
        raise TypeMismatch("a chain has at least one encoder")
    for encoder in encoders:
        require_encoder(encoder, "chain")
    return AdaptiveChain(encoders) if any(isinstance(e, AdaptiveEncoder) for e in encoders) else Chain(encoders)
