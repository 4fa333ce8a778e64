"""Learning processes that are composed of parts, and the checks of the parts."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import TypeMismatch

templates = fc.learning.templates
sgd = fc.learning.optimizers.build_sgdm
FLOAT = fc.to_type("float32")


def client(count, seed):
    draws = np.random.default_rng(seed)
    x = draws.normal(size=(count, 3)).astype(np.float32)
    return fc.data.ClientDataset.from_columns((x, x.sum(1, keepdims=True))).shuffle(4).batch(2)


CLIENTS = [client(n, n) for n in (3, 5, 4)]
SPEC = CLIENTS[0].element_spec


def model_fn():
    layers = [keras.Input((3,)), keras.layers.Dense(4, "relu"), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
    return fc.learning.from_keras_model(keras.Sequential(layers), keras.losses.MeanSquaredError(), SPEC)


@pytest.fixture(scope="module")
def weights_type():
    return fc.learning.models.weights_type_from_model(model_fn)


@pytest.fixture(scope="module")
def parts(weights_type):
    """The parts of federated averaging, built once."""
    return {
        "initial_model_weights_fn": fc.learning.models.initial_weights_of(model_fn),
        "model_weights_distributor": templates.build_broadcast_process(weights_type),
        "client_work": templates.build_model_delta_client_work(
            model_fn, sgd(0.1, momentum=0.5), fc.learning.ClientWeighting.NUM_EXAMPLES
        ),
        "model_update_aggregator": fc.aggregators.MeanFactory().create(weights_type["trainable"], FLOAT),
        "model_finalizer": templates.build_apply_optimizer_finalizer(sgd(0.7), weights_type),
    }


def composed(parts, **changed):
    return templates.compose_learning_process(**{**parts, **changed})


@pytest.fixture(scope="module")
def process(parts):
    return composed(parts)


def after_rounds(process, rounds=2):
    state = process.initialize.invoke(seed=3)
    for _ in range(rounds):
        state, metrics = process.next(state, CLIENTS)
    return state, metrics


def test_federated_averaging_that_is_composed_has_the_bits_of_its_builder(process):
    builder = fc.learning.algorithms.build_weighted_fed_avg(model_fn, sgd(0.1, momentum=0.5), sgd(0.7))
    (ours, metrics), (theirs, their_metrics) = after_rounds(process), after_rounds(builder)
    tf.nest.map_structure(
        np.testing.assert_array_equal, ours.global_model_weights.trainable, theirs.global_model_weights.trainable
    )
    assert metrics["client_work"] == their_metrics["client_work"]
    assert metrics["finalizer"] == {"update_non_finite": 0}
    assert process.get_hparams(ours) == builder.get_hparams(theirs)


def test_hyperparameters_go_to_their_parts(process):
    state = process.initialize.invoke(seed=3)
    hparams = process.get_hparams(state)
    assert {part: sorted(given) for part, given in hparams.items()} == {
        "client_work": ["learning_rate", "momentum"],
        "finalizer": ["learning_rate"],
    }
    hparams["finalizer"]["learning_rate"] = np.float32(0.0)
    still = process.set_hparams(state, hparams)
    assert process.get_hparams(still)["finalizer"] == {"learning_rate": 0.0}
    after = process.next(still, CLIENTS).state
    tf.nest.map_structure(
        np.testing.assert_array_equal, after.global_model_weights.trainable, state.global_model_weights.trainable
    )


def test_an_update_that_is_not_finite_is_rejected_with_the_optimizers_state(weights_type):
    adam = fc.learning.optimizers.build_adam(0.1)
    finalizer = templates.build_apply_optimizer_finalizer(adam, weights_type)
    weights = fc.learning.models.initial_weights_of(model_fn)()
    state = finalizer.initialize()
    update = [np.ones_like(w) for w in weights.trainable]
    moved = finalizer.next(state, weights, tuple(update))
    assert moved.measurements == {"update_non_finite": 0}
    assert moved.state["step"] == 1
    update[0][0, 0] = np.inf
    kept = finalizer.next(moved.state, moved.result, tuple(update))
    assert kept.measurements == {"update_non_finite": 1}
    tf.nest.map_structure(np.testing.assert_array_equal, (kept.state, kept.result), (moved.state, moved.result))


def test_a_rule_of_ones_own_rejects_updates(weights_type):
    finalizer = templates.build_apply_optimizer_finalizer(
        sgd(1.0), weights_type, lambda state, update: (tf.reduce_max(update[0]) > 1.0, None)
    )
    weights = fc.learning.models.initial_weights_of(model_fn)()
    for scale, moves in ((1.0, True), (2.0, False)):
        output = finalizer.next(
            finalizer.initialize(), weights, tuple(scale * np.ones_like(w) for w in weights.trainable)
        )
        assert (output.result.trainable[1][0] != weights.trainable[1][0]) == moves
        assert output.measurements == ()


def test_a_functional_model_works_too():
    keras_model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model = fc.learning.models.functional_model_from_keras(keras_model, keras.losses.MeanSquaredError(), SPEC)
    work = templates.build_functional_model_delta_client_work(
        model=model, optimizer=sgd(0.1), client_weighting=fc.learning.ClientWeighting.UNIFORM
    )
    weights = fc.learning.models.initial_weights_of(model)()
    output = work.next(work.initialize(), [weights] * 3, CLIENTS)
    assert [r.update_weight for r in output.result] == [1.0] * 3
    assert output.measurements["train"]["num_examples"] == 12
    with pytest.raises(TypeMismatch, match=r"model is a fc.learning.models.FunctionalModel, not"):
        templates.build_functional_model_delta_client_work(
            model=model_fn, optimizer=sgd(0.1), client_weighting=fc.learning.ClientWeighting.UNIFORM
        )


@fc.federated_computation
def nothing():
    return fc.federated_value((), fc.SERVER)


def at(type_, where):
    return fc.FederatedType(type_, where)


def test_parts_of_ones_own_compose(parts, weights_type):
    """Client work that is written by hand: the mean of a client's inputs moves the first weights."""
    data = fc.SequenceType(fc.to_type((("float32", (None, 3)), ("float32", (None, 1)))))

    @fc.tf_computation(weights_type, data)
    def work(weights, batches):
        examples = 0.0
        for x, _ in batches:
            examples += tf.cast(tf.shape(x)[0], tf.float32)
        update = tuple(tf.ones_like(w) * examples for w in weights.trainable)
        return templates.ClientResult(update=update, update_weight=1.0)

    @fc.federated_computation(nothing.type_signature.result, at(weights_type, fc.CLIENTS), at(data, fc.CLIENTS))
    def next_fn(state, weights, batches):
        result = fc.federated_map(work, (weights, batches))
        return fc.templates.MeasuredProcessOutput(state, result, fc.federated_value((), fc.SERVER))

    process = composed(
        parts,
        client_work=templates.ClientWorkProcess(nothing, next_fn),
        model_finalizer=templates.build_apply_optimizer_finalizer(sgd(1.0), weights_type),
    )
    before = process.initialize()
    after, metrics = process.next(before, CLIENTS)
    moved = after.global_model_weights.trainable[1] - before.global_model_weights.trainable[1]
    np.testing.assert_allclose(moved, -4.0)
    assert metrics["client_work"] == ()
    assert process.get_hparams(after) == {"client_work": {}, "finalizer": {"learning_rate": 1.0}}


@pytest.mark.parametrize(
    ("kind", "parameters", "result", "says"),
    [
        ("DistributionProcess", [("value", "float32@SERVER")], lambda v: v, r"the result of next_fn .* is at CLIENTS"),
        ("DistributionProcess", [("value", "float32@CLIENTS")], lambda v: v, r"the second argument of .* is at SERVER"),
        (
            "DistributionProcess",
            [],
            lambda: fc.federated_value(1.0, fc.CLIENTS),
            r"takes a state, a value, but has the",
        ),
        ("FinalizerProcess", [("w", "float32@SERVER")], lambda w: w, r"takes a state, the weights and an update"),
        (
            "FinalizerProcess",
            [("w", "float32@SERVER"), ("u", "int32@SERVER")],
            lambda w, u: u,
            r"does not return the weights that it takes(.|\n)*float32@SERVER(.|\n)*int32@SERVER",
        ),
        (
            "ClientWorkProcess",
            [("w", "float32@CLIENTS"), ("d", "{float32*}@CLIENTS")],
            lambda w, d: w,
            r"a ClientResult at the clients\n  wants  {<update=…,update_weight=…>}@CLIENTS\n  has    float32@CLIENTS",
        ),
        (
            "ClientWorkProcess",
            [("w", "float32@CLIENTS"), ("d", "{float32}@CLIENTS")],
            lambda w, d: w,
            r"a client's data, a sequence or a struct of sequences, not {float32}@CLIENTS",
        ),
    ],
)
def test_parts_of_other_types_are_refused(kind, parameters, result, says):
    from fedcore.compiler.inlining import with_parameters

    def next_fn(state, *values):
        return fc.templates.MeasuredProcessOutput(state, result(*values), fc.federated_value((), fc.SERVER))

    types = [fc.to_type("<>@SERVER"), *(fc.to_type(t) for _, t in parameters)]
    computation = fc.federated_computation(with_parameters(next_fn, len(types)), *types)
    with pytest.raises(TypeMismatch, match=says):
        getattr(templates, kind)(nothing, computation)


def test_functions_of_hyperparameters_are_checked(process, weights_type):
    finalizer = templates.build_apply_optimizer_finalizer(sgd(1.0), weights_type)
    wrong = fc.tf_computation(lambda state: state, "int32")
    with pytest.raises(
        TypeMismatch, match=r"FinalizerProcess: get_hparams_fn .* takes the state\n  wants  <learning_ra"
    ):
        templates.FinalizerProcess(finalizer.initialize, finalizer.next, get_hparams_fn=wrong)
    with pytest.raises(TypeMismatch, match=r"get_model_weights does not take the state"):
        templates.LearningProcess(process.initialize, process.next, wrong)


def test_parts_that_do_not_fit_each_other_are_refused(parts, weights_type):
    number = fc.tf_computation(lambda: 1.0)
    for changed, says in (
        (
            {"initial_model_weights_fn": number},
            "`model_weights_distributor` does not take what `initial_model_weights_fn`",
        ),
        ({"model_weights_distributor": nothing}, "model_weights_distributor is a DistributionProcess, not"),
        (
            {"model_update_aggregator": fc.aggregators.SumFactory().create(weights_type["trainable"])},
            "model_update_aggregator takes no weights; fc.aggregators.as_weighted_aggregator",
        ),
        (
            {"model_update_aggregator": fc.aggregators.MeanFactory().create(FLOAT, FLOAT)},
            "`model_update_aggregator` does not take what `client_work` gives",
        ),
        (
            {"initial_model_weights_fn": fc.federated_computation(lambda x: x, "int32")},
            "takes nothing and gives weights",
        ),
    ):
        with pytest.raises(TypeMismatch, match=says):
            composed(parts, **changed)
    with pytest.warns(RuntimeWarning, match="measure_timing changes nothing: clients are run many at a time"):
        composed(parts, measure_timing=True)
    with pytest.raises(TypeMismatch, match=r"model_weights_type is the type of a ModelWeights"):
        templates.build_apply_optimizer_finalizer(sgd(1.0), weights_type["trainable"])
    with pytest.raises(TypeMismatch, match="value_type is not placed, but is float32@SERVER"):
        templates.build_broadcast_process("float32@SERVER")
