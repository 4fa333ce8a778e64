"""The models of TFF's examples."""

import numpy as np

import fedcore as fc

mnist = fc.simulation.models.mnist


def test_the_simple_model_starts_from_zeros_and_learns():
    model = mnist.create_simple_keras_model(learning_rate=0.01)
    clients = fc.simulation.datasets.emnist.get_synthetic()
    data = mnist.keras_dataset_from_emnist(clients.create_tf_dataset_for_client("synthetic1"))
    assert str(fc.to_type(data.element_spec)) == "<x=float32[784],y=int32>"
    ((x, y),) = [(batch["x"], batch["y"]) for batch in data.batch(10)]
    np.testing.assert_allclose(model(x), np.full([10, 10], 0.1), rtol=1e-6)
    losses = model.fit(x, y, batch_size=10, epochs=3, verbose=0).history["loss"]
    assert losses == sorted(losses, reverse=True)
    assert model.optimizer.learning_rate == 0.01


def test_the_convolutions_have_the_same_weights_in_each_model():
    one, other = mnist.create_keras_model(), mnist.create_keras_model(compile_model=True)
    assert [w.shape for w in one.trainable_variables] == [
        (5, 5, 1, 32),
        (32,),
        (5, 5, 32, 64),
        (64,),
        (7 * 7 * 64, 1024),
        (1024,),
        (1024, 10),
        (10,),
    ]
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(one.get_weights()[6][:32, :5], one.get_weights()[4][:32, :5])
    x, y = np.zeros([2, 784], np.float32), np.zeros([2], np.int32)
    np.testing.assert_allclose(other.evaluate(x, y, verbose=0), np.log(10), rtol=0.5)
