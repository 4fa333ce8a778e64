"""Checks the laws of an optimizer."""

import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import fedcore as fc
from fedcore.errors import TypeMismatch, brief
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.learning.optimizers import Optimizer, as_optimizer
from fedcore.learning.optimizers.keras_optimizer import OptimizerLike
from fedcore.runtime.reports.result_difference import difference
from fedcore.testing.laws import LawBroken, describe_raised
from fedcore.testing.values import draw

NAMES = ("dense/kernel", "dense/bias", "gain", "kernel", "scale")
"""Names of the weights, in the order of their nest."""

SPREADS = ("small", "mixed", "small", "offset", "small")
"""Spreads of the gradients of each step; those of the third step are 0."""

CLIENTS = 3

LEAST_FELT = 1e-3
"""Hyperparameters of this size change the weights; smaller ones, such as an epsilon, may not."""

MANY = 260
"""Steps that a count of 8 bits does not hold."""


def check_optimizer(
    optimizer: OptimizerLike,
    meaning: keras.optimizers.Optimizer | Callable[[np.ndarray, list], np.ndarray] | None = None,
    *,
    tolerance: float = 1e-5,
) -> None:
    """Checks the laws of an optimizer, by five steps on generated weights and gradients of float32 and of float64.

    The weights are nested in a dict, whose keys are not sorted, and a tuple; they have none to three axes, and one is 0
    as a new bias is; gradients are near 0, of several orders of magnitude, large, and 0. Another 260 steps have
    gradients near 0.

    Laws: `initialize` gives the same state for weights and for their specs; a step keeps the structure, the shapes and
    the dtypes of the state and of the weights, and leaves them finite; a weight whose gradient is None stays;
    hyperparameters stand in the state and can be set, and others lead to other weights; equal steps give equal bits,
    whatever was computed before, also `with_names` for another model; clients that are batched take the steps that each
    takes alone; the weights are those of `meaning`.

    Args:
        optimizer: one of `fc.learning.optimizers`, a Keras optimizer, or a function that makes one.
        meaning: a Keras optimizer, whose `apply` takes the same steps; or a function of a weight and the list of its
            gradients, arrays of float64, that gives the weight after all steps. Default: it is not checked.
        tolerance: by how much weights may differ from the meaning's, relative to their size and to 1.
    Raises:
        LawBroken: names the law, and shows the difference.
        FedcoreError: it is no optimizer.
    Example:
        >>> sgd = fc.learning.optimizers.build_sgdm(0.5)
        >>> fc.testing.check_optimizer(sgd, keras.optimizers.SGD(0.5))
        >>> fc.testing.check_optimizer(sgd, lambda weight, gradients: weight - 0.5 * sum(gradients))
    """
    if not (meaning is None or callable(meaning) or isinstance(meaning, keras.optimizers.Optimizer)):
        raise TypeMismatch(f"check_optimizer: meaning is a Keras optimizer or a function, not {brief(meaning)}")
    checked = as_optimizer(optimizer, NAMES)
    name = type(optimizer if isinstance(optimizer, keras.optimizers.Optimizer) else checked).__name__
    for dtype in ("float32", "float64"):
        _Check(name, checked, dtype, tolerance).run(meaning)


def _drawn(dtype: str, spread: str, seed: int) -> TensorStructure:
    """Weights, or gradients of them, with the names of `NAMES`."""
    rng = np.random.default_rng(seed)

    def fn(shape: tuple[int, ...]) -> tf.Tensor:
        return tf.constant(draw(np.dtype(dtype), shape, rng, spread))

    drawn = {"dense": (fn((3, 2)), fn((2,))), "gain": fn((1,)), "kernel": fn((2, 1, 3)), "scale": fn(())}
    return dict(reversed(drawn.items()))  # a model's weights are in any order, and tf.nest sorts them


class _Check:
    """The check for weights of one dtype."""

    def __init__(self, name: str, optimizer: Optimizer, dtype: str, tolerance: float) -> None:
        self._name = name
        self._optimizer = optimizer
        self._dtype = dtype
        self._tolerance = tolerance
        self._weights, *self._others = [_drawn(dtype, "small", seed) for seed in range(CLIENTS)]
        self._weights["gain"] = tf.zeros_like(self._weights["gain"])  # as a new bias
        self._gradients = [_drawn(dtype, spread, 10 + i) for i, spread in enumerate(SPREADS)]
        self._gradients[2] = tf.nest.map_structure(tf.zeros_like, self._gradients[2])
        self._many_gradients = [_drawn(dtype, "small", i % 7) for i in range(MANY)]

    def run(self, meaning: Any) -> None:
        try:
            final = self._steps(self._weights)
            self._optimizer.with_names(NAMES[::-1])  # for another model, which has its own optimizer
            self._check_types()
            self._check_hyperparameters()
            self._steps(self._others[0])
            again = self._steps(self._weights)
            clients = self._train_clients()
        except LawBroken:
            raise
        except Exception as error:
            raise self._broken("takes steps", f"it raises {describe_raised(error)}") from error
        self._equal("equal steps give equal bits", again, final, 0)
        for number, (weights, result) in enumerate(zip([self._weights, *self._others], clients, strict=True)):
            self._equal(f"client {number} of a batch takes the steps that it takes alone", result, self._steps(weights))
        many = self._steps(self._weights, self._many_gradients)
        if meaning is not None:
            self._check_meaning(meaning, final, self._gradients, self._tolerance)
            self._check_meaning(meaning, many, self._many_gradients, max(self._tolerance, 1e-3))

    def _broken(self, law: str, what: str) -> LawBroken:
        return LawBroken(f"{self._name}, {self._dtype}: {law}", what)

    def _equal(self, law: str, have: Any, want: Any, tolerance: float = 64) -> None:
        """Raises LawBroken unless two structures are equal up to `tolerance` roundings."""
        mismatch = difference(have, want, tolerance, "it")
        if mismatch is not None:
            raise self._broken(law, mismatch)

    def _steps(self, weights: TensorStructure, all_gradients: list | None = None, hparams: dict | None = None) -> Any:
        """The weights after all steps, as arrays; the step is traced anew.

        Args:
            all_gradients: of each step. Default: those of `SPREADS`, five steps.
            hparams: set in the initial state. Default: the optimizer's own.
        Raises:
            LawBroken: a step leads to weights that are not finite.
        """
        step, state = tf.function(self._optimizer.next, autograph=False), self._optimizer.initialize(weights)
        if hparams is not None:
            state = self._optimizer.set_hparams(state, hparams)
        for number, gradients in enumerate(self._gradients if all_gradients is None else all_gradients, 1):
            state, weights = step(state, weights, gradients)
            if not all(np.isfinite(w).all() for w in tf.nest.flatten(weights)):
                what = f"gradients {_arrays(gradients)} lead to weights {_arrays(weights)}"
                raise self._broken(f"step {number} leaves the weights finite", what)
        return _arrays(weights)

    def _check_types(self) -> None:
        optimizer, weights = self._optimizer, self._weights
        specs = tf.nest.map_structure(lambda w: tf.TensorSpec(w.shape, w.dtype), weights)
        state = optimizer.initialize(weights)
        law = "the state for weights is that for their specs"
        self._equal(law, _types(optimizer.initialize(specs)), _types(state))
        self._equal(law, _arrays(optimizer.initialize(specs)), _arrays(state), 0)
        next_state, moved = tf.function(optimizer.next, autograph=False)(state, weights, self._gradients[0])
        self._equal("a step keeps the type of the state", _types(next_state), _types(state))
        self._equal("a step keeps the type of the weights", _types(moved), _types(weights))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras says that a gradient is missing
            _, moved = optimizer.next(state, weights, {**self._gradients[0], "kernel": None})
        self._equal("a weight without a gradient stays", moved["kernel"].numpy(), weights["kernel"].numpy(), 0)

    def _check_hyperparameters(self) -> None:
        optimizer, state = self._optimizer, self._optimizer.initialize(self._weights)
        values = {name: np.float32(value) for name, value in optimizer.hyperparameters.items()}
        law = "hyperparameters stand in the state"
        self._equal(law, {n: np.float32(v) for n, v in optimizer.get_hparams(state).items()}, values)
        halved = {name: value / 2 for name, value in values.items()}
        actual = optimizer.get_hparams(optimizer.set_hparams(state, halved))
        self._equal("hyperparameters can be set", {n: np.float32(v) for n, v in actual.items()}, halved)
        weights = self._steps(self._weights)
        for name in [n for n, value in values.items() if abs(value) >= LEAST_FELT]:
            if difference(weights, self._steps(self._weights, hparams={name: values[name] / 2}), 0) is None:
                what = f"the weights are the same for {values[name]} and for its half"
                raise self._broken(f"the {name} that is set has an effect", what)

    def _train_clients(self) -> list:
        """The weights of each client after all steps, computed by the local runtime."""
        stacked = tf.nest.map_structure(lambda *steps: tf.stack(steps), *self._gradients)
        types = [
            tf.nest.map_structure(lambda t: fc.TensorType(t.dtype.name, t.shape), x) for x in (self._weights, stacked)
        ]

        @fc.tf_computation(*types, "int32")
        def train(weights: TensorStructure, gradients: TensorStructure, place: tf.Tensor) -> TensorStructure:
            """The weights as row `place` of a matrix of zeros, so that a sum over clients shows each client."""
            state = self._optimizer.initialize(weights)
            for i in range(len(SPREADS)):
                gradient = tf.nest.map_structure(lambda g, i=i: g[i], gradients)
                state, weights = self._optimizer.next(state, weights, gradient)
            return tf.nest.map_structure(
                lambda w: tf.stack([tf.where(place == k, w, 0) for k in range(CLIENTS)]), weights
            )

        placed = [fc.FederatedType(fc.to_type(t), fc.CLIENTS) for t in (*types, "int32")]

        @fc.federated_computation(*placed)
        def total(weights: fc.Value, gradients: fc.Value, places: fc.Value) -> fc.Value:
            return fc.federated_sum(fc.federated_map(train, (weights, gradients, places)))

        runtime = fc.runtime.local(workers_per_device=1)
        try:
            with fc.use(runtime):
                rows = total([self._weights, *self._others], [stacked] * CLIENTS, [*range(CLIENTS)])
        finally:
            runtime.close()
        return [tf.nest.map_structure(lambda r, k=k: np.asarray(r)[k], rows) for k in range(CLIENTS)]

    def _check_meaning(self, meaning: Any, final: Any, all_gradients: list, tolerance: float) -> None:
        """Compares `final`, the weights after all steps, with those of a Keras optimizer or of a formula."""
        starts = [w.numpy() for w in tf.nest.flatten(self._weights)]
        gradients = [[g.numpy() for g in tf.nest.flatten(step)] for step in all_gradients]
        if isinstance(meaning, keras.optimizers.Optimizer):
            variables = [keras.Variable(w, dtype=self._dtype) for w in starts]
            theirs = type(meaning).from_config(meaning.get_config())
            for step in gradients:
                theirs.apply([tf.constant(g) for g in step], variables)
            wants, whose = [v.numpy() for v in variables], f"keras.optimizers.{type(meaning).__name__}"
        else:
            columns = zip(starts, zip(*gradients, strict=True), strict=True)
            wants = [meaning(np.float64(w), [np.float64(g) for g in column]) for w, column in columns]
            whose = "its formula"
        for have, want in zip(tf.nest.flatten(final), wants, strict=True):
            if not np.allclose(have, want, tolerance, tolerance):
                law = f"the weights after {len(all_gradients)} steps are those of {whose}"
                raise self._broken(law, f"wants {np.asarray(want)}, has {have}, of the shape {list(np.shape(have))}")


def _arrays(structure: TensorStructure) -> Any:
    return tf.nest.map_structure(np.asarray, structure)


def _types(structure: TensorStructure) -> Any:
    return tf.nest.map_structure(
        lambda t: f"{t.dtype.name}{t.shape}", tf.nest.map_structure(tf.convert_to_tensor, structure)
    )
