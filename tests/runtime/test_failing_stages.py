"""What fails at run time where no client is at fault: the server's stages, and the merging of partials."""

import concurrent.futures

import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import ClientError, ExecutionError, FedcoreError

FLOATS = fc.FederatedType("float32", fc.CLIENTS)


@fc.tf_computation("float32")
def root(x):
    tf.debugging.assert_non_negative(x, message="no root")
    return tf.sqrt(x)


@fc.tf_computation("float32", "float32")
def add(left, right):
    return left + right


@fc.tf_computation("float32", "float32")
def add_ordered(left, right):
    tf.debugging.assert_less_equal(left, right, message="not in order")
    return left + right


@fc.tf_computation
def no_zero():
    tf.debugging.assert_equal(tf.size(tf.strings.split("a b")), 3, message="no zero")
    return tf.constant(0.0)


@fc.federated_computation(FLOATS)
def root_of_sum(xs):
    return fc.federated_map(root, fc.federated_sum(xs))


@fc.federated_computation(FLOATS)
def ordered_sum(xs):
    return fc.federated_aggregate(xs, 0.0, add, add_ordered, root)


@fc.federated_computation(FLOATS)
def sum_from_no_zero(xs):
    return fc.federated_aggregate(xs, no_zero(), add, add, root)


def line_of(computation: fc.Computation) -> str:
    """Where the computation's body calls its last intrinsic."""
    return str(computation.module.main.operations[-1].location)


def message_of(error: type[FedcoreError], call) -> str:
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert "{{" not in message
    assert "[[" not in message
    assert "[Op:" not in message
    assert "__inference" not in message
    return message


def test_a_failing_server_stage_names_the_computation_the_stage_and_the_line():
    message = message_of(ExecutionError, lambda: root_of_sum([1.0, -3.0]))
    assert message.startswith("root_of_sum failed: assertion failed: [no root. ")
    _, failing, stage = message.rsplit("\n", 2)
    assert failing.startswith("  at tests/runtime/test_failing_stages.py:")
    assert "assert" in failing
    assert stage == "  in the stage @server, which ends at " + line_of(root_of_sum)


def test_it_does_so_from_another_thread_than_the_main_one():
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        message = message_of(ExecutionError, lambda: pool.submit(root_of_sum, [-1.0]).result())
    assert message.startswith("root_of_sum failed: assertion failed: [no root. ")


def test_a_failing_merge_names_its_stage():
    message = message_of(ExecutionError, lambda: ordered_sum([2.0, 1.0]))
    assert message.startswith("ordered_sum failed: assertion failed: [not in order] ")
    assert message.endswith("\n  in the stage @join, which ends at " + line_of(ordered_sum))


def test_a_zero_that_fails_does_so_at_the_server_also_without_clients():
    message = message_of(ExecutionError, lambda: sum_from_no_zero([]))
    assert message.startswith("sum_from_no_zero failed: assertion failed: [no zero] ")
    assert message.endswith("in the stage @server, which ends at " + line_of(sum_from_no_zero))


def test_what_runs_for_a_client_is_still_that_clients_failure():
    roots = fc.federated_computation(lambda xs: fc.federated_map(root, xs), FLOATS)
    message = message_of(ClientError, lambda: roots([1.0, -3.0]))
    assert message.startswith("client 1 failed: assertion failed: [no root. ")
    text, _, place = message.partition("\n  at ")
    assert text.endswith("[-3]")
    assert place.startswith("tests/runtime/test_failing_stages.py:")  # of the assertion
    assert place.endswith("\n  in the stage @clients of lambda, which ends at " + line_of(roots))


def test_a_computation_goes_on_after_a_failure():
    with pytest.raises(ExecutionError):
        root_of_sum([-1.0])
    assert root_of_sum([4.0]) == 2.0


def test_the_reference_runtime_names_the_operation_and_the_line():
    with fc.use(fc.runtime.reference()):
        message = message_of(ExecutionError, lambda: root_of_sum([1.0, -3.0]))
    assert message.startswith("federated_map failed: assertion failed: [no root. ")
    assert message.endswith("[-2]\n  at " + line_of(root_of_sum))


def test_running_out_of_memory_at_the_server_is_tensorflows_own_error():
    @fc.tf_computation("int64")
    def huge(count):
        row = tf.fill([count], 1.0)
        return tf.reduce_max(tf.maximum(row, row[:, None]))

    with pytest.raises(tf.errors.ResourceExhaustedError):
        huge(1 << 21)


def test_no_threads_are_too_few():
    with pytest.raises(FedcoreError, match="intra_op_threads is at least 1, not 0"):
        fc.runtime.local(intra_op_threads=0)
