import importlib.metadata
import json
import tomllib

import pytest
import tensorflow as tf
from command_line import ROOT

pytestmark = pytest.mark.slow  # imports TensorFlow in another process


SETTINGS = {"FEDCORE_TRACE": "here", "FEDCORE_TARGET": "avx2/small-l2/slow-memory/no-gpu"}
NAMESAKES = {"wandb": "wandb", "mlflow": "mlflow", "torch": "torch", "huggingface": "datasets"}
"""Extra -> a module of its package, of which name the doctor meets a directory."""


@pytest.fixture(scope="module")
def told(fedcore_in, tmp_path_factory):
    folder = tmp_path_factory.mktemp("doctor")
    for name in NAMESAKES.values():
        (folder / name).mkdir()
    ran = fedcore_in(folder, "doctor", "--format", "json", **SETTINGS)
    assert (ran.code, ran.err) == (0, "")
    return json.loads(ran.out)


def test_doctor_tells_versions_devices_limits_settings_and_extras(told):
    assert told["versions"]["tensorflow"] == tf.__version__
    assert any(device.startswith("CPU") for device in told["devices"])
    assert SETTINGS.items() <= told["settings"].items()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(told["extras"]) == set(project["optional-dependencies"])
    parts = told["private parts of TensorFlow and Keras"]
    assert parts["define_function"] == "holds: tensorflow.python.eager.context: Context.add_function_def"
    assert all(text.startswith("holds: ") for name, text in parts.items() if name != "tested with")
    assert {"cores", "memory", "open files"} <= set(told["limits"])


def test_a_directory_with_the_name_of_a_package_is_not_the_package(told):
    for extra, module in NAMESAKES.items():
        installed = importlib.metadata.packages_distributions().get(module)
        assert told["extras"][extra] == ("there" if installed else f"lacks {module}")


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
