"""Options of the algorithms: schedules, distributors, gradient aggregators, evaluations of several models."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import FedcoreError, InvalidValue, TypeMismatch
from fedcore.learning import LoopImplementation, algorithms, optimizers
from fedcore.templates import AggregationProcess, MeasuredProcess, MeasuredProcessOutput

SPEC = (tf.TensorSpec([None, 1]), tf.TensorSpec([None, 1]))


def client(*points):
    x, y = (np.array([[p[i]] for p in points], np.float32) for i in (0, 1))
    return fc.data.ClientDataset.from_columns((x, y)).batch(2)


CLIENTS = [client((1, 3), (2, 5), (0, 1)), client((1, 0), (-1, 2))]


def line(start=1.0):
    """One weight w; the loss is (w x - y)^2."""

    def forward_pass(weights, batch, training):
        (w,), (x, y) = weights.trainable, batch
        return fc.learning.BatchOutput(tf.reduce_mean((w * x - y) ** 2), w * x, tf.shape(x)[0])

    return fc.learning.models.FunctionalModel(fc.learning.ModelWeights((np.float32(start),), ()), forward_pass, SPEC)


def weight_of(state):
    return state.global_model_weights.trainable[0]


def halving(round_number):
    return 0.1 * 0.5 ** tf.cast(round_number, tf.float32)


def rounds(process, count=2):
    state, shown = process.initialize(), []
    for _ in range(count):
        state, metrics = process.next(state, CLIENTS)
        shown.append(metrics)
    return state, shown


def sending(change):
    """A distributor that sends `change` of the weights, counts its rounds and measures the count."""
    weights_type = fc.tf_computation(line().initial_weights).type_signature.result

    @fc.federated_computation
    def initialize():
        return fc.federated_value(0, fc.SERVER)

    @fc.federated_computation(initialize.type_signature.result, fc.FederatedType(weights_type, fc.SERVER))
    def next_fn(state, weights):
        sent = fc.federated_map(fc.tf_computation(lambda w: tf.nest.map_structure(change, w)), weights)
        count = fc.federated_map(fc.tf_computation(lambda n: n + 1), state)
        return MeasuredProcessOutput(count, fc.federated_broadcast(sent), count)

    return MeasuredProcess(initialize, next_fn)


def with_rates(build):
    """Two rounds of a process whose rate is set before each round."""
    process = build()
    state = process.initialize()
    for number in range(2):
        state = process.set_hparams(state, {"client_work": {"learning_rate": halving(number).numpy()}})
        state, _ = process.next(state, CLIENTS)
    return weight_of(state)


def test_a_schedule_hands_its_rate_to_the_optimizer_and_shows_it():
    process = algorithms.build_weighted_fed_avg_with_optimizer_schedule(
        line(), halving, lambda rate: optimizers.build_sgdm(rate, momentum=0.5)
    )
    state, shown = rounds(process)
    assert [float(m["client_work"]["client_learning_rate"]) for m in shown] == pytest.approx([0.1, 0.05])
    expected = with_rates(lambda: algorithms.build_weighted_fed_avg(line(), optimizers.build_sgdm(7.0, momentum=0.5)))
    np.testing.assert_array_equal(weight_of(state), expected)


def test_a_schedule_may_mix_the_round_with_floats():
    process = algorithms.build_weighted_fed_avg_with_optimizer_schedule(
        line(), lambda r: 0.1 * 0.9**r, optimizers.build_sgdm()
    )
    _, shown = rounds(process)
    assert [float(m["client_work"]["client_learning_rate"]) for m in shown] == pytest.approx([0.1, 0.09])


def test_a_schedule_replaces_the_rate_of_an_optimizer_that_is_made_whatever_the_rate():
    made = [
        algorithms.build_weighted_fed_avg_with_optimizer_schedule(line(), lambda _: 0.1, optimizer_fn)
        for optimizer_fn in (lambda _: optimizers.build_sgdm(7.0), optimizers.build_sgdm)
    ]
    (left, shown), (right, _) = (rounds(process) for process in made)
    assert float(shown[0]["client_work"]["client_learning_rate"]) == pytest.approx(0.1)
    tf.nest.map_structure(np.testing.assert_array_equal, left.model.trainable, right.model.trainable)


@pytest.mark.parametrize(
    "wrong", [lambda rate: optimizers.build_sgdm(2 * rate), lambda rate: optimizers.build_sgdm(rate, momentum=rate / 2)]
)
def test_a_scheduled_optimizer_takes_its_rate_as_it_is_and_nothing_else_of_it(wrong):
    with pytest.raises(FedcoreError, match=r"hands its learning rate .* but for 1.0 and 0.5 the optimizers have"):
        algorithms.build_weighted_fed_avg_with_optimizer_schedule(line(), halving, wrong)


def test_mime_with_a_schedule_is_mime_whose_rate_is_set_in_each_round():
    base = optimizers.build_sgdm(7.0, momentum=0.5)
    process = algorithms.build_mime_lite_with_optimizer_schedule(line(), halving, base)
    state, shown = rounds(process)
    assert [float(m["client_work"]["client_learning_rate"]) for m in shown] == pytest.approx([0.1, 0.05])
    assert process.hyperparameters["client_work"] == ("momentum",)
    expected = with_rates(lambda: algorithms.build_weighted_mime_lite(line(), base))
    np.testing.assert_array_equal(weight_of(state), expected)
    with pytest.raises(FedcoreError, match="base_optimizer: the optimizer keeps no learning_rate in its state"):
        algorithms.build_mime_lite_with_optimizer_schedule(
            line(), halving, keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5))
        )


def test_mime_joins_gradients_and_sends_weights_by_its_own_processes():
    base = optimizers.build_sgdm(0.1, momentum=0.5)
    process = algorithms.build_unweighted_mime_lite(
        line(), base, model_distributor=sending(lambda w: w + 1), full_gradient_aggregator=fc.aggregators.SumFactory()
    )
    state, shown = rounds(process, 1)
    gradients = []
    for given in CLIENTS:
        x, y = (np.concatenate(part) for part in zip(*given.as_numpy_iterator(), strict=True))
        gradients.append(np.mean(2 * (2.0 * x - y) * x))
    np.testing.assert_allclose(state.client_work["velocity"][0], -0.1 * np.sum(gradients), rtol=1e-5)
    assert state.distributor == shown[0]["distributor"] == 1
    assert set(state.aggregator) == set(shown[0]["aggregator"]) == {"model", "full_gradient"}
    with pytest.raises(TypeMismatch, match="takes no weights"):
        algorithms.build_weighted_mime_lite(line(), base, full_gradient_aggregator=fc.aggregators.SumFactory())


@pytest.mark.parametrize(
    ("build", "argument"),
    [
        (algorithms.build_unweighted_fed_avg, "model_aggregator"),
        (algorithms.build_unweighted_fed_prox, "model_aggregator"),
        (algorithms.build_unweighted_mime_lite, "model_aggregator"),
        (algorithms.build_unweighted_mime_lite, "full_gradient_aggregator"),
    ],
)
def test_an_aggregator_whose_result_is_no_update_is_named_with_both_types(build, argument):
    optimizer = optimizers.build_sgdm(0.1)
    needed = {"proximal_strength": 0.1} if build is algorithms.build_unweighted_fed_prox else {}
    needed["base_optimizer" if build is algorithms.build_unweighted_mime_lite else "client_optimizer_fn"] = optimizer
    sample = fc.aggregators.UnweightedReservoirSamplingFactory(3)
    says = rf"(?s)^{argument} gives no update.*update +wants .*<float32.*it gives +has .*<float32\[\?\]"
    with pytest.raises(TypeMismatch, match=says):
        build(line(), **needed, **{argument: sample})


def test_clusters_start_from_what_the_distributor_sends():
    points = fc.data.ClientDataset.from_columns(np.array([[0.0], [4.0]], np.float32))

    @fc.federated_computation
    def initialize():
        return fc.federated_value((), fc.SERVER)

    centres = algorithms.build_fed_kmeans(2, [1]).initialize().global_model_weights
    centres_type = fc.tf_computation(lambda: centres).type_signature.result

    @fc.federated_computation(initialize.type_signature.result, fc.FederatedType(centres_type, fc.SERVER))
    def next_fn(state, weights):
        swapped = fc.tf_computation(lambda w: fc.learning.ModelWeights((w.trainable[0][::-1],), ()))
        sent = fc.federated_broadcast(fc.federated_map(swapped, weights))
        return MeasuredProcessOutput(state, sent, fc.federated_value(7, fc.SERVER))

    process = algorithms.build_fed_kmeans(
        2, [1], initial_centers=[[0.0], [4.0]], random_seed=None, distributor=MeasuredProcess(initialize, next_fn)
    )
    state, metrics = process.next(process.initialize(), [points])
    np.testing.assert_array_equal(state.global_model_weights.trainable[0], [[2.0], [2.0]])
    assert metrics["distributor"] == 7


def largest_loss(model):
    """An aggregation process: the largest mean loss of a client in this round, and of all rounds."""
    reported = fc.tf_computation(lambda: model.report_metrics(model.initial_metrics())).type_signature.result

    @fc.federated_computation
    def initialize():
        return fc.federated_value(0.0, fc.SERVER)

    @fc.federated_computation(initialize.type_signature.result, fc.FederatedType(reported, fc.CLIENTS))
    def next_fn(state, reports):
        loss = fc.tf_computation(reported)(lambda report: report["loss"][0] / report["loss"][1])
        current = fc.federated_max(fc.federated_map(loss, reports))
        total = fc.federated_map(fc.tf_computation(lambda a, b: tf.maximum(a, b)), (state, current))
        return MeasuredProcessOutput(total, fc.federated_zip((current, total)), fc.federated_value((), fc.SERVER))

    return AggregationProcess(initialize, next_fn)


def test_an_evaluation_takes_a_distributor_and_a_process_for_its_metrics():
    model = line()
    evaluation = algorithms.build_fed_eval(
        model, model_distributor=sending(lambda w: w + 1), metrics_aggregation_process=largest_loss(model)
    )
    state, first = evaluation.next(evaluation.initialize(), CLIENTS)
    state, second = evaluation.next(state, CLIENTS[1:])
    losses = []
    for given in CLIENTS:
        x, y = (np.concatenate(part) for part in zip(*given.as_numpy_iterator(), strict=True))
        losses.append(np.mean((2.0 * x - y) ** 2))
    found = [{name: float(v) for name, v in m["client_work"]["eval"].items()} for m in (first, second)]
    assert [f["current_round_metrics"] for f in found] == pytest.approx([max(losses), losses[1]])
    assert found[1]["total_rounds_metrics"] == pytest.approx(max(losses))
    assert second["distributor"] == 2
    assert weight_of(state) == 1.0


def test_parts_that_are_no_processes_are_refused():
    with pytest.raises(TypeMismatch, match=r"model_distributor is a fc.templates.MeasuredProcess, not 3"):
        algorithms.build_fed_eval(line(), model_distributor=3)
    with pytest.raises(TypeMismatch, match=r"^distributor is a fc.templates.MeasuredProcess, not 3"):
        algorithms.build_fed_kmeans(2, [1], distributor=3)
    with pytest.raises(TypeMismatch, match=r"metrics_aggregation_process is a fc.templates.AggregationProcess, not"):
        algorithms.build_fed_eval(line(), metrics_aggregation_process=sending(lambda w: w))


def losses_of(metrics, kind="current_round_metrics"):
    return [float(found["eval"][kind]["loss"]) for found in metrics["client_work"].values()]


@pytest.mark.parametrize("from_processes", [False, True])
def test_several_models_are_evaluated_as_each_by_itself(from_processes):
    models = [line(1.0), line(-2.0)]
    single = [algorithms.build_fed_eval(model) for model in models]
    if from_processes:
        several = algorithms.build_fed_multi_model_eval_from_processes(single)
    else:
        several = algorithms.build_fed_multi_model_eval(models)
    state, _ = several.next(several.initialize(), CLIENTS[:1])
    state, metrics = several.next(state, CLIENTS[1:])
    current, total = [], []
    for process in single:
        alone, _ = process.next(process.initialize(), CLIENTS[:1])
        _, found = process.next(alone, CLIENTS[1:])
        current.append(float(found["client_work"]["eval"]["current_round_metrics"]["loss"]))
        total.append(float(found["client_work"]["eval"]["total_rounds_metrics"]["loss"]))
    assert losses_of(metrics) == current
    assert losses_of(metrics, "total_rounds_metrics") == total
    assert state.round == 2
    assert {name: float(w.trainable[0]) for name, w in several.get_model_weights(state).items()} == {
        "a": 1.0,
        "b": -2.0,
    }


@pytest.mark.parametrize("from_processes", [False, True])
def test_weights_of_several_models_are_those_of_each(from_processes):
    models = [line(1.0), line(-2.0)]
    if from_processes:
        several = algorithms.build_fed_multi_model_eval_from_processes([*map(algorithms.build_fed_eval, models)])
    else:
        several = algorithms.build_fed_multi_model_eval(models)
    state = several.initialize()
    a, b = several.get_model_weights(state).values()
    state = several.set_model_weights(state, {"b": a, "a": b})
    assert [float(w.trainable[0]) for w in several.get_model_weights(state).values()] == [-2.0, 1.0]
    says = "set_model_weights takes a dict of the weights of a, b, not "
    for weights, other in (
        ({"a": a}, "of a$"),
        ({"a": a, "b": b, "c": a}, "of a, b, c"),
        ({}, "of none"),
        (a, "ModelW"),
    ):
        with pytest.raises(TypeMismatch, match=says + other):
            several.set_model_weights(state, weights)


def test_several_evaluations_are_processes_of_learning():
    with pytest.raises(TypeMismatch, match=r"eval_processes\[1\] is no LearningProcess, but 3"):
        algorithms.build_fed_multi_model_eval_from_processes([algorithms.build_fed_eval(line()), 3])
    with pytest.raises(TypeMismatch, match="model_fns is a list, not "):
        algorithms.build_fed_multi_model_eval(line())


def test_several_models_take_the_same_batches():
    other = fc.learning.models.FunctionalModel(
        fc.learning.ModelWeights((), ()), lambda *_: None, (tf.TensorSpec([None, 3]), tf.TensorSpec([None]))
    )
    with pytest.raises(TypeMismatch, match=r"different batches: a takes <float32\[\?,1\].*; b takes <float32\[\?,3\]"):
        algorithms.build_fed_multi_model_eval([line(), other])
    with pytest.raises(InvalidValue, match="model_fns has between 1 and 52 entries, not 0"):
        algorithms.build_fed_multi_model_eval([])
    with pytest.raises(InvalidValue, match="there are 1 model_fns and 2 metrics_aggregation_processes"):
        algorithms.build_fed_multi_model_eval([line()], metrics_aggregation_processes=[None, None])
    with pytest.raises(InvalidValue, match="eval_processes has between 2 and 52 entries, not 1"):
        algorithms.build_fed_multi_model_eval_from_processes([algorithms.build_fed_eval(line())])


# What the builders of TFF take; for reconstruction, what they took before TFF removed them.
_LOOP = "metrics_aggregator loop_implementation"
_OWN_WEIGHTS = f"server_optimizer_fn client_weighting model_distributor model_aggregator {_LOOP}"
_MIME = f"base_optimizer server_optimizer model_distributor model_aggregator full_gradient_aggregator {_LOOP}"
TAKEN = {
    "build_weighted_fed_avg": f"model_fn client_optimizer_fn {_OWN_WEIGHTS} measure_timing",
    "build_unweighted_fed_avg": f"model_fn client_optimizer_fn server_optimizer_fn {_LOOP} measure_timing",
    "build_weighted_fed_avg_with_optimizer_schedule": "model_fn client_learning_rate_fn client_optimizer_fn "
    f"server_optimizer_fn model_distributor model_aggregator {_LOOP}",
    "build_weighted_fed_prox": f"model_fn proximal_strength client_optimizer_fn {_OWN_WEIGHTS}",
    "build_unweighted_fed_prox": f"model_fn proximal_strength client_optimizer_fn server_optimizer_fn {_LOOP}",
    "build_fed_sgd": f"model_fn server_optimizer_fn model_distributor model_aggregator {_LOOP}",
    "build_fed_kmeans": "num_clusters data_shape random_seed distributor sum_aggregator",
    "build_weighted_mime_lite": f"model_fn {_MIME} client_weighting",
    "build_unweighted_mime_lite": f"model_fn {_MIME}",
    "build_mime_lite_with_optimizer_schedule": f"model_fn learning_rate_fn {_MIME} client_weighting",
    "build_fed_eval": "model_fn model_distributor metrics_aggregation_process loop_implementation",
    "build_fed_multi_model_eval": "model_fns model_distributor metrics_aggregation_processes loop_implementation",
    "build_fed_multi_model_eval_from_processes": "eval_processes",
    "build_fed_recon": "model_fn loss_fn metrics_fn server_optimizer_fn client_optimizer_fn "
    "reconstruction_optimizer_fn dataset_split_fn client_weighting model_distributor model_aggregator_factory "
    "metrics_aggregator",
    "build_fed_recon_eval": "model_fn loss_fn metrics_fn reconstruction_optimizer_fn dataset_split_fn "
    "model_distributor metrics_aggregation_process",
    "build_personalization_eval_computation": "model_fn personalize_fn_dict baseline_evaluate_fn max_num_clients",
}


@pytest.mark.parametrize("name", TAKEN)
def test_a_builder_takes_the_arguments_of_tff(name):
    taken = inspect.signature(getattr(algorithms, name)).parameters
    assert not [argument for argument in TAKEN[name].split() if argument not in taken]


def test_loops_and_client_times_of_tff_are_dropped_with_a_warning():
    def sgd():
        return optimizers.build_sgdm(0.1)

    loop = LoopImplementation.DATASET_ITERATOR
    plain = algorithms.build_weighted_fed_avg(line(), sgd)
    for build in (
        lambda **options: algorithms.build_weighted_fed_avg(line(), sgd, **options),
        lambda **options: algorithms.build_unweighted_fed_avg(line(), sgd, **options),
        lambda **options: algorithms.build_unweighted_fed_prox(line(), 0.1, sgd, **options),
        lambda **options: algorithms.build_weighted_fed_avg_with_optimizer_schedule(line(), halving, sgd, **options),
        lambda **options: algorithms.build_fed_sgd(line(), **options),
        lambda **options: algorithms.build_unweighted_mime_lite(line(), sgd, **options),
        lambda **options: algorithms.build_fed_eval(line(), **options),
        lambda **options: algorithms.build_fed_multi_model_eval([line()], **options),
    ):
        with pytest.warns(RuntimeWarning, match=r"build_\w+: loop_implementation changes nothing: one loop") as warned:
            process = build(loop_implementation=loop)
        assert len(warned) == 1
        assert __file__.endswith(warned[0].filename)
        if warned[0].message.args[0].startswith("build_weighted_fed_avg:"):
            assert process.next.module.digest() == plain.next.module.digest()
    with pytest.warns(RuntimeWarning, match=r"measure_timing .*: .* fc.context.last_report\(\).seconds is the time"):
        algorithms.build_unweighted_fed_avg(line(), sgd, measure_timing=True)
    with pytest.warns(RuntimeWarning, match="build_fed_sgd: loop_implementation changes nothing"):
        algorithms.build_fed_sgd(line(), None, None, None, None, loop)
    with pytest.raises(TypeError, match="positional argument"):
        algorithms.build_fed_sgd(line(), None, None, None, None, None, 3)
    algorithms.build_unweighted_fed_avg(line(), sgd, measure_timing=False)
