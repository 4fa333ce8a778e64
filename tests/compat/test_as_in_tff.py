"""What TFF's programs and tests do with models, metrics and processes, done here."""

from collections import OrderedDict

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import InvalidValue, TypeMismatch

models, metrics, templates = fc.learning.models, fc.learning.metrics, fc.learning.templates
SPEC = (tf.TensorSpec([None, 3], tf.float32), tf.TensorSpec([None, 1], tf.float32))
BATCH = (np.ones([2, 3], np.float32), np.ones([2, 1], np.float32))
SGD = fc.learning.optimizers.build_sgdm(0.1)


def keras_model(**options):
    layers = [keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="zeros")]
    return models.from_keras_model(keras.Sequential(layers), keras.losses.MeanSquaredError(), SPEC, **options)


class Distance(models.VariableModel):
    """A model whose one metric, a scalar, is its own."""

    def __init__(self):
        self.weight = tf.Variable(0.0, name="weight")
        self.seen = tf.Variable(0.0, trainable=False)

    trainable_variables = property(lambda self: [self.weight])
    non_trainable_variables = property(lambda self: [])
    local_variables = property(lambda self: [self.seen])
    input_spec = property(lambda self: tf.TensorSpec([None], tf.float32))

    def predict_on_batch(self, batch_input, training=True):
        return batch_input - self.weight

    def forward_pass(self, batch_input, training=True):
        distances = self.predict_on_batch(batch_input)
        self.seen.assign_add(tf.reduce_sum(batch_input))
        return models.BatchOutput(tf.reduce_mean(distances**2), distances, tf.size(batch_input))

    def report_local_unfinalized_metrics(self):
        return OrderedDict(seen=self.seen)

    def metric_finalizers(self):
        return OrderedDict(seen=lambda seen: seen)

    def reset_metrics(self):
        self.seen.assign(0.0)


def test_results_and_states_have_the_methods_of_named_tuples():
    assert issubclass(fc.templates.MeasuredProcessOutput, tuple)
    assert issubclass(templates.ClientResult, tuple)
    assert models.BatchOutput(loss=1.0)._replace(num_examples=2) == (1.0, None, 2)
    weights = models.ModelWeights([1.0], [])
    assert weights._asdict() == {"trainable": [1.0], "non_trainable": []}
    assert weights._replace(trainable=[2.0]).trainable == [2.0]
    state = templates.LearningAlgorithmState(weights, (), (), (), ())
    assert state._replace(finalizer=1)._asdict()["finalizer"] == 1


def test_weights_are_made_of_a_result():
    weights = models.ModelWeights([1.0], [])
    assert models.ModelWeights.from_tff_result(weights) is weights
    assert models.ModelWeights.from_tff_result(([1.0], [])) == weights


def test_weights_become_arrays_outside_of_graphs_only():
    weights = models.ModelWeights([tf.Variable(1.0)], [])
    assert weights.convert_variables_to_arrays().trainable == [np.float32(1.0)]
    with tf.Graph().as_default(), pytest.raises(InvalidValue, match="a graph that is being built has none"):
        weights.convert_variables_to_arrays()


def test_the_initial_weights_of_a_model_are_an_argument_of_a_computation():
    model = keras_model()
    predict = fc.tf_computation(lambda x, weights: model.predict_on_batch(weights, x))
    assert predict(BATCH[0], model.initial_weights).tolist() == [[0.0], [0.0]]
    assert fc.framework.infer_type(model.initial_weights) == fc.framework.infer_type(model.initial_weights())


def test_local_variables_are_those_of_the_metrics_then_of_the_loss_then_the_counts():
    model = keras_model(metrics=[metrics.NumExamplesCounter("z"), keras.metrics.MeanAbsoluteError()])
    assert [v.dtype.name for v in model.local_variables] == ["int64", *["float32"] * 4, "int64", "int64"]
    model.forward_pass(BATCH)
    assert [float(v) for v in model.local_variables] == [2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.0]


def test_counters_have_the_names_of_the_counts_that_they_replace():
    model = keras_model(metrics=[metrics.NumBatchesCounter(), metrics.NumExamplesCounter()])
    assert list(model.report_local_unfinalized_metrics()) == ["num_batches", "num_examples", "loss"]


def test_finalizers_are_asked_for_inside_a_computation():
    model = keras_model(metrics=[keras.metrics.MeanAbsoluteError()])
    model.forward_pass(BATCH)
    reported = model.report_local_unfinalized_metrics()
    finalize = fc.tf_computation(lambda r: OrderedDict((n, f(r[n])) for n, f in model.metric_finalizers().items()))
    assert finalize(reported) == {"mean_absolute_error": 1.0, "loss": 1.0, "num_examples": 2, "num_batches": 1}


def test_a_model_of_functions_with_metrics_reports_its_loss_too():
    weights = models.ModelWeights((np.zeros([3, 1], np.float32),), ())
    functional = models.FunctionalModel(
        initial_weights=weights,
        predict_on_batch_fn=lambda weights, x, training: x @ weights.trainable[0],
        loss_fn=lambda output, label, sample_weight=None: tf.reduce_mean((output - label) ** 2),
        input_spec=SPEC,
    )
    model = models.model_from_functional(functional, [keras.metrics.MeanSquaredError])
    model.forward_pass(BATCH)
    reported = model.report_local_unfinalized_metrics()
    assert {name: [float(v) for v in values] for name, values in reported.items()} == {
        "loss": [2.0, 2.0],
        "mean_squared_error": [2.0, 2.0],
    }
    assert {name: float(f(reported[name])) for name, f in model.metric_finalizers().items()} == {
        "loss": 1.0,
        "mean_squared_error": 1.0,
    }
    with pytest.raises(InvalidValue, match="metric_constructors make two metrics named mean_squared_error"):
        models.model_from_functional(functional, [keras.metrics.MeanSquaredError] * 2)


class SumOverOutputs(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return tf.add_n([tf.reduce_mean((y - p) ** 2) for y, p in zip(y_true, y_pred, strict=True)])


def two_outputs():
    inputs = keras.Input([3])
    heads = [keras.layers.Dense(1, kernel_initializer="zeros")(inputs) for _ in range(2)]
    return keras.Model(inputs, heads)


def test_a_loss_of_all_outputs_is_called_with_all():
    spec = OrderedDict(x=SPEC[0], y=[SPEC[1], SPEC[1]])
    batch = OrderedDict(x=BATCH[0], y=[BATCH[1], 2 * BATCH[1]])
    model = models.from_keras_model(two_outputs(), SumOverOutputs(), spec)
    assert float(model.forward_pass(batch).loss) == 5.0
    evaluation = fc.learning.algorithms.build_fed_eval(
        lambda: models.from_keras_model(two_outputs(), SumOverOutputs(), spec)
    )
    _, result = evaluation.next(evaluation.initialize(), [[batch], [batch]])
    assert result["client_work"]["eval"]["current_round_metrics"]["loss"] == 5.0
    with pytest.raises(fc.errors.TracingError, match="does not take labels of type list<float32"):
        models.from_keras_model(two_outputs(), SumOverOutputs(), spec, loss_weights=[1.0, 2.0])


def test_an_input_spec_has_the_containers_that_it_was_given_in():
    spec = OrderedDict(x=SPEC[0], y=[SPEC[1], SPEC[1]])
    model = models.from_keras_model(two_outputs(), ["mse", "mse"], spec)
    assert model.input_spec == spec
    assert isinstance(model.input_spec["y"], list)


def test_weights_are_those_of_a_model():
    with pytest.raises(TypeMismatch, match="3 is no model with variables: give a Keras model, or one of"):
        models.ModelWeights.from_model(3)


def test_a_class_of_losses_is_no_metric():
    with pytest.raises(TypeError, match=r"MeanSquaredError is a class of losses, .* give keras.metrics.MeanSquaredErr"):
        models.from_keras_model(two_outputs(), "mse", metrics=[keras.losses.MeanSquaredError])


def test_a_keras_model_of_functions_counts_in_states_of_its_metrics():
    dense = keras.Sequential([keras.Input([3]), keras.layers.Dense(1, kernel_initializer="zeros")])
    model = models.functional_model_from_keras(
        dense, keras.losses.MeanSquaredError(), SPEC, lambda: OrderedDict(error=keras.metrics.MeanSquaredError())
    )
    state = model.initialize_metrics_state()
    assert isinstance(state, OrderedDict)
    state = model.update_metrics_state(state, BATCH[1], models.BatchOutput(predictions=np.zeros([2, 1], np.float32)))
    assert [float(v) for v in state["error"]] == [2.0, 2.0]
    assert model.finalize_metrics(state)["error"] == 1.0


def test_metrics_as_functions_are_traced_without_variables():
    initialize, update, finalize = metrics.create_functional_metric_fns(keras.metrics.AUC)
    state = tf.nest.map_structure(tf.TensorSpec.from_tensor, initialize())
    vector = tf.TensorSpec([None], tf.float32)
    graphs = [
        initialize.get_concrete_function().graph,
        update.get_concrete_function(
            state=state, labels=vector, batch_output=models.BatchOutput(predictions=vector)
        ).graph,
        finalize.get_concrete_function(state).graph,
    ]
    assert not any("Var" in node.op for graph in graphs for node in graph.as_graph_def().node)


@pytest.mark.parametrize("metric", [keras.metrics.Mean, keras.metrics.Sum])
def test_a_metric_of_one_value_is_no_function_of_labels_and_predictions(metric):
    initialize, update, _ = metrics.create_functional_metric_fns(metric)
    with pytest.raises(TypeMismatch, match=f"{metric.__name__} is a metric of one value, not of labels and"):
        update(initialize(), [1.0], models.BatchOutput(predictions=[0.0]))


def in_a_session(build):
    with tf.Graph().as_default():
        result = build()
        with tf.compat.v1.Session() as session:
            return session.run(result)


def test_metrics_as_functions_run_in_a_plain_graph():
    def accuracy():
        initialize, update, finalize = metrics.create_functional_metric_fns(keras.metrics.Accuracy)
        return finalize(update(initialize(), [1.0, 1.0], models.BatchOutput(predictions=[0.0, 1.0])))

    assert in_a_session(accuracy) == 0.5


def test_a_table_is_decoded_in_a_plain_graph():
    iblt = fc.analytics.heavy_hitters.iblt
    table = iblt.IbltEncoder(10, 8).compute_iblt(["a", "a", "b"]).numpy()
    strings, counts, left = in_a_session(lambda: iblt.decode_iblt_tf(tf.constant(table), 10, 8))
    assert (dict(zip(strings, counts.tolist(), strict=True)), left) == ({b"a": 2, b"b": 1}, 0)


def test_a_decoder_reads_the_string_of_chunks():
    iblt = fc.analytics.heavy_hitters.iblt
    encoder, decoder = iblt.IbltEncoder(10, 8), iblt.IbltDecoder(tf.zeros([3, 14, 5], tf.int64), 10, 8)
    chunks, _ = encoder.compute_chunks(["rosen"])
    assert decoder.decode_string_from_chunks(chunks[0]).numpy() == b"rosen"


def test_an_aggregation_of_metrics_gets_the_metrics_that_it_takes():
    seen = fc.to_type(OrderedDict(seen=np.float32))

    @fc.federated_computation
    def initialize():
        return fc.federated_value(OrderedDict(seen=np.float32(0)), fc.SERVER)

    @fc.federated_computation(fc.FederatedType(seen, fc.SERVER), fc.FederatedType(seen, fc.CLIENTS))
    def next_fn(state, reports):
        added = fc.federated_sum(reports)
        return fc.templates.MeasuredProcessOutput(
            added, fc.federated_zip((added, added)), fc.federated_value((), fc.SERVER)
        )

    process = fc.templates.AggregationProcess(initialize, next_fn)
    evaluation = fc.learning.algorithms.build_fed_eval(Distance, metrics_aggregation_process=process)
    state, result = evaluation.next(evaluation.initialize(), [[np.float32([1.0, 2.0])], [np.float32([4.0])]])
    assert state.client_work == {"seen": 7.0}
    assert result["client_work"]["eval"]["current_round_metrics"] == {"seen": 7.0}


def double_the_sums(metric_finalizers):
    @fc.federated_computation
    def aggregate(client_states):
        @fc.tf_computation
        def finalize(states):
            return OrderedDict((name, fn(states[name]) * 2) for name, fn in metric_finalizers.items())

        return fc.federated_map(finalize, fc.federated_sum(client_states))

    return aggregate


@pytest.mark.parametrize("model_fn", [keras_model, Distance])
def test_an_aggregator_of_metrics_finds_the_finalizers_by_the_names_of_the_metrics(model_fn):
    process = fc.learning.algorithms.build_fed_sgd(model_fn, metrics_aggregator=double_the_sums)
    data = [BATCH] if model_fn is keras_model else [np.float32([1.0, 2.0])]
    train = process.next(process.initialize(), [data, data]).metrics["client_work"]["train"]
    assert (train["num_examples"], train["num_batches"], train["num_non_finite_clients"]) == (8, 4, 0)
    assert train.get("seen", 12.0) == 12.0


def test_secure_and_open_sums_of_a_computation_are_told():
    counts = fc.FederatedType(np.int32, fc.CLIENTS)
    secure = fc.federated_computation(counts)(lambda x: fc.federated_secure_sum(x, 9))
    open_ = fc.federated_computation(counts)(fc.federated_sum)
    asked = (
        fc.framework.computation_contains_secure_aggregation,
        fc.framework.computation_contains_unsecure_aggregation,
    )
    assert [ask(secure) for ask in asked] == [True, False]
    assert [ask(open_) for ask in asked] == [False, True]
    with pytest.raises(TypeMismatch, match="3 is no computation with types"):
        asked[0](3)


def test_an_unweighted_algorithm_refuses_an_aggregator_with_weights():
    with pytest.raises(
        TypeMismatch, match=r"model_aggregator of an unweighted algorithm takes weights \(MeanFactory\); give a factory"
    ):
        fc.learning.algorithms.build_unweighted_fed_avg(keras_model, SGD, model_aggregator=fc.aggregators.MeanFactory())


@fc.federated_computation
def norm_of_one():
    return fc.federated_value(np.float32(1), fc.SERVER)


NORM, NORMS = fc.FederatedType(np.float32, fc.SERVER), fc.FederatedType(np.float32, fc.CLIENTS)
keep_norm = fc.federated_computation(lambda state, norms: state, NORM, NORMS)
norm_of_state = fc.federated_computation(lambda state: state, NORM)


@pytest.mark.parametrize("factory", [fc.aggregators.clipping_factory, fc.aggregators.zeroing_factory])
@pytest.mark.parametrize(
    ("next_fn", "report_fn", "says"),
    [
        (
            fc.federated_computation(lambda s: s, NORM),
            norm_of_state,
            r"next of the process takes a state and \{",
        ),
        (
            fc.federated_computation(lambda s, x: s, NORM, fc.FederatedType(np.str_, fc.CLIENTS)),
            norm_of_state,
            "next of the process takes a state and",
        ),
        (
            fc.federated_computation(lambda s, x: (s, s), NORM, NORMS),
            norm_of_state,
            "next of the process returns the state alone",
        ),
        (
            keep_norm,
            fc.federated_computation(lambda s: fc.federated_value(1, fc.SERVER), NORM),
            "report of the process gives float32@SERVER",
        ),
    ],
)
def test_a_process_that_estimates_no_norm_is_refused(factory, next_fn, report_fn, says):
    process = fc.templates.EstimationProcess(norm_of_one, next_fn, report_fn)
    with pytest.raises(TypeMismatch, match=f"^(clipping|zeroing)_norm: {says}"):
        factory(process, fc.aggregators.SumFactory())


def test_a_process_that_estimates_a_norm_bounds_values():
    process = fc.templates.EstimationProcess(norm_of_one, keep_norm, norm_of_state)
    clipped = fc.aggregators.clipping_factory(process, fc.aggregators.SumFactory()).create(fc.to_type(np.float32))
    assert list(fc.types.member_of(clipped.state_type).names) == ["clipping_norm", "inner_agg", "clipped_count_agg"]
    assert clipped.next(clipped.initialize(), [0.5, 7.0]).result == 1.5


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((fc.aggregators.SumFactory(), lambda v, w: {}), "client_measurement_fn takes a value, but is `<lambda>`"),
        ((fc.aggregators.SumFactory(), None, lambda: {}), "server_measurement_fn takes a result, but is `<lambda>`"),
        ((fc.aggregators.MeanFactory(), lambda v: {}), "client_measurement_fn takes a value and a weight, but is"),
    ],
)
def test_a_measurement_function_of_other_arguments_is_refused(arguments, says):
    with pytest.raises(InvalidValue, match=f"add_measurements: {says}"):
        fc.aggregators.add_measurements(*arguments)


def test_whether_a_range_is_symmetric_is_a_bool():
    with pytest.raises(TypeMismatch, match="symmetric_range is True or False, not 'True'"):
        fc.aggregators.SecureModularSumFactory(8, symmetric_range="True")


STATE, DATA = fc.FederatedType(np.int32, fc.SERVER), fc.FederatedType(fc.SequenceType(np.int32), fc.CLIENTS)
VALUES = fc.FederatedType(np.int32, fc.CLIENTS)
Output = templates.LearningProcessOutput


@fc.federated_computation
def zero():
    return fc.federated_value(np.int32(0), fc.SERVER)


@pytest.mark.parametrize(
    ("next_fn", "says"),
    [
        (fc.federated_computation(lambda s: Output(s, s), STATE), "takes a state and data, not int32@SERVER"),
        (fc.federated_computation(lambda s, d, e: Output(s, s), STATE, DATA, DATA), "takes a state and data, not <s="),
        (fc.federated_computation(lambda s, d: Output(s, s), STATE, STATE), "takes d at the clients, not int32@SERVER"),
        (
            fc.federated_computation(lambda s, d: Output(s, d), STATE, VALUES),
            r"returns a state and metrics at the server, not .*metrics=\{int32\}@CLIENTS",
        ),
        (fc.federated_computation(lambda s, d: s, STATE, DATA), "returns a state and metrics at the server, not int32"),
    ],
)
def test_a_learning_process_is_refused_where_tff_refuses_it(next_fn, says):
    with pytest.raises(TypeMismatch, match=rf"LearningProcess: next_fn \(`<lambda>`\) {says}"):
        templates.LearningProcess(zero, next_fn)


def test_a_learning_process_whose_state_is_at_the_clients_is_refused():
    start = fc.federated_computation(lambda: fc.federated_value(np.int32(0), fc.CLIENTS))
    at_clients = fc.FederatedType(np.int32, fc.CLIENTS, all_equal=True)
    next_fn = fc.federated_computation(lambda s, d: Output(s, fc.federated_sum(s)), at_clients, DATA)
    with pytest.raises(TypeMismatch, match="takes the state at the server, not int32@CLIENTS"):
        templates.LearningProcess(start, next_fn)


def test_a_process_says_whether_its_next_takes_more_than_the_state():
    alone = fc.federated_computation(lambda s: s, STATE)
    more = fc.federated_computation(lambda s, d: s, STATE, DATA)
    process = fc.templates.IterativeProcess
    process(zero, alone, next_is_multi_arg=False)
    process(zero, more, next_is_multi_arg=True)
    with pytest.raises(TypeMismatch, match=r"takes more than the state \(next_is_multi_arg=True\), but has the type"):
        process(zero, alone, next_is_multi_arg=True)
    with pytest.raises(TypeMismatch, match=r"takes the state alone \(next_is_multi_arg=False\), but has the type"):
        process(zero, more, next_is_multi_arg=False)


def test_types_are_checked_to_be_identical():
    fc.to_type([np.int32]).check_identical_to(fc.to_type([np.int32]))
    with pytest.raises(TypeMismatch, match=r"the types are not identical\n  source  <int32>\n  target  list<int32>"):
        fc.to_type([np.int32]).check_identical_to(fc.StructType([np.int32]))


def test_a_forward_pass_counts_its_examples_in_an_int32():
    weights = models.ModelWeights((np.zeros([3, 1], np.float32),), ())
    functional = models.FunctionalModel(
        initial_weights=weights,
        predict_on_batch_fn=lambda weights, x, training: x @ weights.trainable[0],
        loss_fn=lambda output, label: tf.reduce_mean((output - label) ** 2),
        input_spec=SPEC,
    )
    for model in (keras_model(), functional, models.model_from_functional(functional)):
        assert (tf.constant(3) + model.forward_pass(BATCH).num_examples).numpy() == 5


def test_hyperparameters_are_an_ordered_dict():
    optimizer = fc.learning.optimizers.build_sgdm(0.1, momentum=0.9)
    state = optimizer.initialize(tf.TensorSpec([2]))
    hparams = optimizer.get_hparams(state)
    assert isinstance(hparams, OrderedDict)
    assert list(hparams) == ["learning_rate", "momentum"]
    new_state = optimizer.set_hparams(state, OrderedDict(learning_rate=0.5, momentum=0.8))
    assert isinstance(new_state, OrderedDict)
    assert optimizer.get_hparams(new_state) == OrderedDict(learning_rate=0.5, momentum=0.8)


def test_a_factory_of_the_other_kind_is_told_by_its_class():
    with pytest.raises(TypeMismatch, match=r"model_aggregator takes no weights .*it is no WeightedAggregationFactory"):
        fc.learning.algorithms.build_weighted_fed_avg(keras_model, SGD, model_aggregator=fc.aggregators.SumFactory())
    with pytest.raises(TypeMismatch, match="give a factory without, an UnweightedAggregationFactory such as"):
        fc.learning.algorithms.build_unweighted_fed_avg(keras_model, SGD, model_aggregator=fc.aggregators.MeanFactory())


def test_a_distributor_that_is_no_process_is_refused():
    with pytest.raises(TypeMismatch, match=r"fc\.learning\.templates\.DistributionProcess is one"):
        fc.learning.algorithms.build_fed_eval(keras_model, model_distributor=fc.tf_computation(lambda x: x))


@pytest.mark.parametrize(
    ("type_", "bounds", "dtype", "most"),
    [
        ("int32", (8, -8), np.int32, 8),
        ("int8", (2**20, 0), np.int8, 127),
        ("int64", (2**40 + 1, 0), np.int64, 2**40 + 1),
        ("float64", (1e30, 0.0), np.float64, 1e30),
        (("float32", "float64"), (1.0, -1.0), np.float32, 1),
    ],
)
def test_thresholds_of_a_secure_sum_have_the_dtype_of_the_values(type_, bounds, dtype, most):
    process = fc.aggregators.SecureSumFactory(*bounds).create(fc.to_type(type_))
    thresholds = process.next(process.initialize(), []).measurements
    assert thresholds["secure_upper_threshold"].dtype == thresholds["secure_lower_threshold"].dtype == dtype
    assert thresholds["secure_upper_threshold"] == most


def test_a_distributor_of_weights_in_lists_sends_the_models():
    weights_type = fc.to_type(models.ModelWeights([("float32", [3, 1]), ("float32", [1])], []))
    process = fc.learning.algorithms.build_fed_eval(keras_model, templates.build_broadcast_process(weights_type))
    output = process.next(process.initialize(), [[BATCH]])
    assert output.metrics["client_work"]["eval"]["current_round_metrics"]["loss"] == 1.0
