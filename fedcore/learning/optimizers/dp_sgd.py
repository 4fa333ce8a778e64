"""Differentially private training of a client's own examples."""

from fedcore.errors import FedcoreError, InvalidValue
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.learning.models.example_gradients import ExampleMechanism, NoisyGradients
from fedcore.learning.optimizers.keras_optimizer import OptimizerLike, as_optimizer
from fedcore.learning.optimizers.optimizer import Optimizer, WrappedOptimizer
from fedcore.learning.optimizers.sgdm import build_sgdm
from fedcore.scalars import real_number


class _PrivateOptimizer(WrappedOptimizer):
    """Gives another optimizer noisy gradients, and no others."""

    def __init__(self, inner: Optimizer, mechanism: ExampleMechanism) -> None:
        super().__init__(inner)
        self.example_mechanism = mechanism
        self.averages_weights = inner.averages_weights

    def next(
        self, state: TensorStructure, weights: TensorStructure, gradients: TensorStructure
    ) -> tuple[TensorStructure, TensorStructure]:
        if not isinstance(gradients, NoisyGradients):
            raise FedcoreError(
                "build_dp_sgd: the optimizer is given gradients of a batch, which have no noise\n"
                "  fix: your own optimizer around it has its `example_mechanism` too, by which training makes them"
            )
        return self.inner.next(state, weights, tuple(gradients))

    def final_weights(self, state: TensorStructure, weights: TensorStructure) -> TensorStructure:
        return self.inner.final_weights(state, weights)


def build_dp_sgd(
    clip: float,
    noise_multiplier: float,
    optimizer: OptimizerLike | None = None,
    *,
    batch_size: float,
    sampling_rate: float = 1.0,
) -> Optimizer:
    """DP-SGD: the gradient of each example is clipped, noise is added to their sum, and another optimizer steps.

    It protects the records of a client, where `fc.aggregators.DifferentiallyPrivateFactory` protects clients: two
    models that differ by one record in a client's data can hardly be told apart, by the server or by anybody who gets
    the model. `fc.privacy.example_epsilon` says how hardly. Metrics are no part of that: they have no noise.

    In each step, each example takes part with probability `sampling_rate`, by a draw of its own. Its gradient is that
    of a batch with no other example, by all trainable weights, and is divided by norm / `clip` if its norm is larger.
    Gaussian noise of standard deviation `noise_multiplier` · `clip` is added once to the sum, which is divided by
    `batch_size`. Frozen weights get no noise, nor does a weight that no loss depends on.

    - **Sampling.** With a rate of 1 the order of the data is of no account: a record counts once for each pass over
      them. With a smaller rate each batch of the data set is Poisson-sampled: with the whole data in one batch
      (`dataset.batch(n).repeat(steps)`) that is the sampling of the paper, and each batch is one step. No batch has a
      record twice: batch before you repeat.
    - **Losses** of a batch of one: masks and sample weights are normalised within the example, and losses that layers
      add (regularisers) count for each example. Each example draws its own dropout.
    - **Metrics** are added up over batches of one.
    - **Refused**: layers that assign weights from a batch (BatchNormalization), stateful layers, batches of sparse
      tensors.
    - An example whose gradient is not finite adds zeros, and a batch without examples adds noise only.

    Types: those of the inner optimizer.

    Args:
        clip: the greatest norm of an example's gradient, above 0.
        noise_multiplier: at least 0; 0 is not private.
        optimizer: takes the steps: any, since it sees noisy gradients only. Default: gradient descent at rate 0.01.
        batch_size: the expected number of examples in a step: rows of a batch times `sampling_rate`. It is a constant,
            since the number of examples drawn is a secret; so a last short batch makes a smaller step.
        sampling_rate: above 0, at most 1.
    Returns:
        An optimizer for `client_optimizer_fn` of federated averaging, FedProx and personalization.
    Raises:
        FedcoreError: a number is outside its range; the optimizer scales losses, or is private itself. Later: it is
            used where no examples are trained on.
    Source: Abadi et al. 2016, "Deep learning with differential privacy", arXiv:1607.00133, Algorithm 1; norms of dense
        layers by Goodfellow 2015, "Efficient per-example gradient computations", arXiv:1510.01799.
    Example:
        >>> private = fc.learning.optimizers.build_dp_sgd(
        ...     1.0, 1.1, keras.optimizers.Adam(0.01), batch_size=2)
        >>> process = fc.learning.algorithms.build_unweighted_fed_avg(model_fn, private)
        >>> state, metrics = process.next(process.initialize(), [client_a, client_b])
        >>> round(fc.privacy.example_epsilon(1.1, passes=1, delta=1e-5), 2)
        4.24
    """
    rate = float(real_number("sampling_rate", sampling_rate, above=0))
    if rate > 1:
        raise InvalidValue(f"sampling_rate is at most 1, not {rate:g}")
    mechanism = ExampleMechanism(
        float(real_number("clip", clip, above=0)),
        float(real_number("noise_multiplier", noise_multiplier, at_least=0)),
        float(real_number("batch_size", batch_size, above=0)),
        rate,
    )
    return _PrivateOptimizer(as_optimizer(build_sgdm() if optimizer is None else optimizer), mechanism)
