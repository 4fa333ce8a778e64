"""The server's part of an algorithm, which begins the state and makes the process of a round."""

import functools
from collections.abc import Callable
from typing import Any

import attrs

from fedcore.computation import Computation, federated_computation, tf_computation
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.intrinsics import federated_eval
from fedcore.ir import Value
from fedcore.learning.models import ModelWeights, PureModel
from fedcore.learning.models.frozen_weights import changing_type, weights_functions
from fedcore.learning.models.pure_model import with_weight_names
from fedcore.learning.optimizers import Optimizer
from fedcore.learning.process import LearningProcess
from fedcore.learning.templates.state import first_state
from fedcore.templates import MeasuredProcess
from fedcore.types import SERVER


@attrs.frozen
class ServerWork:
    """The server's part of an algorithm, as `ClientWork` is the clients'.

    Types, for the changing weights U of the model and a state O of the server's optimizer.

    Args:
        update: (<O,U,mean change=U> -> <O,U>).
        aggregate_metrics: traced in a round; {M}@CLIENTS -> (the added metric states, the metrics), both at the server.
    """

    model: PureModel
    optimizer: Optimizer
    update: Callable
    aggregate_metrics: Callable

    @functools.cached_property
    def initial_weights(self) -> Computation:
        """(-> U)."""
        model = self.model
        return tf_computation(lambda: model.initial_changing_weights())

    @functools.cached_property
    def initial_state(self) -> Computation:
        """(trainable weights of U -> O)."""
        optimizer = self.optimizer
        weights_type: Any = changing_type(self.model)
        return tf_computation(weights_type["trainable"])(lambda trainable: optimizer.initialize(trainable))

    @functools.cached_property
    def start(self) -> Computation:
        """(-> <U,O>): both in one graph, which draws the weights once."""
        model, optimizer = self.model, self.optimizer

        @tf_computation
        def start() -> tuple[ModelWeights, TensorStructure]:
            weights = model.initial_changing_weights()
            return weights, optimizer.initialize(weights.trainable)

        return start

    def initialize(
        self,
        *,
        distributor: MeasuredProcess | None = None,
        client_work: Computation | None = None,
        aggregator: Any = None,
    ) -> Computation:
        """The computation `(-> State@SERVER)` of the state before the first round; what is left out is <>.

        Args:
            client_work: makes the state of the clients' work.
            aggregator: an aggregation process, or an object whose `initialize` is used while this is traced.
        """

        @federated_computation
        def initialize() -> Value:
            first = federated_eval(self.start, SERVER)  # <U,O>
            return first_state(
                first[0],
                first[1],
                distributor=None if distributor is None else distributor.initialize(),
                client_work=None if client_work is None else federated_eval(client_work, SERVER),
                aggregator=None if aggregator is None else aggregator.initialize(),
            )

        return initialize

    def process(
        self,
        initialize: Computation,
        next_round: Computation,
        *more: Computation,
        kind: Callable = LearningProcess,
        **hyperparameters: tuple[str, ...],
    ) -> Any:
        """The process of a round over the model's weights.

        Args:
            more: further positional arguments of `kind`, after the two computations.
            kind: the class of the process.
            hyperparameters: for parts of the state, such as `client_work`, the names of the hyperparameters there;
                those of the finalizer are the optimizer's.
        """
        names = {**hyperparameters, "finalizer": tuple(self.optimizer.hyperparameters)}
        named = with_weight_names(next_round, self.model)
        process = kind(initialize, named, *more, hyperparameters=names, **weights_functions(self.model))
        process.pure_model = self.model
        return process
