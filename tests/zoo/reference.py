"""Federated training and evaluation by plain Keras, TensorFlow and numpy. Nothing here knows of fedcore."""

from collections.abc import Callable, Iterable

import keras
import numpy as np
import tensorflow as tf


def float_variables(model: keras.Model) -> list[keras.Variable]:
    """Variables that clients may move: all but counters and the states of random numbers."""
    return [v for v in model.variables if keras.backend.is_float_dtype(v.dtype)]


def values_of(model: keras.Model) -> list[np.ndarray]:
    return [v.numpy() for v in float_variables(model)]


def assign(model: keras.Model, values: list[np.ndarray]) -> None:
    for variable, value in zip(float_variables(model), values, strict=True):
        variable.assign(value)


class GradientSum(keras.optimizers.SGD):
    """FedSGD's client: the weights stay, gradients are added in proportion to the examples of their batches."""

    def __init__(self):
        super().__init__()
        self.batch_examples, self.examples, self.total = 0, 0, None

    def apply(self, grads, trainable_variables=None):
        scaled = [0.0 if g is None else np.asarray(g) * self.batch_examples for g in grads]
        self.total = scaled if self.total is None else [t + s for t, s in zip(self.total, scaled, strict=True)]
        self.examples += self.batch_examples


def _adjust_gradients(optimizer, strength: float, start: dict[int, np.ndarray]) -> None:
    """Adds the gradient of strength/2 times the squared distance from the first weights, and gradients of one row.

    An embedding's gradient comes as one part for each lookup; Keras squares and clips the parts.
    """
    apply = optimizer.apply

    def adjusted(gradient, variable):
        if gradient is None:
            return None
        dense = tf.convert_to_tensor(gradient)
        return dense + strength * (variable.value - start[id(variable)]) if strength else dense

    def apply_adjusted(grads, trainable_variables=None):
        pairs = zip(grads, trainable_variables, strict=True)
        return apply([adjusted(g, v) for g, v in pairs], trainable_variables)

    optimizer.apply = apply_adjusted


def train_client(model, optimizer, batches: Iterable, proximal_strength: float = 0.0) -> tuple[int, int]:
    """Trains a compiled model on the batches, and returns the numbers of examples and of steps."""
    _adjust_gradients(optimizer, proximal_strength, {id(v): v.numpy() for v in model.trainable_variables})
    model.optimizer = optimizer
    examples = steps = 0
    for batch in batches:
        steps += 1
        optimizer.batch_examples = int(keras.tree.flatten(batch)[0].shape[0])
        examples += optimizer.batch_examples
        model.train_step(batch)
    if examples:
        optimizer.finalize_variable_values(model.trainable_variables)  # as `fit` does
    if isinstance(optimizer, GradientSum) and optimizer.total is not None:
        for variable, gradient in zip(model.trainable_variables, optimizer.total, strict=True):
            variable.assign_sub(gradient / optimizer.examples)
    return examples, steps


def train_round(
    model: keras.Model,
    clients: list[Iterable],
    optimizer_fn: Callable,
    server_optimizer: keras.optimizers.Optimizer,
    mean: Callable[[list[list[np.ndarray]], list[int], list[int], list[bool]], list[np.ndarray]],
    proximal_strength: float = 0.0,
) -> dict:
    """A round of federated averaging. `model` is compiled and holds the global weights, which the round moves.

    Args:
        clients: each client's batches, as `fit` takes them.
        mean: (the clients' changes, their numbers of examples, their numbers of steps, of each variable whether
            gradients train it) -> the change of the round.
    Returns:
        The metrics of the clients' training, by Keras' names; none where there was no batch.
    """
    start, changes, counts, steps = values_of(model), [], [], []
    others = [(v, v.numpy()) for v in model.variables if not keras.backend.is_float_dtype(v.dtype)]
    model.reset_metrics()
    for batches in clients:
        assign(model, start)
        for variable, value in others:  # counters begin at the server's value, which stays
            variable.assign(value)
        for layer in model.layers:
            if getattr(layer, "stateful", False):
                layer.reset_state()
        metrics_before = [v.numpy() for v in model.metrics_variables]
        count, client_steps = train_client(model, optimizer_fn(), batches, proximal_strength)
        change = [after - before for after, before in zip(values_of(model), start, strict=True)]
        if not all(np.isfinite(c).all() for c in change):  # counts for nothing, in the metrics too
            count, change = 0, [np.zeros_like(c) for c in change]
            model.reset_metrics()  # those that the client's first batch has built
            for variable, value in zip(model.metrics_variables, metrics_before, strict=False):
                variable.assign(value)
        counts.append(count)
        changes.append(change)
        steps.append(client_steps)
    assign(model, start)
    for variable, value in others:
        variable.assign(value)
    if sum(counts) == 0:
        return {}
    metrics = _metrics(model)
    trained = {id(v) for v in model.trainable_variables}
    change = mean(changes, counts, steps, [id(v) in trained for v in float_variables(model)])
    by_variable = {id(v): c for v, c in zip(float_variables(model), change, strict=True)}
    for variable in float_variables(model):
        if id(variable) not in trained:
            variable.assign_add(by_variable[id(variable)])
    gradients = [keras.ops.convert_to_tensor(-by_variable[id(v)], v.dtype) for v in model.trainable_variables]
    server_optimizer.apply(gradients, model.trainable_variables)
    return metrics


def evaluate(model: keras.Model, clients: list[Iterable]) -> dict:
    """The metrics of a compiled model over all clients' batches, by Keras' names; none where there is no batch."""
    model.reset_metrics()
    everything = [batch for batches in clients for batch in batches]
    for batch in everything:
        model.test_step(batch)
    return _metrics(model) if everything else {}


def _metrics(model: keras.Model) -> dict[str, np.ndarray]:
    """The metrics as `fit` reports them: results that are dicts have their own names."""
    metrics: dict[str, np.ndarray] = {}
    for name, value in model.get_metrics_result().items():
        metrics |= (
            {n: np.asarray(v) for n, v in value.items()} if isinstance(value, dict) else {name: np.asarray(value)}
        )
    return metrics
