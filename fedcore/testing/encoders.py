"""Checks the laws of an encoder."""

import contextlib
import itertools
import math
from typing import Any

import numpy as np
import tensorflow as tf

import fedcore as fc
from fedcore.aggregators.encoders.encoded_values import value_codec
from fedcore.aggregators.encoders.encoder import AdaptiveEncoder, Encoder, require_encoder
from fedcore.errors import FedcoreError, brief
from fedcore.testing.laws import REFUSALS, LawBroken, describe_raised, expected_compilations
from fedcore.testing.values import draw, has_bits_of
from fedcore.types import TensorType, to_type

CLIENTS = 3

DRAWS = 16
"""Values whose errors must cancel."""

LONG = 140_001
"""Entries of a vector whose places need more than 16 bits."""

FEW = 3
"""Entries of a vector of which a tenth is none."""

OTHER_DTYPES = ("int32", "int64", "bool", "complex64")
"""Dtypes of which a lossless encoder of floats keeps all numbers, if it takes them."""


@expected_compilations()
def check_encoder(encoder: Encoder, value_type: object, *, relative_error: float = 0.0) -> None:
    """Checks the laws of an encoder, with generated values of a type.

    Laws: neither side raises; the decoded value has the type; its squared error is at most `relative_error` of the
    squared norm, on average over normal values and their negatives, a thousand times and a millionth of these, values
    of one sign, and values of other shapes and of float64, of a long vector, and of two tensors at once; of three
    entries it is at most halfway from there to 1; values whose squares overflow have that error too, or decode to one
    that is not finite; the errors of many values cancel, and those of values of one sign do not all point to 0, beside
    entries that are decoded as 0; the state of an adaptive encoder follows numbers that become smaller, larger again,
    and negative; a value with NaN or infinity decodes to one that is not finite, and a constant value, also in the
    rounds before, to a finite one; a lossless encoder keeps all bits, also of huge and denormal numbers, and of the
    other dtypes that it takes; equal seeds give equal codes; the sum of clients that are batched is that of clients
    that run one by one; a code of which a bit was altered in transit decodes to a value of the type or to an error.

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
    values = [_value(type_, "small", seed) for seed in range(CLIENTS)]
    with fc.use(seed=1):
        try:
            codec = value_codec(lambda spec: encoder, type_, "check_encoder")
            _check_values(encoder, codec, type_, relative_error)
            _check_siblings(encoder, type_, relative_error)
        except (FedcoreError, LawBroken):
            raise
        except Exception as error:
            law = "values are encoded and decoded"
            raise LawBroken(law, f"it raises {describe_raised(error)}") from error
        _check_altered(codec, type_, values[0])
        _check_sums(encoder, type_, values)


def _value(type_: TensorType, spread: str, seed: int) -> np.ndarray:
    """Normal floats where others would be small: encoders may be made for them."""
    rng, shape = np.random.default_rng(seed), [s or 0 for s in type_.sizes]
    if type_.dtype.is_float and spread == "small":
        return rng.standard_normal(shape).astype(type_.dtype.numpy)
    return np.asarray(draw(type_.dtype.numpy, shape, rng, spread))


class _Coding:
    """Encodes and decodes values, and checks what holds of each."""

    def __init__(self, codec: Any, type_: TensorType) -> None:
        self._codec = codec
        self.type = type_
        self._state = codec.initial_state()

    def update(self, value: np.ndarray) -> None:
        """Puts the state after a value in the place of the state."""
        _, self._state = self._codec.encode(value, 0, self._state)

    def decoded(self, value: np.ndarray, seed: int) -> np.ndarray:
        """The value after encoding and decoding.

        Raises:
            LawBroken: a seed gives different codes, or dtype or shape change.
        """
        code, _ = self._codec.encode(value, seed, self._state)
        again, _ = self._codec.encode(value, seed, self._state)
        if _bytes(code) != _bytes(again):
            raise LawBroken("equal seeds give equal codes", f"seed {seed} gave two codes of {brief(value)}")
        decoded = np.asarray(self._codec.decode(code, self._state))
        if decoded.shape != value.shape or decoded.dtype != value.dtype:
            actual = f"{decoded.dtype}{list(decoded.shape)}"
            raise LawBroken("the decoded value has the type of the value", f"wants {self.type}, has {actual}")
        return decoded


def _check_values(encoder: Encoder, codec: Any, type_: TensorType, relative_error: float) -> None:
    """Checks small, large, tiny, one-signed and special values of a type.

    Args:
        relative_error: 0 for a lossless encoder, which has to keep all bits.
    """
    is_float, coding = type_.dtype.is_float, _Coding(codec, type_)
    values = [_value(type_, "small", seed) for seed in range(DRAWS // 2)]
    values = [v for value in values for v in ((value, -value) if is_float else (value,))]
    errors = _check_errors(coding, values, relative_error)
    if is_float:
        for scale in (1000, 1 if type_.dtype.numpy.itemsize < 4 else 1e-6):
            _check_errors(coding, [(scale * value).astype(value.dtype) for value in values[:4]], relative_error)
        for sign in (1, -1):
            signed = [sign * np.abs(value) for value in values[:4]]
            _check_truncation(signed, _check_errors(coding, signed, relative_error))
        _check_lean("values and their negatives", errors)
        if type_.dtype.numpy.itemsize >= 4:
            _check_huge(coding, [value * value.dtype.type(2.0**100) for value in values[:4]], relative_error)
        _check_not_finite(coding, values[0])
        _check_finite(coding, values[0])
        if isinstance(encoder, AdaptiveEncoder):
            _check_recovery(_Coding(codec, type_), values, relative_error)
    else:
        wide = "offset" if relative_error else "special"
        _check_errors(coding, [_value(type_, wide, seed) for seed in range(CLIENTS)], relative_error)
    for spread in ("special", "large") if not relative_error else ():
        _check_bits(coding, _value(type_, spread, 0))


def _check_bits(coding: _Coding, value: np.ndarray) -> None:
    decoded = coding.decoded(value, 0)
    for at in range(value.size):
        if not has_bits_of(decoded.flat[at], value.flat[at]):
            what = f"{value.flat[at]} of entry {at} is decoded as {decoded.flat[at]}"
            raise LawBroken("a lossless encoder keeps all bits", f"{what} in {coding.type}")


def _check_siblings(encoder: Encoder, type_: TensorType, relative_error: float) -> None:
    """Checks the errors of longer vectors, of a matrix of float64, of a few entries, of two tensors
    that are encoded before either is decoded, and a lossless encoder's values of other dtypes, as far as the encoder
    takes them.
    """
    if not type_.dtype.is_float or type_.sizes is None or None in type_.sizes:
        return
    size = math.prod(s or 0 for s in type_.sizes)
    wider = "float64" if type_.dtype.name == "float32" else type_.dtype
    siblings = [
        TensorType(type_.dtype, (size + size // 2 + 1,)),
        TensorType(type_.dtype, (LONG,)),
        TensorType(wider, (3, size // 3 + 1)),
        TensorType(type_.dtype, (FEW,)),
    ]
    others = [TensorType(dtype, type_.sizes) for dtype in OTHER_DTYPES if not relative_error]
    for sibling in (*siblings, *others):
        try:
            coding = _Coding(value_codec(lambda spec: encoder, sibling, "check_encoder"), sibling)
            if sibling in others:
                _check_bits(coding, _value(sibling, "special", 0))
                continue
            count = 1 if sibling.sizes == (LONG,) else DRAWS // 4
            is_coarse = bool(relative_error) and sibling.sizes == (FEW,)  # as a share of few entries is
            most = (1 + relative_error) / 2 if is_coarse else relative_error
            _check_errors(coding, [_value(sibling, "small", seed) for seed in range(count)], most)
        except LawBroken:
            raise
        except REFUSALS:  # nobody gets a wrong value
            continue
    _check_side_by_side(encoder, [siblings[1], siblings[0], type_], relative_error)


def _check_side_by_side(encoder: Encoder, types: list[TensorType], relative_error: float) -> None:
    """Checks the errors of tensors of several sizes that one encoder encodes and then decodes."""
    codec = value_codec(lambda spec: encoder, to_type(types), "check_encoder")
    errors = np.zeros(len(types))
    for seed in range(DRAWS // 4):
        values = [_value(t, "small", seed) for t in types]
        code, _ = codec.encode(values, seed, codec.initial_state())
        decoded = codec.decode(code, codec.initial_state())
        for i, (have, want) in enumerate(zip(decoded, values, strict=True)):
            norm = np.square(want, dtype=np.float64).sum()
            errors[i] += np.square(np.subtract(have, want, dtype=np.float64)).sum() / max(norm, 1e-300)
    mean = errors.max() / (DRAWS // 4)
    if not mean <= relative_error:
        law = "the squared error is at most `relative_error`, of tensors that are all encoded before they are decoded"
        raise LawBroken(law, f"wants at most {relative_error}, has {mean:.3g} for {', '.join(map(str, types))}")


def _check_errors(coding: _Coding, values: list[np.ndarray], relative_error: float) -> list[np.ndarray]:
    """For each value the errors of its entries, over the value's root mean square; of the value's shape.

    Raises:
        LawBroken: the mean square of all errors is above `relative_error`.
    """
    errors, worst = [], (-1.0, "")
    for seed, value in enumerate(values):
        decoded = coding.decoded(value, seed)
        wide = np.complex128 if value.dtype.kind == "c" else np.float64
        difference = np.asarray(decoded, wide) - np.asarray(value, wide)
        size = math.sqrt(max(np.square(np.abs(np.asarray(value, wide))).mean(), 1e-300)) if value.size else 1.0
        errors.append(difference / size)
        if difference.size:
            entry = int(np.argmax(np.abs(difference)))
            text = f"{value.flat[entry]} of entry {entry} is decoded as {decoded.flat[entry]}"
            worst = max(worst, (float(np.abs(difference).flat[entry]), text))
    mean = np.mean([np.square(np.abs(error)).mean() if error.size else 0.0 for error in errors])
    if not mean <= relative_error:
        law = "the squared error is at most `relative_error` of the squared norm"
        raise LawBroken(law, f"wants at most {relative_error}, has {mean:.3g} for {coding.type}; {worst[1]}")
    return errors


def _check_lean(whose: str, errors: list[np.ndarray], share: float = 0.25) -> None:
    """Refuses errors that lean to one side, as those of numbers that are always rounded up.

    They do if the square of their mean is more than `share` of their mean square, and the mean more than six standard
    errors from 0: chance refuses no encoder.

    Args:
        whose: what is decoded with these errors, for the message.
        errors: of the entries of one value each, as from `_check_errors`. Each value has its mean, and the spread of
            these means gives the standard error.
    """
    errors = [error for error in errors if error.size]
    means = np.array([error.mean() for error in errors])
    squares, lean = (np.mean([np.square(e).mean() for e in errors]), means.mean()) if errors else (0.0, 0.0)
    # Smaller errors than 1e-6 are those of rounding to float32.
    if squares > 1e-12 and lean**2 > share * squares and abs(lean) > 6 * means.std() / math.sqrt(len(means)):
        what = (
            f"the mean error of {whose} is {lean:.3g}, and the root of their mean squared error "
            f"{math.sqrt(squares):.3g}, of entries of size 1: the error of a sum grows with the number of clients"
        )
        raise LawBroken("the errors of many values cancel", what)


def _check_truncation(values: list[np.ndarray], errors: list[np.ndarray]) -> None:
    """Refuses an encoder that decodes entries too near to 0. Entries decoded as 0 do not count: it may leave some out.

    Args:
        values: each of one sign, so that such errors do not cancel.
        errors: of these values, as from `_check_errors`.
    """
    nearer = []
    for value, error in zip(np.asarray(values, np.float64), errors, strict=True):
        decoded = value + error * math.sqrt(np.square(value).mean() if value.size else 1.0)
        sent = np.abs(decoded) > 1e-9 * np.abs(value)
        nearer.append((error * np.sign(value))[sent])
    if nearer and sum(error.sum() for error in nearer) < 0:
        _check_lean("the entries of values of one sign", nearer, 0.5)


def _check_huge(coding: _Coding, values: list[np.ndarray], relative_error: float) -> None:
    """Checks values whose squares overflow; an encoder may decode them to infinity or NaN, not to other numbers."""
    with contextlib.suppress(FedcoreError, tf.errors.OpError):
        if all(np.isfinite(coding.decoded(value, seed)).all() for seed, value in enumerate(values)):
            _check_errors(coding, values, relative_error)


def _check_not_finite(coding: _Coding, value: np.ndarray) -> None:
    """Checks that a value with one entry that is not finite decodes to such a value, or is refused."""
    for wrong in (math.nan, math.inf, -math.inf) if value.size else ():
        broken = value.copy()
        broken.flat[value.size // 2] = wrong
        try:
            decoded = coding.decoded(broken, 0)
        except (FedcoreError, tf.errors.OpError):
            continue
        if np.isfinite(np.asarray(decoded, np.float64)).all():
            law = "a value that is not finite decodes to one that is not finite"
            raise LawBroken(law, f"{brief(broken)} is decoded as {brief(decoded)}")


def _check_finite(coding: _Coding, value: np.ndarray) -> None:
    """Checks values without a spread, and the value after the state of each."""
    for constant in (0.0, 1.0):
        like = np.full_like(value, constant)
        for other in (like, value):
            decoded = coding.decoded(other, 0)
            if not np.isfinite(np.asarray(decoded, np.complex128)).all():
                law = "a finite value decodes to a finite one"
                earlier_round = "" if other is like else f" after a round of {brief(like)}"
                raise LawBroken(law, f"{brief(other)} is decoded as {brief(decoded)}{earlier_round}")
            coding.update(like)


def _check_recovery(coding: _Coding, values: list[np.ndarray], relative_error: float) -> None:
    """Checks that the state of an adaptive encoder follows numbers that become larger again, and those below 0.

    Such a state aims at an error and may miss it by a bit of an entry, which is four times the squared error.
    """
    negative = [-np.abs(value) for value in values[:4]]
    for followed, scales in ((values, (1e-3, 1)), (negative, (1, 1000))):
        scaled = [[(scale * value).astype(value.dtype) for value in followed] for scale in scales]
        for value in itertools.chain(*scaled):
            coding.update(value)
        _check_errors(coding, scaled[-1][:4], 4 * relative_error)


def _bytes(code: object) -> list[bytes]:
    return [np.asarray(t).tobytes() for t in tf.nest.flatten(code)]


def _check_altered(codec: Any, type_: TensorType, value: np.ndarray) -> None:
    """Checks that a code with flipped bits is refused, or decodes to a value of the right shape."""
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
    """Checks that the encoder gives one sum whether clients are batched or run one by one.

    Args:
        values: of the clients.
    """
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
