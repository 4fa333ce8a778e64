"""TensorFlow's profiler around a call shows its stages."""

import pytest
import tensorflow as tf

import fedcore as fc


@fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
def norm(xs):
    squares = fc.federated_sum(fc.federated_map(lambda x: x * x, xs))
    return fc.federated_map(fc.tf_computation(lambda x: tf.sqrt(x), "float32"), squares)


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
