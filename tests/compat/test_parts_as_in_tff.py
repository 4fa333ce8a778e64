"""Parts of processes: their types and what they refuse are TFF's, or differ on purpose, by a line of docs/porting.md.

`REFUSALS` has, for every kind of part, the changes to a valid part that TFF refuses with a `TypeError`; `TAKEN` has
what TFF takes. The types of built parts are compared as TFF's `is_equivalent_to` does.
"""

import functools
import re
from collections import OrderedDict, namedtuple
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc

PAGE = re.sub(r"\s+", " ", (Path(__file__).parents[2] / "docs" / "porting.md").read_text(encoding="utf-8"))
SERVER, CLIENTS = fc.SERVER, fc.CLIENTS
learning, templates = fc.learning, fc.learning.templates
Output = fc.templates.MeasuredProcessOutput
OtherOutput = namedtuple("OtherOutput", ["state", "result", "measurements"])

VECTOR = fc.to_type(("float32", [2]))
DATA = fc.SequenceType(np.float32)


def at(placement, type_=VECTOR):
    return fc.FederatedType(type_, placement)


STATE = at(SERVER, fc.to_type("int32"))
initialize = fc.federated_computation(lambda: fc.federated_value(0, SERVER))
initialize_pair = fc.federated_computation(lambda: (initialize(), initialize()))
initialize_text = fc.federated_computation(lambda: fc.federated_value("", SERVER))
initialize_at_clients = fc.federated_computation(lambda: fc.federated_value(0, CLIENTS))
initialize_plain = fc.tf_computation(lambda: 0)
initialize_of_one = fc.federated_computation(lambda x: initialize(), np.int32)
initialize_nothing = fc.federated_computation(lambda: fc.federated_value((), SERVER))


@fc.tf_computation
def weigh(weights, data):
    return templates.ClientResult(weights, data.reduce(np.float32(0), lambda total, x: total + x))


def measured(state=None, make=Output, result=None):
    """The body of `next`: the state, a result of the arguments, and measurements at the server."""
    return lambda first, *rest: make(state() if state else first, result(*rest), fc.federated_value(1.0, SERVER))


def work(weights, data):
    return fc.federated_map(weigh, (weights, data))


KINDS = {
    "DistributionProcess": (templates.DistributionProcess, (at(SERVER),), fc.federated_broadcast),
    "ClientWorkProcess": (templates.ClientWorkProcess, (at(CLIENTS), at(CLIENTS, DATA)), work),
    "FinalizerProcess": (templates.FinalizerProcess, (at(SERVER), at(SERVER)), lambda weights, update: weights),
    "AggregationProcess": (fc.templates.AggregationProcess, (at(CLIENTS),), fc.federated_sum),
    "MeasuredProcess": (fc.templates.MeasuredProcess, (at(CLIENTS),), fc.federated_sum),
}
"""Kind -> its class, the types that `next` takes beside the state, and the result of such arguments."""


def part(kind, *, start=initialize, state=STATE, types=None, result=None, body=None, next_fn=None, **hparams):
    """The call that makes a part of the kind, valid but for what is given; its computations are traced before."""
    cls, own_types, own_result = KINDS[kind]
    body, types = body or measured(result=result or own_result), own_types if types is None else types
    takes = (lambda a: body(a), lambda a, b: body(a, b), lambda a, b, c: body(a, b, c))[len(types)]
    return functools.partial(cls, start, next_fn or fc.federated_computation(takes, state, *types), **hparams)


def text():
    return fc.federated_value("", SERVER)


plain_round = fc.tf_computation(lambda state, value: Output(state, 1.0, 1.0), np.int32, VECTOR)


def changes(kind):
    """What is changed -> the arguments of `part`."""
    result = KINDS[kind][2]
    first = KINDS[kind][1][0]
    moved = at(SERVER if first.placement == CLIENTS else CLIENTS)
    elsewhere = {
        "DistributionProcess": lambda value: value,
        "ClientWorkProcess": lambda weights, data: fc.federated_sum(weights),
        "FinalizerProcess": lambda weights, update: fc.federated_broadcast(weights),
        "AggregationProcess": lambda value: value,
    }
    every = {
        "initialize is no computation": {"start": lambda: 0},
        "next is no computation": {"next_fn": lambda state, value: state},
        "initialize takes an argument": {"start": initialize_of_one},
        "the first state does not fit": {"start": initialize_text},
        "the next state does not fit": {"body": measured(text, result=result)},
        "next gives a tuple": {"body": measured(make=lambda *parts: parts, result=result)},
        "next gives another named tuple": {"body": measured(make=OtherOutput, result=result)},
        "next gives a dict": {
            "body": measured(make=lambda *parts: OrderedDict(zip(Output._fields, parts, strict=True)), result=result)
        },
    }
    if kind == "MeasuredProcess":
        return every
    parts = {
        "nothing is placed": {"start": initialize_plain, "next_fn": plain_round},
        "the state is a pair of placed values": {"start": initialize_pair, "state": fc.to_type((STATE, STATE))},
        "the state is at the clients": {"start": initialize_at_clients, "state": at(CLIENTS, fc.to_type("int32"))},
        "next takes the state alone": {"types": (), "result": lambda: fc.federated_value(1.0, SERVER)},
        "the first value is elsewhere": {"types": (moved, *KINDS[kind][1][1:]), "result": lambda *values: values[0]},
        "the result is elsewhere": {"result": elsewhere[kind]},
        "the measurements are at the clients": {
            "body": lambda state, *rest: Output(state, result(*rest), fc.federated_value(1.0, CLIENTS))
        },
    }
    return every | parts


REFUSALS = {(kind, what): arguments for kind in KINDS for what, arguments in changes(kind).items()} | {
    ("DistributionProcess", "next takes three"): {"types": (at(SERVER), at(SERVER)), "result": lambda a, b: a},
    ("ClientWorkProcess", "next takes no data"): {"types": (at(CLIENTS),), "result": lambda weights: weights},
    ("ClientWorkProcess", "the data are at the server"): {
        "types": (at(CLIENTS), at(SERVER, DATA)),
        "result": lambda weights, data: fc.federated_map(weigh, (weights, fc.federated_broadcast(data))),
    },
    ("ClientWorkProcess", "the result is a pair of placed values"): {
        "result": lambda weights, data: templates.ClientResult(*fc.federated_map(weigh, (weights, data)))
    },
    ("ClientWorkProcess", "the result is a dict"): {
        "result": lambda weights, data: fc.federated_map(
            fc.tf_computation(lambda w: OrderedDict(update=w, update_weight=1.0)), weights
        )
    },
    ("ClientWorkProcess", "the result has other names"): {
        "result": lambda weights, data: fc.federated_map(
            fc.tf_computation(lambda w: OrderedDict(update=w, weight=1.0)), weights
        )
    },
    ("FinalizerProcess", "next takes no update"): {"types": (at(SERVER),), "result": lambda weights: weights},
    ("FinalizerProcess", "the update is at the clients"): {"types": (at(SERVER), at(CLIENTS))},
    ("FinalizerProcess", "the result is of another type"): {
        "types": (at(SERVER), at(SERVER, fc.to_type("int32"))),
        "result": lambda weights, update: update,
    },
    **{
        (kind, f"{role} {what}"): {role: fn}
        for kind in ("ClientWorkProcess", "FinalizerProcess")
        for role, what, fn in (
            ("get_hparams_fn", "is no computation", lambda state: {}),
            ("set_hparams_fn", "is no computation", lambda state, hparams: state),
            ("get_hparams_fn", "takes another state", fc.tf_computation(lambda state: {}, np.str_)),
            ("set_hparams_fn", "takes the state alone", fc.tf_computation(lambda state: state, np.int32)),
            ("set_hparams_fn", "takes another state", fc.tf_computation(lambda s, h: 0, np.str_, np.int32)),
            ("set_hparams_fn", "gives another state", fc.tf_computation(lambda s, h: "", np.int32, np.int32)),
        )
    },
}
"""(Kind, what is changed) -> the arguments of `part`."""

TAKEN = {
    **{(kind, "no state"): {"start": initialize_nothing, "state": at(SERVER, fc.to_type(()))} for kind in KINDS},
    ("ClientWorkProcess", "data are a struct of data sets"): {
        "types": (at(CLIENTS), at(CLIENTS, fc.to_type((DATA, OrderedDict(more=DATA))))),
        "result": lambda weights, data: work(weights, fc.federated_map(fc.tf_computation(lambda d: d[0]), data)),
    },
    ("ClientWorkProcess", "data are a tensor"): {
        "types": (at(CLIENTS), at(CLIENTS, fc.to_type("float32"))),
        "result": lambda weights, data: fc.federated_map(
            fc.tf_computation(lambda w, d: templates.ClientResult(w, d)), (weights, data)
        ),
    },
    ("DistributionProcess", "the result is of another type"): {
        "result": lambda value: fc.federated_broadcast(
            fc.federated_map(fc.tf_computation(lambda v: tf.reduce_sum(v)), value)
        )
    },
    ("FinalizerProcess", "the update is of another type"): {"types": (at(SERVER), at(SERVER, fc.to_type("int32")))},
}
"""What TFF takes."""

ON_PURPOSE = {
    "data are a tensor": "data of clients are sequences",
    "the result is a pair of placed values": "structs of placed values",
    "next gives another named tuple": "What `next` returns is read by its names",
    "next gives a dict": "What `next` returns is read by its names",
    "the result is a dict": "What `next` returns is read by its names",
    "the state is a pair of placed values": "structs of placed values",
}
"""What is changed -> the words of docs/porting.md that say so."""


def check(call, is_taken, words):
    """Whether a call is taken or refused, or, where the page says so, the other."""
    if is_taken == (words is None):
        call()
        return
    with pytest.raises(TypeError):
        call()


@pytest.mark.parametrize(("kind", "what"), REFUSALS, ids=str)
def test_parts_refuse_what_tff_refuses_or_differ_by_a_line_of_the_page(kind, what):
    check(part(kind, **REFUSALS[kind, what]), False, ON_PURPOSE.get(what))


@pytest.mark.parametrize(("kind", "what"), TAKEN, ids=str)
def test_parts_take_what_tff_takes_or_differ_by_a_line_of_the_page(kind, what):
    check(part(kind, **TAKEN[kind, what]), True, ON_PURPOSE.get(what))


SPEC = OrderedDict(x=tf.TensorSpec([None, 3], tf.float32), y=tf.TensorSpec([None, 1], tf.float32))
SGD = learning.optimizers.build_sgdm(0.1)


def keras_model():
    return keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])


def model_fn():
    return learning.models.from_keras_model(keras_model(), "mse", SPEC)


WEIGHTS = learning.models.weights_type_from_model(model_fn)
UNIFORM, BY_EXAMPLES = learning.ClientWeighting.UNIFORM, learning.ClientWeighting.NUM_EXAMPLES
RATE = fc.to_type(OrderedDict(learning_rate="float32"))
TRAINED = OrderedDict(loss="float32", num_examples="int64", num_batches="int64", num_non_finite_clients="int64")
"""Metrics of a model of Keras; `num_non_finite_clients` is an int32 in TFF."""


def functional_model(metrics=None):
    return learning.models.functional_model_from_keras(keras_model(), keras.losses.MeanSquaredError(), SPEC, metrics)


def client_work_type(state, metrics):
    """TFF's type of `next` of a client work."""
    state, measured = at(SERVER, state), at(SERVER, fc.to_type(OrderedDict(train=metrics)))
    result = at(CLIENTS, fc.to_type(templates.ClientResult(WEIGHTS.trainable, "float32")))
    data = at(CLIENTS, fc.SequenceType(fc.to_type(SPEC)))
    parameters = OrderedDict(state=state, weights=at(CLIENTS, WEIGHTS), client_data=data)
    return fc.FunctionType(parameters, Output(state, result, measured))


def hparams_types(state, hparams):
    """TFF's types of `get_hparams` and `set_hparams`."""
    both = OrderedDict(state=state, hparams=hparams)
    return fc.FunctionType(state, hparams), fc.FunctionType(fc.to_type(both), state)


@pytest.mark.parametrize("weighting", [UNIFORM, BY_EXAMPLES])
def test_the_client_work_of_a_model_has_tffs_types(weighting):
    made = templates.build_model_delta_client_work(model_fn, SGD, weighting)
    assert made.initialize.type_signature.is_equivalent_to(fc.FunctionType(None, at(SERVER, RATE)))
    assert made.next.type_signature.is_equivalent_to(client_work_type(RATE, TRAINED))
    get_type, set_type = hparams_types(RATE, RATE)
    assert made.get_hparams.type_signature.is_equivalent_to(get_type)
    assert made.set_hparams.type_signature.is_equivalent_to(set_type)


def test_the_client_work_of_a_functional_model_has_the_types_of_the_page():
    assert "`build_functional_model_delta_client_work` has the optimizer's hyperparameters in its state" in PAGE
    model = functional_model(lambda: OrderedDict(error=keras.metrics.MeanSquaredError()))
    made = templates.build_functional_model_delta_client_work(model=model, optimizer=SGD, client_weighting=UNIFORM)
    assert made.next.type_signature.is_equivalent_to(client_work_type(RATE, {"error": "float32", **TRAINED}))


def test_hyperparameters_of_a_finalizer_have_tffs_types():
    made = templates.build_apply_optimizer_finalizer(SGD, WEIGHTS)
    get_type, set_type = hparams_types(RATE, RATE)
    assert made.get_hparams.type_signature.is_equivalent_to(get_type)
    assert made.set_hparams.type_signature.is_equivalent_to(set_type)


# compose_learning_process and LearningProcess.

start_weights = learning.models.initial_weights_of(model_fn)
VALID = {
    "initial_model_weights_fn": start_weights,
    "model_weights_distributor": templates.build_broadcast_process(WEIGHTS),
    "client_work": templates.build_model_delta_client_work(model_fn, SGD, UNIFORM),
    "model_update_aggregator": fc.aggregators.MeanFactory().create(WEIGHTS.trainable, fc.to_type("float32")),
    "model_finalizer": templates.build_apply_optimizer_finalizer(SGD, WEIGHTS),
}
OTHER_WEIGHTS = fc.to_type(learning.models.ModelWeights((("float32", [9]),), ()))
COMPOSITIONS = {
    "weights of an argument": {"initial_model_weights_fn": fc.tf_computation(lambda x: x, WEIGHTS)},
    "weights of a Python function": {"initial_model_weights_fn": lambda: 0},
    "placed weights": {
        "initial_model_weights_fn": fc.federated_computation(lambda: fc.federated_eval(start_weights, SERVER))
    },
    "weights of another type": {"initial_model_weights_fn": fc.tf_computation(lambda: 0.0)},
    **{f"{role} is none": {role: start_weights} for role in VALID if role != "initial_model_weights_fn"},
    "an aggregator without weights": {"model_update_aggregator": fc.aggregators.SumFactory().create(WEIGHTS.trainable)},
    "an aggregator of other updates": {
        "model_update_aggregator": fc.aggregators.MeanFactory().create(*map(fc.to_type, ("float32", "float32")))
    },
    "a finalizer of other weights": {"model_finalizer": templates.build_apply_optimizer_finalizer(SGD, OTHER_WEIGHTS)},
    "a distributor of other weights": {"model_weights_distributor": templates.build_broadcast_process(OTHER_WEIGHTS)},
}


@pytest.mark.parametrize("what", COMPOSITIONS)
def test_compositions_refuse_what_tff_refuses(what):
    with pytest.raises(TypeError):
        templates.compose_learning_process(**VALID | COMPOSITIONS[what])


def test_a_composition_has_tffs_types():
    process = templates.compose_learning_process(**VALID)
    part_types = [VALID[role].initialize.type_signature.result.member for role in list(VALID)[1:]]
    state = process.initialize.type_signature.result.member
    assert list(state.names) == [*templates.LearningAlgorithmState.__annotations__]
    assert all(a.is_equivalent_to(b) for a, b in zip(state.types, [WEIGHTS, *part_types], strict=False))
    metrics = process.next.type_signature.result["metrics"].member
    assert list(metrics.names) == ["distributor", "client_work", "aggregator", "finalizer"]


@fc.federated_computation(STATE, at(CLIENTS, DATA))
def round_of_data(state, data):
    return templates.LearningProcessOutput(state, fc.federated_value(1.0, SERVER))


def round_with(result, *types):
    takes = (lambda a: result(a), lambda a, b: result(a), lambda a, b, c: result(a))[len(types) - 1]
    return fc.federated_computation(takes, *types)


def output_of(state):
    return templates.LearningProcessOutput(state, fc.federated_value(1.0, SERVER))


LEARNING = {
    "initialize_fn": initialize,
    "next_fn": round_of_data,
    "get_model_weights": fc.tf_computation(lambda state: state, np.int32),
    "set_model_weights": fc.tf_computation(lambda state, weights: weights, np.int32, np.int32),
}
LEARNING_CHANGES = {
    "initialize is no computation": {"initialize_fn": lambda: 0},
    "next is no computation": {"next_fn": lambda state, data: state},
    "initialize takes an argument": {"initialize_fn": initialize_of_one},
    "the first state does not fit": {"initialize_fn": initialize_text},
    "the first state is not placed": {"initialize_fn": initialize_plain},
    "next is not federated": {
        "next_fn": fc.tf_computation(lambda state, data: templates.LearningProcessOutput(state, 1.0), np.int32, DATA)
    },
    "the state is at the clients": {
        "initialize_fn": initialize_at_clients,
        "next_fn": round_with(output_of, at(CLIENTS, fc.to_type("int32")), at(CLIENTS, DATA)),
    },
    "next gives a tuple": {"next_fn": round_with(lambda state: tuple(output_of(state)), STATE, at(CLIENTS, DATA))},
    "next gives a dict": {"next_fn": round_with(lambda state: output_of(state)._asdict(), STATE, at(CLIENTS, DATA))},
    "next takes the state alone": {"next_fn": round_with(output_of, STATE)},
    "next takes three": {"next_fn": round_with(output_of, STATE, at(CLIENTS, DATA), at(CLIENTS))},
    "the data are at the server": {"next_fn": round_with(output_of, STATE, at(SERVER, DATA))},
    "the metrics are at the clients": {
        "next_fn": round_with(
            lambda state: templates.LearningProcessOutput(state, fc.federated_broadcast(state)),
            STATE,
            at(CLIENTS, DATA),
        )
    },
    "get_model_weights is a Python function": {"get_model_weights": lambda state: state},
    "get_model_weights is federated": {"get_model_weights": fc.federated_computation(lambda state: state, STATE)},
    "get_model_weights takes another state": {"get_model_weights": fc.tf_computation(lambda state: state, np.str_)},
    "set_model_weights takes another state": {
        "set_model_weights": fc.tf_computation(lambda state, weights: weights, np.str_, np.int32)
    },
    "set_model_weights gives another state": {
        "set_model_weights": fc.tf_computation(lambda state, weights: weights, np.int32, np.str_)
    },
}
LEARNING_ON_PURPOSE = {
    "next gives a tuple": "of a `LearningProcess` any pair",
    "next gives a dict": "What `next` returns is read by its names",
    "get_model_weights is a Python function": "`get_model_weights` and `set_model_weights` may be Python functions",
}


@pytest.mark.parametrize("what", LEARNING_CHANGES)
def test_learning_processes_refuse_what_tff_refuses_or_differ_by_a_line_of_the_page(what):
    templates.LearningProcess(**LEARNING)
    check(lambda: templates.LearningProcess(**LEARNING | LEARNING_CHANGES[what]), False, LEARNING_ON_PURPOSE.get(what))


def test_what_differs_on_purpose_stands_on_the_page():
    assert [words for words in (ON_PURPOSE | LEARNING_ON_PURPOSE).values() if words not in PAGE] == []
