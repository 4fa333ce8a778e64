import json

import pytest
import tensorflow as tf

pytestmark = pytest.mark.slow  # imports TensorFlow in another process


def test_doctor_tells_versions_devices_limits_settings_and_extras(fedcore):
    ran = fedcore("doctor", "--format", "json", FEDCORE_TRACE="here")
    assert (ran.code, ran.err) == (0, "")
    found = json.loads(ran.out)
    assert found["versions"]["tensorflow"] == tf.__version__
    assert any(device.startswith("CPU") for device in found["devices"])
    assert found["settings"]["FEDCORE_TRACE"] == "here"
    assert set(found["extras"]) == {"data", "ray", "dp", "pandas", "mlflow", "wandb", "test"}
    parts = found["private parts of TensorFlow and Keras"]
    assert parts["define_function"] == "holds: tensorflow.python.eager.context: Context.add_function_def"
    assert all(text.startswith("holds: ") for name, text in parts.items() if name != "tested with")
    assert {"cores", "memory", "open files"} <= set(found["limits"])


def test_doctor_prints_a_heading_for_each_subject(fedcore):
    ran = fedcore("doctor")
    headings = [line for line in ran.out.split("\n") if line and not line.startswith(" ")]
    assert headings == [
        "versions",
        "devices",
        "limits",
        "threads",
        "settings",
        "extras",
        "private parts of TensorFlow and Keras",
        "notes",
    ]
