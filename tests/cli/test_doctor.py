import importlib.metadata
import json
import tomllib

import pytest
import tensorflow as tf
from command_line import ROOT

pytestmark = pytest.mark.slow  # imports TensorFlow in another process


def test_doctor_tells_versions_devices_limits_settings_and_extras(fedcore):
    settings = {"FEDCORE_TRACE": "here", "FEDCORE_TARGET": "avx2/small-l2/slow-memory/no-gpu"}
    ran = fedcore("doctor", "--format", "json", **settings)
    assert (ran.code, ran.err) == (0, "")
    found = json.loads(ran.out)
    assert found["versions"]["tensorflow"] == tf.__version__
    assert any(device.startswith("CPU") for device in found["devices"])
    assert settings.items() <= found["settings"].items()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(found["extras"]) == set(project["optional-dependencies"])
    parts = found["private parts of TensorFlow and Keras"]
    assert parts["define_function"] == "holds: tensorflow.python.eager.context: Context.add_function_def"
    assert all(text.startswith("holds: ") for name, text in parts.items() if name != "tested with")
    assert {"cores", "memory", "open files"} <= set(found["limits"])


def test_a_directory_with_the_name_of_a_package_is_not_the_package(fedcore, tmp_path):
    for name in ("wandb", "mlflow", "torch", "datasets"):
        (tmp_path / name).mkdir()
    extras = json.loads(fedcore("doctor", "--format", "json").out)["extras"]
    for extra, module in (("wandb", "wandb"), ("mlflow", "mlflow"), ("torch", "torch"), ("huggingface", "datasets")):
        installed = importlib.metadata.packages_distributions().get(module)
        assert extras[extra] == ("there" if installed else f"lacks {module}")


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
