"""How models are trained: fedcore's process beside the optimizers and the mean of the reference."""

import warnings
from collections.abc import Callable

import attrs
import keras
import numpy as np

import fedcore as fc

from .own_optimizers import ByPath, Halving, Signs, sgd_with_an_attribute
from .reference import GradientSum

algorithms, optimizers = fc.learning.algorithms, keras.optimizers


def mean_by_examples(changes, counts, *_):
    return _weighted(changes, counts)


def mean_by_clients(changes, counts, *_):
    return _weighted(changes, [float(n > 0) for n in counts])


def mean_of_all_clients(changes, counts, *_):
    return _weighted(changes, [1.0] * len(counts))


def mean_by_steps(changes, counts, steps, trained):
    """FedNova's: changes over their steps, times the mean number of steps; of weights that steps assign, the mean."""
    (effective,) = _weighted([[np.float64(n)] for n in steps], counts)
    factors = [effective / max(n, 1) for n in steps]
    scaled = [
        [c * f if is_trained else c for c, is_trained in zip(change, trained, strict=True)]
        for change, f in zip(changes, factors, strict=True)
    ]
    return _weighted(scaled, counts)


def clipped_mean(limit: float) -> Callable:
    """The mean over all clients of changes of at most this L2 norm, as DP-FedAvg has it before the noise."""

    def mean(changes, counts, *_):
        norms = [np.sqrt(sum(np.sum(np.square(c, dtype=np.float64)) for c in change)) for change in changes]
        factors = [min(1.0, limit / norm) if norm else 1.0 for norm in norms]
        scaled = [[c * f for c in change] for change, f in zip(changes, factors, strict=True)]
        return mean_of_all_clients(scaled, counts)

    return mean


def _weighted(changes, weights):
    total = sum(weights)
    if not total:
        return [np.zeros_like(c) for c in changes[0]]
    return [sum(w * c for w, c in zip(weights, cs, strict=True)) / total for cs in zip(*changes, strict=True)]


def _fed_avg(model_fn, client, server, clients):
    return algorithms.build_weighted_fed_avg(model_fn, client, server)


@attrs.frozen
class Training:
    """A way of training, in fedcore and in the reference.

    Args:
        build: (model_fn, client_optimizer_fn, server_optimizer_fn, number of clients) -> a LearningProcess.
        client: expression of the clients' optimizer among `keras.optimizers`.
        own_client, plain_client: () -> what fedcore and the reference get instead.
        server: () -> a Keras optimizer.
        mean: as for `reference.train_round`.
        runtime: () -> the runtime of fedcore.
        rounding: the error that the aggregation adds to a weight, relative to the largest change.
        evaluates: whether the models are evaluated and not trained.
        exclude: names of weights without weight decay in the clients' optimizer.
        keeps_optimizers: whether each client goes on with its optimizer of the round before.
    """

    name: str
    build: Callable = _fed_avg
    client: str = "SGD(0.1)"
    server: Callable = attrs.field(default=lambda: optimizers.SGD(1.0))
    own_client: Callable | None = None
    plain_client: Callable | None = None
    mean: Callable = mean_by_examples
    proximal_strength: float = 0.0
    runtime: Callable = fc.runtime.local
    rounding: float = 0.0
    evaluates: bool = False
    exclude: tuple[str, ...] = ()
    keeps_optimizers: bool = False

    def make_client(self) -> keras.optimizers.Optimizer:
        optimizer = eval(self.client, vars(optimizers))
        if self.exclude:
            optimizer.exclude_from_weight_decay(var_names=list(self.exclude))
        return optimizer


TRAININGS: dict[str, Training] = {}


def training(name: str, **fields) -> None:
    TRAININGS[name] = Training(name, **fields)


def _unweighted(aggregator: Callable | None = None) -> Callable:
    def build(model_fn, client, server, clients):
        given = None if aggregator is None else aggregator(clients)
        with warnings.catch_warnings():  # averages of BatchNormalization are clipped too; here that is compared
            warnings.filterwarnings("ignore", "model_aggregator clips", RuntimeWarning)
            return algorithms.build_unweighted_fed_avg(model_fn, client, server, model_aggregator=given)

    return build


def _weighted_by(aggregator: Callable) -> Callable:
    def build(model_fn, client, server, clients):
        return algorithms.build_weighted_fed_avg(model_fn, client, server, model_aggregator=aggregator())

    return build


def _private(clip: float) -> Callable:
    factory = fc.aggregators.DifferentiallyPrivateFactory
    return _unweighted(lambda clients: factory.gaussian_fixed(0.0, clients_per_round=clients, clip=clip))


@attrs.frozen
class _FromNewest:
    """A process whose clients all begin from the newest model, with the methods that the runner calls."""

    process: fc.learning.AsynchronousProcess

    def __getattr__(self, name: str):
        return getattr(self.process, name)

    def next(self, state, clients):
        start = fc.learning.ClientStart(state.global_model_weights, np.int32(0))
        return self.process.next(state, clients, [start] * len(clients))


def _fed_buff(model_fn, client, server, clients):
    return _FromNewest(algorithms.build_fed_buff(model_fn, client, server))


class _WithClientStates:
    """A process whose clients take part in every round, with the methods that the runner calls."""

    def __init__(self, process: fc.learning.ClientStateProcess) -> None:
        self.process = process
        self._states: list = []

    def __getattr__(self, name: str):
        return getattr(self.process, name)

    def next(self, state, clients):
        if state.round == 0:
            first = self.process.initial_client_state
            self._states = [first(*([state] if first.module.main.parameters else [])) for _ in clients]
        state, metrics, self._states = self.process.next(state, clients, self._states)
        return state, metrics


def _with_client_states(build: Callable) -> Callable:
    return lambda model_fn, client, server, clients: _WithClientStates(build(model_fn, client, server))


@attrs.frozen
class _OnlyModel:
    """A process of one model, IFCA's of one cluster, with the methods that the runner calls."""

    process: fc.learning.LearningProcess

    def __getattr__(self, name: str):
        return getattr(self.process, name)

    def get_model_weights(self, state):
        (weights,) = self.process.get_model_weights(state)
        return weights


def _fed_prox(strength: float) -> Callable:
    return lambda model_fn, client, server, clients: algorithms.build_weighted_fed_prox(
        model_fn, strength, client, server
    )


def _compressed(encoder: Callable) -> Callable:
    return _weighted_by(
        lambda: fc.learning.compression_aggregator(zeroing=False, clipping=False, encoder_fn=lambda spec: encoder())
    )


encoders = fc.aggregators.encoders

training("sgd")
training("momentum", client="SGD(0.05, momentum=0.9)")
training("nesterov", client="SGD(0.05, momentum=0.9, nesterov=True)")
training("adam", client="Adam(0.01)")
training("amsgrad", client="Adam(0.01, amsgrad=True)")
training("adamw", client="AdamW(0.01, weight_decay=0.1)")
training("adagrad", client="Adagrad(0.1)")
training("rmsprop", client="RMSprop(0.01)")
training("centered rmsprop", client="RMSprop(0.01, momentum=0.5, centered=True)")
training("adafactor", client="Adafactor(0.01)")
training("clipnorm", client="SGD(0.1, clipnorm=0.1)")
training("global clipnorm", client="SGD(0.1, global_clipnorm=0.1)")
training("clipvalue", client="SGD(0.1, clipvalue=0.02)")
training("weight decay", client="SGD(0.1, weight_decay=0.1)")
training("decaying rate", client="SGD(schedules.ExponentialDecay(0.2, 1, 0.5))")
training(
    "build_adam",
    client="Adam(0.01)",
    own_client=lambda: fc.learning.optimizers.build_adam(0.01),
)
training("lion", client="Lion(0.01)")
training("nadam", client="Nadam(0.01)")
training("adamax", client="Adamax(0.01)")
training("accumulated gradients", client="Adam(0.01, gradient_accumulation_steps=2)")
training("averages", client="SGD(0.1, use_ema=True, ema_momentum=0.5)")
training("overwritten by averages", client="SGD(0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2)")
training("server lion", server=lambda: optimizers.Lion(0.01))
training("server averages", server=lambda: optimizers.SGD(1.0, use_ema=True, ema_overwrite_frequency=2))
training("no decay of biases", client="AdamW(0.01, weight_decay=0.1)", exclude=("bias",))
training("server adam", server=lambda: optimizers.Adam(0.01))
training("server momentum", server=lambda: optimizers.SGD(0.5, momentum=0.9))
training("unweighted", build=_unweighted(), mean=mean_by_clients)
training(
    "fed sgd",
    build=lambda model_fn, client, server, clients: algorithms.build_fed_sgd(model_fn, server),
    plain_client=GradientSum,
    server=lambda: optimizers.SGD(0.3),
)
training("fed prox", build=_fed_prox(0.5), proximal_strength=0.5)
training("fed prox, μ = 0", build=_fed_prox(0.0))
training("DP without noise, huge clip", build=_private(1e20), mean=mean_of_all_clients)
training("DP without noise, small clip", build=_private(0.1), mean=clipped_mean(0.1))
training("compression by identity", build=_compressed(encoders.identity))
training("compression to 16 bits", build=_compressed(lambda: encoders.uniform_quantization(bits=16)), rounding=2**-15)
training(
    "secure sums",
    build=_weighted_by(lambda: fc.learning.secure_aggregator(zeroing=False, clipping=False)),
    rounding=1e-5,
)
training(
    "masked secure sums",
    build=_weighted_by(lambda: fc.learning.secure_aggregator(zeroing=False, clipping=False)),
    runtime=lambda: fc.runtime.local(secure_aggregation="masked"),
    rounding=1e-5,
)
training("reference runtime", runtime=fc.runtime.reference)
training("a client at a time", runtime=lambda: fc.runtime.local(vectorize=False))
training(
    "evaluation",
    build=lambda model_fn, client, server, clients: algorithms.build_fed_eval(model_fn),
    evaluates=True,
)
training("scaled losses", client="LossScaleOptimizer(Adam(0.01), initial_scale=1024.0, dynamic_growth_steps=2)")
training("losses scaled by a factor", client="SGD(0.1, clipnorm=0.1, loss_scale_factor=64.0)")
training("fed buff, nothing stale", build=_fed_buff, mean=mean_by_clients)

for _name, _make in {
    "own optimizer with counters": lambda: Halving(0.1, 2),
    "own optimizer by path": lambda: ByPath(0.1),
    "own optimizer of signs": lambda: Signs(0.05),
    "attributes of an optimizer": sgd_with_an_attribute,
}.items():
    training(_name, own_client=_make, plain_client=_make)

training(
    "fed nova",
    build=lambda model_fn, client, server, clients: algorithms.build_fed_nova(model_fn, 0.1, server),
    mean=mean_by_steps,
)
training(
    "q-FedAvg, q = 0",
    build=lambda model_fn, client, server, clients: algorithms.build_q_fed_avg(model_fn, 0, 0.1, server),
    mean=mean_by_clients,
)
training(
    "ditto",
    build=_with_client_states(lambda model_fn, client, server: algorithms.build_ditto(model_fn, 0.5, client, server)),
)
training(
    "adam that clients keep",
    build=_with_client_states(algorithms.build_fed_avg_with_optimizer_states),
    client="Adam(0.01)",
    keeps_optimizers=True,
)
training(
    "IFCA of one cluster",
    build=lambda model_fn, client, server, clients: _OnlyModel(algorithms.build_ifca(model_fn, 1, client, server)),
    mean=mean_by_clients,
)
training(
    "IFCA of one cluster, with gradients",
    build=lambda model_fn, client, server, clients: _OnlyModel(
        algorithms.build_ifca_with_gradients(model_fn, 1, server)
    ),
    plain_client=GradientSum,
    server=lambda: optimizers.SGD(0.3),
    mean=mean_by_clients,
)

NOT_COMPARED = {
    "yogi": "Keras has no such optimizer",
    "repeated rows of embeddings in adaptive optimizers and clipping": "Keras 3 squares and clips each lookup's "
    "gradient, fedcore their sum (docs/porting.md); the reference adds them first",
    "SCAFFOLD, FedDyn, Mime Lite, reconstruction, k-means, personalization": "their papers' algorithms are no loop of "
    "Keras'",
    "FedDF": "needs data of the server and one output of classes; tests/learning/test_fed_df.py has its steps in numpy",
    "FedGAN": "trains a GanModel, and the zoo has none; tests/learning/test_fed_gan.py has its steps in numpy",
    "several clusters of IFCA, q-FedAvg with q > 0": "tests/learning/test_paper_methods.py has their formulas",
    "DP with noise": "the noise is drawn: tests/aggregators has its moments; here it is 0",
    "adaptive clips and zeroing": "quantiles of the clients' norms are no part of Keras: tests/aggregators",
    "encoders of fewer than 16 bits": "their errors hide the differences that the zoo looks for: tests/aggregators",
    "draws of dropout and of noise layers": "Keras draws others: rates are 0 where weights are compared; "
    "`runner.compare_draws` tells draws apart",
    "unseeded shuffles and random maps": "tf.data draws others: `random_pipelines` compares what they have in common",
}
"""What the zoo leaves out, with the reason."""
