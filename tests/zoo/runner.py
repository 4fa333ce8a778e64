"""Runs an entry of the zoo on fedcore and on plain Keras, and compares weights and metrics."""

import functools
import itertools
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import attrs
import keras
import numpy as np

import fedcore as fc
from fedcore.errors import FedcoreError

from . import reference
from .data_kinds import make_clients
from .entries import DATA_KINDS, DataKind, Model
from .trainings import Training

ROUNDS = 2

EQUAL, DIFFERS, REFUSED, UNCOMPARED = "equal", "differs", "refused", "not compared"


@attrs.frozen
class Comparison:
    """The outcome of one combination.

    Args:
        outcome: `EQUAL`; `DIFFERS`, also where only one of the two raises; `REFUSED`, by a `FedcoreError` that the
            entry expects, or by both; `UNCOMPARED`.
        detail: the largest differences, the message, or the reason.
    """

    model: str
    data: str
    training: str
    outcome: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.model} × {self.data} × {self.training}: {self.outcome}: {self.detail}"


@attrs.frozen
class _Outcome:
    """Weights after each round, and the metrics of each round."""

    weights: list[list[np.ndarray]]
    metrics: list[dict[str, np.ndarray]]


def compare(model: Model, training: Training, kinds: Iterable[DataKind] | None = None) -> Iterator[Comparison]:
    """The comparisons of a model and a training over kinds of data; kinds of one type of batches share a process."""
    processes = functools.lru_cache(_Processes(model, training).build)
    for kind in DATA_KINDS.values() if kinds is None else kinds:
        obstacle = kind.obstacle(model) or _obstacle(model, kind)
        outcome = (UNCOMPARED, obstacle) if obstacle else _compare(model, training, kind, processes)
        yield Comparison(model.name, kind.name, training.name, *outcome)


def _obstacle(model: Model, kind: DataKind) -> str | None:
    leaves = keras.tree.flatten(model.columns(np.random.default_rng(0), 1))
    if kind.source == "pandas" and any(leaf.ndim > 2 for leaf in leaves):
        return "a frame has columns of scalars"
    return None


def _compare(model: Model, training: Training, kind: DataKind, processes: Callable) -> tuple[str, str]:
    make_ours, plain = make_clients(model, kind)
    try:
        ours = make_ours()
        process = processes(_hashable(ours[0].element_spec), len(kind.sizes))
        state = process.initialize.invoke(seed=0)
        start = process.get_model_weights(state)
        have: Any = _by_fedcore(model, training, process, state, ours)
    except FedcoreError as error:
        have, start = error, None
    except Exception:
        return DIFFERS, f"raised: {_last_lines(traceback.format_exc())}"
    try:
        want = _by_keras(model, training, start, plain)
    except Exception as error:
        if isinstance(have, FedcoreError):
            return REFUSED, f"by both: {_first_line(have)}"
        return DIFFERS, f"Keras raises {type(error).__name__}: {_first_line(error)}"
    if isinstance(have, FedcoreError):
        expected = model.refusal is not None and model.refusal in str(have)
        return REFUSED if expected else DIFFERS, f"refused: {_first_line(have)}"
    unequal = first_weights_that_differ(model, start)
    if unequal:
        return DIFFERS, f"first weights of {unequal}"
    moved = _moved_though_frozen(model, start, have, want)
    if moved:
        return DIFFERS, f"frozen weights moved: {moved}"
    mismatch = _mismatch(model, training, have, want, want)
    if mismatch:  # how far do rounding errors move Keras itself?
        wobbles = [_by_keras(model, training, start, plain, rng=np.random.default_rng(i)) for i in range(12)]
        mismatch = _mismatch(model, training, have, want, *wobbles)
    return (DIFFERS, mismatch) if mismatch else (EQUAL, "")


def compare_draws(model: Model, rate: float = 0.4) -> Comparison:
    """Rounds with dropout: equal with equal seeds, other ones with other seeds and in the next round.

    The server does not move, so that both rounds start from the same weights.
    """
    kind = DATA_KINDS["full batches"]
    ours = make_clients(model, kind)[0]()
    process = fc.learning.algorithms.build_weighted_fed_avg(
        lambda: fc.learning.from_keras_model(model.make(rate), model.loss, ours[0].element_spec),
        lambda: keras.optimizers.SGD(0.1),
        lambda: keras.optimizers.SGD(0.0),
    )

    def losses(seed: int) -> list[float]:
        state, found = process.initialize.invoke(seed=seed).replace(model=first.model), []
        for _ in range(ROUNDS):
            state, output = process.next(state, ours)
            found.append(float(output["client_work"]["train"]["loss"]))
        return found

    first = process.initialize.invoke(seed=0)
    one, same, other = losses(1), losses(1), losses(2)
    if one != same:
        return Comparison(model.name, kind.name, "draws", DIFFERS, f"one seed gives losses {one} and {same}")
    if len({*one, *other}) < 2 * ROUNDS:
        return Comparison(model.name, kind.name, "draws", DIFFERS, f"draws repeat: losses {one} and {other}")
    return Comparison(model.name, kind.name, "draws", EQUAL)


@attrs.frozen
class _Processes:
    """Builds the process of a model and a training for a type of batches."""

    model: Model
    training: Training

    def build(self, spec: "_HashableSpec", clients: int):
        def model_fn():
            arguments = self.model.compile_arguments()
            return fc.learning.from_keras_model(
                self.model.make_for_comparison(), input_spec=spec.spec, **without_none(arguments)
            )

        client = self.training.own_client or self.training.make_client
        return self.training.build(model_fn, client, self.training.server, clients)


@attrs.frozen
class _HashableSpec:
    text: str
    spec: Any = attrs.field(eq=False)


def _hashable(spec) -> _HashableSpec:
    return _HashableSpec(str(spec), spec)


def without_none(arguments: dict) -> dict:
    return {name: value for name, value in arguments.items() if value is not None}


def _by_fedcore(model: Model, training: Training, process, state, clients: list) -> _Outcome:
    weights, metrics = [], []
    with fc.use(training.runtime()):
        for _ in range(ROUNDS):
            state, output = process.next(state, clients)
            work = output["client_work"]
            metrics.append(work["eval"]["current_round_metrics"] if training.evaluates else work["train"])
            weights.append(reference.values_of(_assigned(model, process.get_model_weights(state))))
    return _Outcome(weights, metrics)


def _assigned(model: Model, weights: fc.learning.ModelWeights) -> keras.Model:
    """The Keras model with weights of fedcore."""
    keras_model = model.make_for_comparison()
    _build(keras_model, model)
    weights.assign_weights_to(keras_model)
    return keras_model


def _build(keras_model: keras.Model, model: Model) -> None:
    if not keras_model.built:
        rows = model.columns(np.random.default_rng(0), model.batch_size or 2)
        keras_model(keras.tree.map_structure(keras.ops.convert_to_tensor, rows[0]))


def _by_keras(model: Model, training: Training, first, plain: Callable, rng=None) -> _Outcome:
    """The reference; with an rng, from first weights that are moved by a few of their last bits."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras' advice, such as on outputs that have no loss
        return _trained_by_keras(model, training, first, plain, rng)


def _trained_by_keras(model: Model, training: Training, first, plain: Callable, rng) -> _Outcome:
    if first is None:
        keras_model = model.make_for_comparison()
        _build(keras_model, model)
    else:
        keras_model = _assigned(model, first)
    keras_model.compile(run_eagerly=True, **model.compile_arguments())
    if rng is not None:
        values = reference.values_of(keras_model)
        ulps = [1 + model.epsilon * rng.integers(-2, 3, v.shape) for v in values]
        reference.assign(keras_model, [(v * u).astype(v.dtype) for v, u in zip(values, ulps, strict=True)])
    weights, metrics, server = [], [], training.server()
    client = training.plain_client or training.make_client
    if training.keeps_optimizers:
        client = itertools.cycle([client() for _ in plain()]).__next__
    for _ in range(ROUNDS):
        if training.evaluates:
            metrics.append(reference.evaluate(keras_model, plain()))
        else:
            metrics.append(
                reference.train_round(keras_model, plain(), client, server, training.mean, training.proximal_strength)
            )
        weights.append(reference.values_of(keras_model))
    return _Outcome(weights, metrics)


def first_weights_that_differ(model: Model, first) -> str:
    """The weights that Keras makes equal each time, and fedcore has otherwise."""
    models = [model.make_for_comparison() for _ in range(2)]
    for keras_model in models:
        _build(keras_model, model)
    a, b, ours = *map(reference.values_of, models), reference.values_of(_assigned(model, first))
    variables = reference.float_variables(models[0])
    unequal = [
        v.path
        for v, x, y, z in zip(variables, a, b, ours, strict=True)
        if np.array_equal(x, y) and not np.array_equal(x, z)
    ]
    return ", ".join(unequal)


def _moved_though_frozen(model: Model, start, have: _Outcome, want: _Outcome) -> str:
    """The weights whose bits stay in Keras, since nothing trains them, and move in fedcore."""
    keras_model = _built(model)
    trained = {id(v) for v in keras_model.trainable_variables}
    before = reference.values_of(_assigned(model, start))
    moved = [
        v.path
        for v, first, x, y in zip(
            reference.float_variables(keras_model), before, have.weights[-1], want.weights[-1], strict=True
        )
        if id(v) not in trained and np.array_equal(first, y) and not np.array_equal(first, x)
    ]
    return ", ".join(moved)


def _mismatch(model: Model, training: Training, have: _Outcome, want: _Outcome, *wobbles: _Outcome) -> str:
    """The largest differences; empty if all are within their bounds.

    A bound has two parts. Rounding: a step computes a weight in a few operations, each with an error of half an
    epsilon of the largest value. Conditioning: 8 times as far as Keras' own result moves when its first weights
    move by their last bits; that is large where an optimizer divides by the size of gradients that are zeros but for
    rounding, as those of a bias before a normalization.
    """
    mistakes = []
    steps = 8 * ROUNDS
    names = [v.path for v in reference.float_variables(_built(model))]
    for i in range(ROUNDS):
        largest = max((float(np.max(np.abs(v))) for v in want.weights[i] if v.size), default=0.0)
        for j, name in enumerate(names):
            others = [w.weights[i][j] for w in wobbles]
            floor = 2 * model.epsilon * steps + training.rounding * max(1.0, largest)
            mistakes += _beyond(f"{name}", i, have.weights[i][j], want.weights[i][j], others, floor)
        for name, value in want.metrics[i].items():
            if name not in have.metrics[i]:
                mistakes.append(f"no metric {name} (there is {', '.join(have.metrics[i])})")
                continue
            floor = 4 * model.epsilon * steps + training.rounding
            others = [w.metrics[i][name] for w in wobbles]
            mistakes += _beyond(f"metric {name}", i, np.asarray(have.metrics[i][name]), value, others, floor)
    return "; ".join(mistakes[:4])


def _beyond(name: str, round_: int, have: np.ndarray, want: np.ndarray, others: list, floor: float) -> list[str]:
    if have.shape != want.shape:
        return [f"{name} has shape {list(have.shape)}, not {list(want.shape)}"]
    scale = max(1.0, float(np.max(np.abs(want)))) if want.size else 1.0
    wobble = max((float(np.max(np.abs(o - want))) for o in others if o.size), default=0.0)
    bound = floor * scale + 8 * wobble
    error = float(np.max(np.abs(have - want))) if want.size else 0.0
    if (
        error <= bound
        or np.array_equal(have, want)
        or (np.isnan(want).any() and np.array_equal(np.isnan(have), np.isnan(want)))
    ):
        return []
    at = int(np.nanargmax(np.abs(have - want))) if not np.isnan(have - want).all() else 0
    pair = f"{np.ravel(have)[at]:.6g} for {np.ravel(want)[at]:.6g}"
    return [f"round {round_ + 1}: {name} {pair}, off by {error:.2g} where {bound:.1g} is rounding"]


@functools.lru_cache(maxsize=8)
def _built(model: Model) -> keras.Model:
    keras_model = model.make_for_comparison()
    _build(keras_model, model)
    return keras_model


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).split("\n") if line.strip()]
    return " / ".join(lines[:3])[:300]


def _last_lines(text: str) -> str:
    return " / ".join(line.strip() for line in text.strip().split("\n")[-4:])[-400:]
