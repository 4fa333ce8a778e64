"""Audits: a lower bound of epsilon that is measured by canary clients in one run."""

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from fedcore.errors import InvalidValue, TypeMismatch
from fedcore.graphs.tensors.values import leaves_of, to_python, unflatten
from fedcore.privacy.ledger import Ledger
from fedcore.privacy.mechanism import at_path, part, private_state_path
from fedcore.scalars import python_scalar, random_generator, real_number, whole_number
from fedcore.templates import AggregationProcess, IterativeProcess
from fedcore.types import Type, member_of, tensor_leaves

_CANARY_NORM = 1e3
"""Norm of a canary's value, over the clip: so large that an adaptive clip stays below it, and the value is clipped."""


@attrs.frozen
class Audit:
    """The result of an audit with canaries.

    Args:
        epsilon: the ledger's, an upper bound.
        estimate: the epsilon of Gaussians fitted to the scores of canaries in and out of the training.
        lower: its lower bound with the wanted confidence.
        delta: of all three.
        rounds, canaries: how many there were.
    """

    epsilon: float
    estimate: float
    lower: float
    delta: float
    rounds: int
    canaries: int

    @property
    def passed(self) -> bool:
        """Whether the lower bound is at most the ledger's epsilon, which is no proof: canaries do not find all."""
        return self.lower <= self.epsilon


def audit(
    process: IterativeProcess,
    sampler: Any,
    *,
    rounds: int,
    delta: float,
    clients_per_round: int | None = None,
    canaries: int | Sequence = 100,
    others: Callable[[Any], Any] | None = None,
    score: Callable[[Any, Any, Any], float] | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> Audit:
    """Runs a process with canary clients, and compares the epsilon that they measure with the ledger's.

    Canaries take the places of the first clients of the sampler. Their scores are compared with those of as many that
    never trained.

    Args:
        process: an `AggregationProcess`, or, with `score`, a `LearningProcess`.
        sampler: one of `fc.simulation`, over at least as many clients as canaries train.
        clients_per_round: of a sampler that is given the number of clients.
        rounds: of the run.
        delta: as for `Ledger`.
        canaries: how many train. Of an `AggregationProcess` their values are random directions, clipped. Else a list of
            clients' data, of which the first half trains.
        others: identifier -> the value or data of a client that is no canary. Default: zeros, for an
            `AggregationProcess`.
        score: (first state, last state, a canary) -> a number that is larger if it trained. Default, for an
            `AggregationProcess`: the product of its direction with the sum of the results.
        confidence: of the lower bound, from 0.5 to below 1.
        seed: of the directions and of the calls.
    Raises:
        TypeMismatch: as for `Ledger`; a `LearningProcess` comes without `score`, canaries or others.
        InvalidValue: a number is outside its range, a score is not finite, or there are fewer clients than canaries.
    Source: Andrew et al. 2023, "One-shot empirical privacy estimation for federated learning", arXiv:2302.03098,
        Algorithm 2. The paper fits both Gaussians and asks for the best test; here both have the larger one's spread,
        the tests are thresholds, and for the lower bound the fit is moved by its standard errors.
    Example:
        >>> vectors = factory.create(fc.to_type(('float32', [500])))
        >>> fc.privacy.audit(vectors, sampler, rounds=5, delta=1e-4, canaries=50).passed
        True
    """
    count = whole_number("rounds", rounds, at_least=1)
    confidence = float(real_number("confidence", confidence, at_least=0.5))
    if confidence >= 1:
        raise InvalidValue(f"confidence is below 1, not {confidence}")
    ledger = Ledger(process, sampler, delta=delta)
    rng = random_generator(seed, 1)
    canaries = python_scalar(canaries)
    # The canaries that train, and those that do not: rows of directions, or the users' data.
    inside: Any
    outside: Any
    if isinstance(process, AggregationProcess):
        if score is not None or not isinstance(canaries, int):
            raise TypeMismatch("the canaries of an AggregationProcess are their number, and score is its own")
        value_type = member_of(process.next.module.main.parameters[1].type)
        inside, outside = (_directions(rng, canaries, value_type) for _ in range(2))
        others = others or (lambda identifier: _value(np.zeros(inside.shape[1]), value_type))
        data: Sequence = [_value(_CANARY_NORM * _first_clip(process) * row, value_type) for row in inside]
    else:
        if score is None or others is None or isinstance(canaries, int) or len(canaries) < 4:
            raise TypeMismatch("the audit of a LearningProcess needs a list of canaries (4 or more), others and score")
        half = len(canaries) // 2
        data, inside, outside = canaries[:half], canaries[:half], canaries[half:]
    ids = list(getattr(sampler, "ids", ()))
    if len(ids) < len(data):
        raise InvalidValue(f"{len(data)} canaries need the places of so many clients; the sampler has {len(ids)}")
    canary_by_id = dict(zip(ids, data, strict=False))
    first = state = process.initialize.invoke(seed=seed)
    total: Any = 0.0
    for number in range(count):
        cohort = sampler(number, clients_per_round)
        values = [canary_by_id[i] if i in canary_by_id else others(i) for i in cohort]
        if isinstance(process, AggregationProcess):
            output = process.next.invoke(state, values, seed=int(rng.integers(1 << 62)))
            total = total + _vector(output.result, value_type)
        else:
            output = process.next(state, values)
        state = output.state
        ledger.record(state, cohort)
    if isinstance(process, AggregationProcess):
        scores = [inside @ total, outside @ total]
    else:
        assert score is not None
        scores = [np.array([score(first, state, c) for c in group], np.float64) for group in (inside, outside)]
    estimate, lower = epsilon_between(scores[0], scores[1], delta, confidence)
    return Audit(ledger.epsilon(), estimate, lower, ledger.delta, count, len(data))


def epsilon_between(inside: np.ndarray, outside: np.ndarray, delta: float, confidence: float) -> tuple[float, float]:
    """(epsilon of Gaussians fitted to the scores of canaries in and out of the training, its lower bound).

    Raises:
        InvalidValue: a score is not finite.
    """
    from scipy.special import ndtri

    if not (np.isfinite(inside).all() and np.isfinite(outside).all()):
        raise InvalidValue("a canary's score is not a finite number, so that the audit finds no epsilon")
    # Of both spreads the larger one, since a smaller spread of either makes the scores easier to tell apart.
    spread = max(float(inside.std(ddof=1)), float(outside.std(ddof=1)), 1e-12)
    distance, margin = float(inside.mean() - outside.mean()), ndtri(confidence)
    errors = [spread / np.sqrt(len(x)) for x in (inside, outside)]
    nearer, wider = distance - margin * np.hypot(*errors), spread * (1 + margin / np.sqrt(2 * len(inside)))
    return _epsilon(distance / spread, delta), _epsilon(max(nearer, 0.0) / wider, delta)


def _epsilon(distance: float, delta: float) -> float:
    """The greatest log((P - delta) / Q) over thresholds, P and Q being N(distance, 1) and N(0, 1) above a threshold."""
    from scipy.special import log_ndtr

    thresholds = np.linspace(-8.0, 8.0, 4001) + distance
    log_true_positives, log_false_positives = log_ndtr(distance - thresholds), log_ndtr(-thresholds)
    excess = np.exp(log_true_positives) - delta
    usable = excess > 0
    return float(np.max(np.log(excess[usable]) - log_false_positives[usable], initial=0.0))


def _first_clip(process: AggregationProcess) -> float:
    """The clip of the process's first round."""
    return float(part(at_path(process.initialize.invoke(seed=0), private_state_path(process)), "clip"))


def _directions(rng: np.random.Generator, count: int, value_type: Type) -> np.ndarray:
    """Random vectors of norm 1, float64 [count, elements of a value]."""
    size = sum(int(np.prod([n or 0 for n in t.sizes])) for t in tensor_leaves(value_type))
    rows = rng.normal(size=(whole_number("canaries", count, at_least=2), size))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _vector(value: Any, value_type: Type) -> np.ndarray:
    """The elements of a value as a float64 vector, leaf by leaf."""
    return np.concatenate([np.asarray(x, np.float64).ravel() for x in leaves_of(value, value_type)])


def _value(row: np.ndarray, value_type: Type) -> Any:
    """The value of which `_vector` makes the row."""
    leaves, start = [], 0
    for t in tensor_leaves(value_type):
        size = int(np.prod([n or 0 for n in t.sizes]))
        leaves.append(row[start : start + size].reshape([n or 0 for n in t.sizes]).astype(t.dtype.numpy))
        start += size
    return to_python(unflatten(leaves, value_type), value_type)
