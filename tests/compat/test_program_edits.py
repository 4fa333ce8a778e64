"""What `fedcore port` lists, and that Keras 3 is as it says."""

import keras
import pytest
import tensorflow as tf

from fedcore.compat.program_edits import Edit, edits


def listed(*lines: str) -> list[Edit]:
    return edits("\n".join(lines))


@pytest.mark.parametrize(
    ("line", "write"),
    [
        ("import tensorflow_federated", "import fedcore as tensorflow_federated"),
        ("from tensorflow_federated import learning", "from fedcore import learning"),
        ("from tensorflow_federated.python.learning import x", "TFF's inner modules are not here: "),
        ("from federated_language import framework as f", "from fedcore import framework"),
        ("from tensorflow_federated import jax_computation", "fc.tf_computation: "),
    ],
)
def test_imports_of_tff_are_listed(line, write):
    (edit,) = listed(line)
    assert edit.write.startswith(write)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("tff.types.type_from_tensors", "fc.framework.infer_type: "),
        ("tff.learning.reconstruction.build_training_process", "fc.learning.models.ReconstructionModel: "),
        ("tff.structure.flatten", "tf.nest.flatten: "),
        ("tff.array_to_proto", "not planned here: "),
        ("tff.learning.no_such_name", "neither TFF's last versions nor fedcore have this name"),
    ],
)
def test_a_name_that_is_gone_is_listed_once_with_what_to_write(name, write):
    _, edit = listed("import tensorflow_federated as tff", f"{name}(1)")
    assert edit.line == 2
    assert name.startswith(edit.has)
    assert edit.write.startswith(write)


@pytest.mark.parametrize("name", ["tff.CLIENTS.uri", "tff.federated_sum", "tff.types.to_type(x).shape", "other.jax"])
def test_a_name_that_is_here_is_not_listed(name):
    assert [edit.line for edit in listed("import tensorflow_federated as tff", name)] == [1]


KERAS = {
    "optimizer.variables()": lambda: keras.optimizers.SGD().variables(),
    "optimizer.minimize(loss, variables)": lambda: keras.optimizers.SGD().minimize(lambda: 0.0, []),
    "optimizer.apply_gradients(pairs, name='x')": lambda: keras.optimizers.SGD().apply_gradients([], name="x"),
    "variable.read_value()": lambda: keras.Variable(1.0).read_value(),
    "variable.ref()": lambda: keras.Variable(1.0).ref(),
    "metric.reset_states()": lambda: keras.metrics.Mean().reset_states(),
    "metric.add_weight('total', (), 'zeros')": lambda: keras.metrics.Mean().add_weight("total", (), "zeros"),
    "tf.keras.optimizers.SGD(lr=0.1)": lambda: keras.optimizers.SGD(lr=0.1),
    "tf.keras.layers.LSTM(1, time_major=True)": lambda: keras.layers.LSTM(1, time_major=True),
    "tf.keras.layers.BatchNormalization(fused=True)": lambda: keras.layers.BatchNormalization(fused=True),
    "tf.keras.layers.Dense(1, batch_input_shape=(2, 3))": lambda: keras.layers.Dense(1, batch_input_shape=(2, 3)),
    "tf.keras.layers.experimental.preprocessing": lambda: tf.keras.layers.experimental,
    "tf.keras.experimental.CosineDecay": lambda: tf.keras.experimental,
}
"""A line of Keras 2 -> its call."""


@pytest.mark.parametrize("line", KERAS)
def test_what_keras_3_has_no_more_is_listed(line):
    with pytest.raises((AttributeError, TypeError, ValueError)):
        KERAS[line]()
    (edit,) = listed(line)
    assert edit.write


@pytest.mark.parametrize(
    "line",
    [
        "optimizer.variables",
        "optimizer.apply_gradients(pairs)",
        "metric.reset_state()",
        "metric.add_weight(name='total', initializer='zeros')",
        "layer.add_weight((2, 3))",
        "tf.keras.optimizers.SGD(learning_rate=0.1)",
    ],
)
def test_keras_3_is_not_listed(line):
    assert listed(line) == []
