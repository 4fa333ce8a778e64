"""One program, one digest: in whatever order and in whatever process it is traced."""

import programs
import pytest
import tensorflow as tf
import warm_processes

import fedcore as fc

MAKERS = ["make_loops", "make_gradient", "make_federated"]


@pytest.mark.parametrize("first", MAKERS)
@pytest.mark.parametrize("between", MAKERS)
def test_a_program_traced_again_after_another_has_the_same_digest(first, between):
    before = getattr(programs, first)().digest
    getattr(programs, between)()
    assert getattr(programs, first)().digest == before


def test_programs_traced_in_another_process_have_the_same_digests():
    script = f"import programs; print(*[getattr(programs, make)().digest for make in {MAKERS[::-1]!r}])"
    assert warm_processes.python({"code": script}).split() == [
        getattr(programs, make)().digest for make in MAKERS[::-1]
    ]


def test_the_digest_does_not_tell_the_line_where_a_program_stands():
    def first():
        return fc.tf_computation("float32")(lambda x: x * 2.0)

    def second():
        return fc.tf_computation("float32")(lambda x: x * 2.0)

    assert first().module.graphs[0].digest == second().module.graphs[0].digest


def graph_digest(fn, *types):
    return fc.tf_computation(*types)(fn).module.graphs[0].digest


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (lambda x: x * 2.0, lambda x: x * 3.0),
        (lambda x: x + 1.0, lambda x: x - 1.0),
        (lambda x: (x, x + 1.0), lambda x: (x + 1.0, x)),
        (lambda x: tf.cond(x > 0, lambda: x, lambda: -x), lambda x: tf.cond(x > 0, lambda: -x, lambda: x)),
        (
            lambda x: tf.while_loop(lambda v: v < 9.0, lambda v: (v * 2.0,), (x,)),
            lambda x: tf.while_loop(lambda v: v < 9.0, lambda v: (v * 3.0,), (x,)),
        ),
        (tf.function(lambda x: x * 2.0), tf.function(lambda x: x * 3.0)),
    ],
)
def test_different_programs_have_different_digests(left, right):
    assert graph_digest(left, "float32") != graph_digest(right, "float32")


def test_the_same_body_over_another_dtype_has_another_digest():
    assert graph_digest(lambda x: x + x, "float32") != graph_digest(lambda x: x + x, "float64")


def test_a_closed_over_tensor_is_part_of_the_digest():
    def added(constant):
        return graph_digest(lambda x: x + constant, "float32")

    assert added(tf.constant(1.0)) == added(tf.constant(1.0))
    assert added(tf.constant(1.0)) != added(tf.constant(2.0))
