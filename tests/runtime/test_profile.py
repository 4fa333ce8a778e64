"""TensorFlow's profiler around a call shows its stages."""

import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import FedcoreError


@fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
def norm(xs):
    squares = fc.federated_sum(fc.federated_map(lambda x: x * x, xs))
    return fc.federated_map(fc.tf_computation(lambda x: tf.sqrt(x), "float32"), squares)


def test_a_profile_of_operations_tells_the_lines_of_the_user():
    norm([3.0, 4.0])
    with fc.debug.profile() as times:
        norm([3.0, 4.0])
    (root,) = [each for each in times.operations if each.operation == "Sqrt"]
    assert root.source is not None
    assert root.source.location is not None
    assert root.source.location.file.endswith("test_profile.py")
    assert 0 < root.seconds < times.seconds
    assert "Sqrt" in str(times)


def test_two_profiles_at_once_are_refused():
    with fc.debug.profile(), pytest.raises(FedcoreError, match="runs in this process already"), fc.debug.profile():
        pass


def test_a_report_prints_its_figures():
    norm.invoke([3.0, 4.0], seed=7)
    lines = str(fc.context.last_report()).splitlines()
    assert lines[0].startswith("2 clients in ")
    assert lines[0].endswith("seed 7")
    assert lines[1:] == ["graph calls: 1 server, 1 block", "bits: 0 to clients, 64 back"]


@pytest.mark.parametrize("vectorize", ["auto", False])
def test_a_profile_names_the_computation_and_its_client_stage(vectorize, tmp_path):
    runtime = fc.runtime.local(workers_per_device=1, vectorize=vectorize)
    with fc.use(runtime), tf.profiler.experimental.Profile(str(tmp_path)):
        assert norm([1.0, 2.0, 2.0]) == 3.0
    runtime.close()
    (profile,) = tmp_path.rglob("*.xplane.pb")
    shown = profile.read_bytes()
    assert b"__inference_norm_clients_" in shown
    assert b"__inference_norm_server_" in shown
