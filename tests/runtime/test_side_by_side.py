"""Clients side by side: what one client's program does not compute cannot fail it."""

import numpy as np
import pytest
import tensorflow as tf
from local_runtimes import local_runtime

import fedcore as fc
from fedcore.context import last_report
from fedcore.errors import ClientError

INT = fc.TensorType("int32")


def total(work, *types):
    """The sum of what clients compute of two values."""
    computation = fc.federated_computation(*(fc.FederatedType(t, fc.CLIENTS) for t in types))(
        lambda a, b: fc.federated_sum(fc.federated_map(work, (a, b)))
    )
    assert computation.to_module("planned").function("clients").attributes["strategy"] == "vectorised"
    return computation


def nested(which, by):
    divided = lambda: 12 // by  # noqa: E731
    return tf.switch_case(which, [lambda: tf.switch_case(which, [divided, lambda: by]), lambda: by])


def looped(which, by):
    added = lambda i, total: (i + 1, total + tf.switch_case(which, [lambda: 12 // by, lambda: by]))  # noqa: E731
    return tf.while_loop(lambda i, _: i < 2, added, (0, 0))[1]


CASES = {
    "division": (lambda which, by: tf.switch_case(which, [lambda: 12 // by, lambda: by]), 12 // 3 + 0 + 5),
    "remainder": (lambda which, by: tf.switch_case(which, [lambda: 13 % by, lambda: by]), 13 % 3 + 0 + 5),
    "index": (
        lambda which, by: tf.switch_case(which, [lambda: tf.gather([1, 2, 3, 4], by - 1), lambda: by]),
        3 + 0 + 5,
    ),
    "case in a case": (nested, 12 // 3 + 0 + 5),
    "case in a loop": (looped, 2 * (12 // 3 + 0 + 5)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_branch_that_fails_fails_only_the_clients_that_take_it(case):
    work, expected = CASES[case]
    computation = total(fc.tf_computation(work, INT, INT), INT, INT)
    assert computation([0, 1, 1], [3, 0, 5]) == expected
    assert computation([1, 1, 1], [0, 0, 0]) == 0
    with pytest.raises(ClientError, match="client 1 failed: "):
        computation([1, 0, 0], [1, 0, 1])


COUNTDOWN = fc.to_type({"left": INT, "sum": INT})


@fc.tf_computation(COUNTDOWN, INT)
def divided(state, x):
    return {"left": state["left"] - 1, "sum": state["sum"] + x // state["left"]}


@fc.federated_computation(COUNTDOWN, fc.SequenceType(INT))
def countdown(start, numbers):
    return fc.sequence_reduce(numbers, start, divided)


def test_a_client_that_has_ended_does_not_fail_in_the_steps_of_the_others():
    """A client of n numbers divides by n, …, 1, and would divide by 0 in the next step."""
    computation = total(countdown, COUNTDOWN, fc.SequenceType(INT))
    counts = [1, 3, 0, 2] * 6
    expected = 6 * (12 + (4 + 6 + 12) + 0 + (6 + 12))
    with local_runtime():
        sums = computation([{"left": n, "sum": 0} for n in counts], [[12] * n for n in counts])
        assert (sums["left"], sums["sum"]) == (0, expected)
        assert not last_report().notes
        assert not last_report().dropped


def test_a_client_that_has_ended_has_the_bits_of_one_that_could_go_on():
    def divide(state, x):
        return {"left": state["left"] - 1, "sum": state["sum"] * 1.1 + x / tf.cast(1 + 0 // state["left"], tf.float32)}

    start, numbers = fc.to_type({"left": INT, "sum": np.float32}), fc.SequenceType(np.float32)
    step = fc.tf_computation(start, np.float32)(divide)
    work = fc.federated_computation(start, numbers)(lambda s, xs: fc.sequence_reduce(xs, s, step))
    computation = total(work, start, numbers)
    given = [np.float32([0.1 * i, 0.7, 0.3][: 1 + i % 3]) for i in range(20)]
    ends_at_zero = computation([{"left": len(xs), "sum": 0.3} for xs in given], given)
    assert not last_report().notes
    never = computation([{"left": 9 + len(xs), "sum": 0.3} for xs in given], given)
    assert not last_report().notes
    assert ends_at_zero["sum"].tobytes() == never["sum"].tobytes()
