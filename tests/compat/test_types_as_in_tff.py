"""Types and refusals of TFF's factories and builders: each is that of TFF's last version, or differs on purpose, by a
line of docs/porting.md.

`TYPES` has what `initialize` and `next` of a process have in TFF: states, names of parameters, measurements, in order.
Two types are compared as TFF's `is_equivalent_to` does, without Python's containers. `REFUSALS` has calls that TFF
refuses, with the class of its error.
"""

import functools
import inspect
import re
from collections import OrderedDict
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc

PAGE = re.sub(r"\s+", " ", (Path(__file__).parents[2] / "docs" / "porting.md").read_text(encoding="utf-8"))
agg, learning = fc.aggregators, fc.learning
metrics, models, templates = learning.metrics, learning.models, learning.templates
SERVER, CLIENTS = fc.SERVER, fc.CLIENTS
PAIR = [("float32", [3]), "float32"]
SEED = ("int64", [2])
SGD = learning.optimizers.build_sgdm(0.1)


def estimation(step):
    @fc.federated_computation
    def initialize():
        return fc.federated_value(np.float32(step), SERVER)

    norm, norms = fc.FederatedType(np.float32, SERVER), fc.FederatedType(np.float32, CLIENTS)
    add = fc.tf_computation(lambda x: x + step)
    next_fn = fc.federated_computation(lambda state, value: fc.federated_map(add, state), norm, norms)
    return fc.templates.EstimationProcess(initialize, next_fn, fc.federated_computation(lambda state: state, norm))


class CountingSum(agg.UnweightedAggregationFactory):
    """A sum with a state and measurements, both int32."""

    def create(self, value_type):
        start = fc.federated_computation(lambda: fc.federated_value(np.int32(0), SERVER))

        @fc.federated_computation(start.type_signature.result, fc.FederatedType(value_type, CLIENTS))
        def next_fn(state, value):
            return fc.templates.MeasuredProcessOutput(state, fc.federated_sum(value), state)

        return fc.templates.AggregationProcess(start, next_fn)


def secure(dtype):
    names = ("secure_upper_clipped_count", "secure_lower_clipped_count")
    return {**dict.fromkeys(names, "int32"), "secure_upper_threshold": dtype, "secure_lower_threshold": dtype}


def clipping(inner_state, inner, count=()):
    state = {"clipping_norm": (), "inner_agg": inner_state, "clipped_count_agg": count}
    return state, {"clipping": inner, "clipping_norm": "float32", "clipped_count": "int32"}


def zeroing(inner_state, inner, count=()):
    state = {"zeroing_norm": (), "inner_agg": inner_state, "zeroed_count_agg": count}
    return state, {"zeroing": inner, "zeroing_norm": "float32", "zeroed_count": "int32"}


def mean(part=()):
    return {"value_sum_process": part, "weight_sum_process": part}, {"mean_value": part, "mean_weight": part}


def sum_of_one(name):
    return {name: ()}


COUNTS = CountingSum()
SUM = agg.SumFactory()

TYPES = {
    "SumFactory": (SUM, PAIR, None, ((), ())),
    "MeanFactory": (agg.MeanFactory(), PAIR, "float32", mean()),
    "MeanFactory, whole weights": (agg.MeanFactory(), PAIR, "int64", mean()),
    "MeanFactory of others": (agg.MeanFactory(COUNTS, COUNTS), PAIR, "float64", mean("int32")),
    "UnweightedMeanFactory": (
        agg.UnweightedMeanFactory(),
        PAIR,
        None,
        (((), ()), {"mean_value": (), "mean_count": ()}),
    ),
    "UnweightedMeanFactory of others": (
        agg.UnweightedMeanFactory(COUNTS, COUNTS),
        PAIR,
        None,
        (("int32", "int32"), {"mean_value": "int32", "mean_count": "int32"}),
    ),
    "clipping_factory": (agg.clipping_factory(2.0, SUM), PAIR, None, clipping((), ())),
    "clipping_factory of a mean": (agg.clipping_factory(2.0, agg.MeanFactory()), PAIR, "float32", clipping(*mean())),
    "clipping_factory, counts": (agg.clipping_factory(2.0, SUM, COUNTS), PAIR, None, clipping((), (), "int32")),
    "zeroing_factory": (agg.zeroing_factory(2.0, SUM), PAIR, None, zeroing((), ())),
    "zeroing_factory of a mean": (agg.zeroing_factory(2.0, agg.MeanFactory()), PAIR, "float64", zeroing(*mean())),
    "zeroing_factory, counts": (agg.zeroing_factory(2.0, SUM, 2.0, COUNTS), PAIR, None, zeroing((), (), "int32")),
    "add_measurements": (
        agg.add_measurements(SUM, server_measurement_fn=lambda value: OrderedDict(total=value)),
        "float32",
        None,
        ((), {"total": "float32"}),
    ),
    "SecureModularSumFactory": (agg.SecureModularSumFactory(8), [("int32", [2]), "int32"], None, ((), ())),
    "SecureModularSumFactory, symmetric": (agg.SecureModularSumFactory(8, True), "int64", None, ((), ())),
    "SecureSumFactory": (agg.SecureSumFactory(1.0, -1.0), PAIR, None, ((), secure("float32"))),
    "SecureSumFactory, int32": (agg.SecureSumFactory(1, -1), "int32", None, ((), secure("int32"))),
    "SecureSumFactory, int64": (agg.SecureSumFactory(np.int32(1), 0), "int64", None, ((), secure("int64"))),
    "SecureSumFactory, float64": (agg.SecureSumFactory(1.0, -1.0), "float64", None, ((), secure("float64"))),
    "SecureSumFactory, one process": (agg.SecureSumFactory(estimation(1)), PAIR, None, ("float32", secure("float32"))),
    "SecureSumFactory, two processes": (
        agg.SecureSumFactory(estimation(1), estimation(-1)),
        "float64",
        None,
        (("float32", "float32"), secure("float64")),
    ),
    "HadamardTransformFactory": (agg.HadamardTransformFactory(SUM), PAIR, None, (((), SEED), sum_of_one("hd"))),
    "DiscreteFourierTransformFactory": (
        agg.DiscreteFourierTransformFactory(SUM),
        PAIR,
        None,
        (((), SEED), sum_of_one("dft")),
    ),
    "DifferentiallyPrivateFactory.gaussian_fixed": (
        agg.DifferentiallyPrivateFactory.gaussian_fixed(1.0, 10.0, 1.0),
        PAIR,
        None,
        (
            {
                "query_state": {"l2_norm_clip": "float32", "stddev": "float32"},
                "agg_state": (),
                "dp_event": {"module_name": "str", "class_name": "str", "noise_multiplier": "float32"},
                "is_init_state": "bool",
            },
            {"dp_query_metrics": (), "dp": ()},
        ),
    ),
}
"""Factory -> (it, type of values, type of weights, (TFF's state, TFF's measurements))."""

SPEC = OrderedDict(x=tf.TensorSpec([None, 3], tf.float32), y=tf.TensorSpec([None, 1], tf.float32))


def keras_model(outputs=1):
    inputs = keras.Input([3])
    heads = [keras.layers.Dense(1, name=f"head_{i}")(inputs) for i in range(outputs)]
    return keras.Model(inputs, heads[0] if outputs == 1 else heads)


def model_fn():
    return models.from_keras_model(keras_model(), "mse", SPEC)


def of_keras(loss="mse", spec=SPEC, outputs=1, **options):
    """The call of `from_keras_model` that makes the model."""
    return lambda: models.from_keras_model(keras_model(outputs), loss, spec, **options)


def functional(kernel=None, predict=None):
    """A model of functions, of which TFF wants arrays and `tf.function`s."""

    @tf.function
    def loss(output, label, sample_weight=None):
        return tf.reduce_mean((output - label) ** 2)

    predict = predict or tf.function(lambda weights, x, training: x @ weights[0][0])
    weights = (np.zeros([3, 1], np.float32) if kernel is None else kernel,), ()
    return models.FunctionalModel(initial_weights=weights, predict_on_batch_fn=predict, loss_fn=loss, input_spec=SPEC)


def normalizing():
    layers = [keras.Input([3]), keras.layers.Dense(1), keras.layers.BatchNormalization()]
    return models.functional_model_from_keras(keras.Sequential(layers), keras.losses.MeanSquaredError(), SPEC)


def doubled_loss(y_true, y_pred, sample_weight=2.0):
    return tf.reduce_mean((y_true - y_pred) ** 2) * sample_weight


THREE = OrderedDict(x=SPEC["x"], y=[SPEC["y"]] * 3)
ALGORITHMS = {
    "build_weighted_fed_avg": (learning.algorithms.build_weighted_fed_avg, {"client_optimizer_fn": SGD}),
    "build_unweighted_fed_avg": (learning.algorithms.build_unweighted_fed_avg, {"client_optimizer_fn": SGD}),
    "build_weighted_fed_prox": (
        learning.algorithms.build_weighted_fed_prox,
        {"proximal_strength": 1.0, "client_optimizer_fn": SGD},
    ),
    "build_unweighted_fed_prox": (
        learning.algorithms.build_unweighted_fed_prox,
        {"proximal_strength": 1.0, "client_optimizer_fn": SGD},
    ),
    "build_fed_sgd": (learning.algorithms.build_fed_sgd, {}),
    "build_weighted_mime_lite": (learning.algorithms.build_weighted_mime_lite, {"base_optimizer": SGD}),
    "build_unweighted_mime_lite": (learning.algorithms.build_unweighted_mime_lite, {"base_optimizer": SGD}),
    "build_weighted_fed_avg_with_optimizer_schedule": (
        learning.algorithms.build_weighted_fed_avg_with_optimizer_schedule,
        {"client_learning_rate_fn": lambda _: 0.5, "client_optimizer_fn": learning.optimizers.build_sgdm},
    ),
    "build_fed_eval": (learning.algorithms.build_fed_eval, {}),
    "build_fed_multi_model_eval": (
        lambda model, **options: learning.algorithms.build_fed_multi_model_eval([model]),
        {},
    ),
}
WRONG_MODELS = {"a number": 0, "a function that makes a number": lambda: 0}
WRONG_OPTIONS = {
    "a factory of the other kind": lambda name: {"model_aggregator": SUM if "_weighted" in name else agg.MeanFactory()},
    "a distributor that is none": lambda name: {"model_distributor": agg.SumFactory().create(fc.to_type("float32"))},
    "a weighting that is none": lambda name: {"client_weighting": "uniform"},
}


def takes(name, option):
    return option in inspect.signature(ALGORITHMS[name][0]).parameters


REFUSALS = {
    **{
        f"{name} of {what}": (TypeError, functools.partial(build, model, **options))
        for name, (build, options) in ALGORITHMS.items()
        for what, model in WRONG_MODELS.items()
    },
    **{
        f"{name} with {what}": (
            TypeError,
            functools.partial(ALGORITHMS[name][0], model_fn, **ALGORITHMS[name][1], **wrong(name)),
        )
        for name in ALGORITHMS
        for what, wrong in WRONG_OPTIONS.items()
        if all(takes(name, option) for option in wrong(name))
        and (name, what) != ("build_fed_sgd", "a factory of the other kind")
    },
    "from_keras_model, other keys": (ValueError, of_keras(spec=OrderedDict(foo=SPEC["x"], y=SPEC["y"]))),
    "from_keras_model, three parts of which one is unknown": (
        ValueError,
        of_keras(spec=OrderedDict(SPEC, z=SPEC["y"])),
    ),
    "from_keras_model of sequences": (TypeError, of_keras(spec=fc.to_type((fc.SequenceType(np.float32), np.float32)))),
    "from_keras_model, two losses of three outputs": (ValueError, of_keras(["mse"] * 2, THREE, 3)),
    "from_keras_model, two weights of three losses": (ValueError, of_keras(["mse"] * 3, THREE, 3, loss_weights=[1, 2])),
    "from_keras_model, a loss of no output": (TypeError, of_keras({"other": "mse"}, THREE, 3)),
    "from_keras_model, a weight of no output": (
        TypeError,
        of_keras(["mse"] * 3, THREE, 3, loss_weights={"other": 1.0}),
    ),
    "from_keras_model, a number for a loss": (TypeError, of_keras(3)),
    "from_keras_model, a tensor for a metric": (TypeError, of_keras(metrics=[tf.constant(1.0)])),
    "from_keras_model, a class of losses for a metric": (TypeError, of_keras(metrics=[keras.losses.MeanSquaredError])),
    "weights_type_from_model of a number": (TypeError, lambda: models.weights_type_from_model(0)),
    "model_from_functional, two metrics of one name": (
        ValueError,
        lambda: models.model_from_functional(model_fn(), [keras.metrics.MeanSquaredError] * 2),
    ),
    "models.save of a number": (TypeError, lambda: models.save(0, "folder")),
    "models.save to a number": (TypeError, lambda: models.save(model_fn, 0)),
    "models.save to no path": (ValueError, lambda: models.save(model_fn, "")),
    "models.save_functional_model to no path": (ValueError, lambda: models.save_functional_model(functional(), "")),
    "models.load of a number": (TypeError, lambda: models.load(0)),
    "models.load of no path": (ValueError, lambda: models.load("")),
    "models.load_functional_model of no path": (ValueError, lambda: models.load_functional_model("")),
    "FunctionalModel of arrays and tf.functions": (None, functional),
    "FunctionalModel of tensors": (TypeError, lambda: functional(tf.zeros([3, 1]))),
    "FunctionalModel of a Python function": (
        TypeError,
        lambda: functional(predict=lambda weights, x, training: x @ weights[0][0]),
    ),
    "functional_model_from_keras of a number": (
        ValueError,
        lambda: models.functional_model_from_keras(0, keras.losses.MeanSquaredError(), SPEC),
    ),
    "functional_model_from_keras of batch normalization": (Exception, normalizing),
    "functional_model_from_keras, a loss with weights of its own": (
        Exception,
        lambda: models.functional_model_from_keras(keras_model(), doubled_loss, SPEC),
    ),
    "ModelWeights.from_model of a number": (TypeError, lambda: models.ModelWeights.from_model(0)),
    "ModelWeights.assign_weights_to a number": (TypeError, lambda: models.ModelWeights((), ()).assign_weights_to(0)),
    "SecureModularSumFactory of a float": (TypeError, lambda: agg.SecureModularSumFactory(8.0)),
    "SecureModularSumFactory of 0": (ValueError, lambda: agg.SecureModularSumFactory(0)),
    "SecureModularSumFactory of floats": (TypeError, lambda: agg.SecureModularSumFactory(8).create(fc.to_type(PAIR))),
    "SecureSumFactory, bounds out of order": (ValueError, lambda: agg.SecureSumFactory(-1.0, 1.0)),
    "SecureSumFactory, equal bounds": (ValueError, lambda: agg.SecureSumFactory(1, 1)),
    "SecureSumFactory, whole bounds of floats": (
        TypeError,
        lambda: agg.SecureSumFactory(1, -1).create(fc.to_type("float32")),
    ),
    "SecureSumFactory, estimated bounds of integers": (
        TypeError,
        lambda: agg.SecureSumFactory(estimation(1)).create(fc.to_type("int32")),
    ),
    "HadamardTransformFactory of text": (
        TypeError,
        lambda: agg.HadamardTransformFactory().create(fc.to_type("str")),
    ),
    "HadamardTransformFactory of a struct without a container": (
        TypeError,
        lambda: agg.HadamardTransformFactory().create(fc.to_type([("a", np.int32)])),
    ),
    "UnweightedReservoirSamplingFactory of 0": (ValueError, lambda: agg.UnweightedReservoirSamplingFactory(0)),
    "UnweightedReservoirSamplingFactory of text": (TypeError, lambda: agg.UnweightedReservoirSamplingFactory("5")),
    "SumThenFinalizeFactory of a number": (TypeError, lambda: metrics.SumThenFinalizeFactory(1.0)),
    "SumThenFinalizeFactory, other names": (
        ValueError,
        lambda: metrics.SumThenFinalizeFactory(OrderedDict(a=lambda x: x)).create(fc.to_type(OrderedDict(b="int32"))),
    ),
    "build_sgdm, negative": (ValueError, lambda: learning.optimizers.build_sgdm(-1.0)),
    "build_sgdm, nesterov alone": (ValueError, lambda: learning.optimizers.build_sgdm(0.1, nesterov=True)),
    "Optimizer.next, shapes": (
        ValueError,
        lambda: step_of(learning.optimizers.build_sgdm(0.1), tf.zeros([1]), tf.zeros([2])),
    ),
    "Optimizer.next, no gradient": (
        None,
        lambda: step_of(learning.optimizers.build_sgdm(0.1), tf.zeros([1]), None),
    ),
    "schedule_learning_rate of a Keras optimizer": (
        TypeError,
        lambda: learning.optimizers.schedule_learning_rate(keras.optimizers.SGD(0.1), lambda step: 0.1),
    ),
    "from_keras_model of a number": (TypeError, lambda: models.from_keras_model(0, "mse")),
    "build_weighted_fed_prox, negative": (
        ValueError,
        lambda: learning.algorithms.build_weighted_fed_prox(int, -1.0, SGD),
    ),
}
"""Call -> (class of TFF's error, or None where TFF takes the call; the call)."""


BAD_VALUES = (fc.FederatedType(np.float32, SERVER), fc.FunctionType(None, ()), fc.SequenceType(np.float32))
VALUE_FACTORIES = {
    "SumFactory": SUM,
    "UnweightedMeanFactory": agg.UnweightedMeanFactory(),
    "SecureSumFactory": agg.SecureSumFactory(1.0, -1.0),
    "SecureModularSumFactory": agg.SecureModularSumFactory(8),
    "HadamardTransformFactory": agg.HadamardTransformFactory(),
    "DiscreteFourierTransformFactory": agg.DiscreteFourierTransformFactory(),
    "clipping_factory": agg.clipping_factory(1.0, SUM),
    "zeroing_factory": agg.zeroing_factory(1.0, SUM),
    "DifferentiallyPrivateFactory": agg.DifferentiallyPrivateFactory.gaussian_fixed(1.0, 10.0, 1.0),
    "UnweightedReservoirSamplingFactory": agg.UnweightedReservoirSamplingFactory(3),
    "metrics.SecureSumFactory": metrics.SecureSumFactory(),
}

ON_PURPOSE = {
    "HadamardTransformFactory": "rotations draw from the seed of a call and keep none in their state",
    "DiscreteFourierTransformFactory": "rotations draw from the seed of a call and keep none in their state",
    "DifferentiallyPrivateFactory.gaussian_fixed": "States and measurements of private factories are their own",
    "SecureSumFactory, whole bounds of floats": "bounds of a `SecureSumFactory` numbers of any kind",
    "SecureSumFactory, estimated bounds of integers": "bounds of a `SecureSumFactory` numbers of any kind",
    "HadamardTransformFactory of a struct without a container": "Values may be structs without a Python container",
    "FunctionalModel of tensors": "A `FunctionalModel` takes tensors as weights",
    "FunctionalModel of a Python function": "functions that are no `tf.function`",
    "functional_model_from_keras of a number": "one class, such as `fc.errors.TypeMismatch`, stands for many of TFF's",
    "functional_model_from_keras of batch normalization": "`functional_model_from_keras` takes batch normalization",
    "functional_model_from_keras, a loss with weights of its own": "a loss whose `sample_weight` has a default",
    "schedule_learning_rate of a Keras optimizer": "`schedule_learning_rate` takes Keras optimizers",
}
"""Entries that differ -> the words of docs/porting.md that say so."""


def step_of(optimizer, weights, gradients):
    return optimizer.next(optimizer.initialize(weights), weights, gradients)


def expected_types(value, weight, state, measurements):
    """TFF's types of `initialize` and `next`."""
    state, value = fc.FederatedType(fc.to_type(state), SERVER), fc.to_type(value)
    parameters = OrderedDict(state=state, value=fc.FederatedType(value, CLIENTS))
    if weight is not None:
        parameters["weight"] = fc.FederatedType(fc.to_type(weight), CLIENTS)
    result = fc.FederatedType(value, SERVER), fc.FederatedType(fc.to_type(measurements), SERVER)
    return fc.FunctionType(None, state), fc.FunctionType(parameters, fc.templates.MeasuredProcessOutput(state, *result))


@functools.cache
def type_differences():
    """Entry of `TYPES` -> where its process has other types than in TFF."""
    differences = {}
    for name, (factory, value, weight, parts) in TYPES.items():
        types = [fc.to_type(value)] if weight is None else [fc.to_type(value), fc.to_type(weight)]
        process = factory.create(*types)
        pairs = zip((process.initialize, process.next), expected_types(value, weight, *parts), strict=True)
        texts = [f"{f.type_signature}\n{want}" for f, want in pairs if not f.type_signature.is_equivalent_to(want)]
        if texts:
            differences[name] = "\n".join(texts)
    return differences


@functools.cache
def refusal_differences():
    """Entry of `REFUSALS` -> how the call is answered where TFF answers otherwise."""
    differences = {}
    for name, (kind, call) in REFUSALS.items():
        try:
            call()
        except Exception as error:
            if kind is None or not isinstance(error, kind):
                differences[name] = f"raises {error!r}"
        else:
            if kind is not None:
                differences[name] = "is taken"
    return differences


RATE = {"learning_rate": "float32"}
TRAIN = {"loss": "float32", "num_examples": "int64", "num_batches": "int64", "num_non_finite_clients": "int32"}
UNWEIGHTED = ((), ()), {"mean_value": (), "mean_count": ()}
EVALUATED = {name: dtype for name, dtype in TRAIN.items() if name != "num_non_finite_clients"}
EVAL = {"eval": {"current_round_metrics": EVALUATED, "total_rounds_metrics": EVALUATED}}
SUMS = {"loss": ["float32", "float32"], "num_examples": ["int64"], "num_batches": ["int64"]}
SCHEDULED = "build_weighted_fed_avg_with_optimizer_schedule"

PROCESSES = {
    "build_weighted_fed_avg": (RATE, *mean(), RATE, {"train": TRAIN}),
    "build_unweighted_fed_avg": (RATE, *UNWEIGHTED, RATE, {"train": TRAIN}),
    "build_weighted_fed_prox": (RATE, *mean(), RATE, {"train": TRAIN}),
    "build_fed_sgd": ((), *mean(), RATE, {"train": TRAIN}),
    SCHEDULED: ("int32", *mean(), RATE, {"train": TRAIN, "client_learning_rate": "float32"}),
    "build_weighted_mime_lite": ((RATE, mean()[0]), *mean(), RATE, {"train": TRAIN}),
    "build_fed_eval": (((), SUMS), (), (), (), EVAL),
}
"""Algorithm -> TFF's state of client_work and of the aggregator, the aggregator's measurements, the state of the
finalizer, and the metrics of client_work."""

PARTS_ON_PURPOSE = {
    ("*", "state.seed"): "a learning state ends in `round` and `seed`",
    ("*", "state.round"): "a learning state ends in `round` and `seed`",
    ("*", "metrics.finalizer"): "`update_non_finite` is measured by a finalizer of `templates`",
    ("*", "metrics.client_work"): "`num_non_finite_clients`, an int64",
    ("build_unweighted_fed_avg", "metrics.aggregator"): "Unweighted algorithms have the aggregator's names",
    (SCHEDULED, "state.client_work"): "`client_work` of a schedule is `<round=int64>`",
    ("build_weighted_mime_lite", "state.client_work"): "`client_work` of Mime Lite is the state of the base optimizer",
    ("build_fed_eval", "state.client_work"): "The state of an evaluation's `client_work` is the sums of the metrics",
}
"""(Algorithm, or * for all, part) whose type differs -> the words of docs/porting.md that say so."""


@functools.cache
def part_differences(name):
    """The parts of the state and of the metrics of an algorithm that have another type than in TFF."""
    build, options = ALGORITHMS[name]
    process = build(model_fn, **options)
    client_work, aggregator, measured, finalizer, metrics = PROCESSES[name]
    finalized = {} if name == "build_fed_eval" else {"update_non_finite": "int32"}
    weights = models.weights_type_from_model(model_fn)
    state = {"global_model_weights": weights, "distributor": (), "client_work": client_work, "aggregator": aggregator}
    expected = {
        "state": {**state, "finalizer": finalizer},
        "metrics": {"distributor": (), "client_work": metrics, "aggregator": measured, "finalizer": finalized},
    }
    result = process.next.type_signature.result
    differences = set()
    for what, parts in expected.items():
        member = fc.types.member_of(result[what])
        assert list(member.names)[: len(parts)] == list(parts)
        extra = set(member.names) - set(parts)
        other = {n for n, want in parts.items() if not member[n].is_equivalent_to(fc.to_type(want))}
        differences |= {f"{what}.{part}" for part in extra | other}
    return differences


@pytest.mark.parametrize("name", PROCESSES)
def test_parts_of_algorithms_have_tffs_types_or_differ_by_a_line_of_the_page(name):
    assert {part for part in part_differences(name) if not {(name, part), ("*", part)} & set(PARTS_ON_PURPOSE)} == set()
    assert {part for owner, part in PARTS_ON_PURPOSE if owner == name} <= part_differences(name)


def test_a_part_that_differs_on_purpose_stands_on_the_page():
    assert {part for owner, part in PARTS_ON_PURPOSE if owner == "*"} <= part_differences("build_weighted_fed_avg")
    assert [words for words in PARTS_ON_PURPOSE.values() if words not in PAGE] == []


def test_processes_have_tffs_types_or_differ_by_a_line_of_the_page():
    assert {name: how for name, how in type_differences().items() if name not in ON_PURPOSE} == {}


def test_calls_are_refused_as_in_tff_or_differ_by_a_line_of_the_page():
    assert {name: how for name, how in refusal_differences().items() if name not in ON_PURPOSE} == {}


def test_every_difference_on_purpose_is_one_and_stands_on_the_page():
    assert set(ON_PURPOSE) == {*type_differences(), *refusal_differences()}
    assert [words for words in ON_PURPOSE.values() if words not in PAGE] == []


@pytest.mark.parametrize("name", VALUE_FACTORIES)
@pytest.mark.parametrize("type_", BAD_VALUES, ids=str)
def test_factories_refuse_values_that_are_not_of_tensors(name, type_):
    with pytest.raises(TypeError):
        VALUE_FACTORIES[name].create(type_)


FINALIZERS = OrderedDict(count=lambda x: x, loss=lambda x: tf.math.divide_no_nan(x[0], x[1]))
REPORT = OrderedDict(count="int32", loss=["float32", "float32"])


@pytest.mark.parametrize("inner", [None, metrics.SecureSumFactory()], ids=["plain", "secure"])
def test_the_sum_of_metrics_has_tffs_types(inner):
    report, finalized = fc.to_type(REPORT), fc.to_type(OrderedDict(count="int32", loss="float32"))
    process = metrics.SumThenFinalizeFactory(FINALIZERS, inner_summation_factory=inner).create(report)
    member = fc.types.member_of
    summed = None if inner is None else inner.create(report)
    inner_state = () if summed is None else member(summed.initialize.type_signature.result)
    measured = () if summed is None else member(summed.next.type_signature.result["measurements"])
    state = fc.FederatedType((inner_state, report), SERVER)
    output = fc.templates.MeasuredProcessOutput(
        state, fc.FederatedType((finalized, finalized), SERVER), fc.FederatedType(measured, SERVER)
    )
    parameters = OrderedDict(state=state, unfinalized_metrics=fc.FederatedType(report, CLIENTS))
    assert process.initialize.type_signature.is_equivalent_to(fc.FunctionType(None, state))
    assert process.next.type_signature.is_equivalent_to(fc.FunctionType(parameters, output))


def test_a_broadcast_and_a_finalizer_have_tffs_types():
    change = fc.to_type(["float32", ("float32", [2])])
    weights = fc.to_type(models.ModelWeights(change, fc.to_type(["float32"])))
    placed, nothing = fc.FederatedType(weights, SERVER), fc.FederatedType((), SERVER)
    output = fc.templates.MeasuredProcessOutput
    broadcast = templates.build_broadcast_process(weights)
    assert broadcast.next.type_signature.is_equivalent_to(
        fc.FunctionType(
            OrderedDict(state=nothing, value=placed),
            output(nothing, fc.FederatedType(weights, CLIENTS, all_equal=True), nothing),
        )
    )
    finalizer = templates.build_apply_optimizer_finalizer(SGD, weights)
    state = fc.FederatedType(OrderedDict(learning_rate="float32"), SERVER)
    measured = fc.FederatedType(OrderedDict(update_non_finite="int32"), SERVER)
    assert finalizer.initialize.type_signature.is_equivalent_to(fc.FunctionType(None, state))
    assert finalizer.next.type_signature.is_equivalent_to(
        fc.FunctionType(
            OrderedDict(state=state, weights=placed, update=fc.FederatedType(change, SERVER)),
            output(state, placed, measured),
        )
    )
