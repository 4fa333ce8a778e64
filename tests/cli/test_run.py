import json
import textwrap

import numpy as np
import pytest

from fedcore.cli.json_values import as_json

pytestmark = pytest.mark.slow  # imports TensorFlow


def test_clients_are_a_json_list_and_the_result_is_json(fedcore, mean_fed):
    ran = fedcore("run", "mean.fed", "--arg", "[1.0, 2.0, 6.0]")
    assert (ran.code, ran.out) == (0, "[3.0, 9.0]\n")


def test_a_lowered_module_runs(fedcore, mean_fed):
    assert fedcore("opt", "mean.fed", "-p", "lowering", "-o", "lowered.fed").code == 0
    ran = fedcore("run", "lowered.fed", "--arg", "[1.0, 2.0, 6.0]")
    assert (ran.code, ran.out) == (0, "[3.0, 9.0]\n")


def test_an_argument_comes_from_an_array_file_by_name(fedcore, mean_fed, tmp_path):
    np.save(tmp_path / "x.npy", np.array([1, 2, 6], np.float32))
    ran = fedcore("run", "mean.fed", "--arg", "x=@x.npy", "--format", "json", "--seed", "7")
    told = json.loads(ran.out)
    assert told["result"] == [3.0, 9.0]
    assert (told["report"]["seed"], told["report"]["clients"]) == (7, 3)


def test_json_lists_who_was_left_out(fedcore, tmp_path):
    program = """
        import fedcore as fc

        fc.set_runtime(fc.runtime.local(on_client_failure=fc.runtime.drop()))

        @fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
        def total(xs):
            return fc.federated_sum(xs)
    """
    (tmp_path / "tolerant.py").write_text(textwrap.dedent(program))
    given = ("run", "tolerant:total", "--format", "json", "--arg")
    told = json.loads(fedcore(*given, '[1.0, "none", 2.0]').out)
    assert told["result"] == 3.0
    assert list(told["report"]["dropped"]) == ["1"]
    assert told["report"]["dropped"]["1"].startswith("xs[1] does not fit\n  signature  wants  float32\n")
    assert "dropped" not in json.loads(fedcore(*given, "[1.0, 2.0]").out)["report"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "0 are given; the parameters are x: {float32}@CLIENTS"),
        (("--arg", "y=[1]"), "there is no y; the parameters are x: {float32}@CLIENTS"),
        (("--arg", "[1"), "'[1' is no JSON"),
        (("--arg", "[" * 100_000), f"'{'[' * 80}…' is no JSON: its values nest too deep"),
        (("--arg", "@nothing.json"), "cannot read nothing.json"),
        (("--arg", "@."), "cannot read .: "),
    ],
)
def test_wrong_arguments_are_usage_errors_that_say_what_is_wanted(fedcore, mean_fed, arguments, says):
    ran = fedcore("run", "mean.fed", *arguments)
    assert ran.code == 2
    assert says in ran.err


def test_a_parameter_that_is_given_twice_is_a_usage_error(fedcore, tmp_path):
    (tmp_path / "two.fed").write_text("fedcore 1 traced\n\nfn @main(%x: int32, %y: int32) -> int32 {\n  return %x\n}\n")
    ran = fedcore("run", "two.fed", "--arg", "x=1", "--arg", "x=2")
    assert ran.code == 2
    assert "--arg: x is given twice; the parameters are x: int32, y: int32" in ran.err


@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
@pytest.mark.parametrize("damage", ["empty", "cut", "changed"])
def test_a_damaged_file_of_arrays_is_a_usage_error(fedcore, mean_fed, tmp_path, name, damage):
    path = tmp_path / name
    np.savez(path, x=np.arange(3.0)) if name.endswith("z") else np.save(path, np.arange(3.0))
    data = path.read_bytes()
    path.write_bytes({"empty": b"", "cut": data[:100], "changed": data[:50] + bytes(40) + data[90:]}[damage])
    ran = fedcore("run", "mean.fed", "--arg", f"@{name}")
    assert ran.code == 2
    assert f"cannot read {name}: " in ran.err


def test_a_value_of_another_type_is_an_error_of_the_program(fedcore, mean_fed):
    ran = fedcore("run", "mean.fed", "--arg", '["a"]')
    assert ran.code == 1
    assert ran.err.startswith("fedcore: ")


def test_what_json_lacks_is_text():
    assert as_json({"a": np.float32("nan"), "b": b"hi", "c": (np.int64(1), np.array([1.5]))}) == {
        "a": "nan",
        "b": "hi",
        "c": [1, [1.5]],
    }


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("[1.0, 1e300]", "x[1] is 1e+300, which float32 does not hold"),
        ("[1.0, 16777217]", "x[1] is 16777217, which float32 does not hold"),
        ("[1.0, true]", "x[1] does not fit"),
        ("[1.0, null]", "None is neither number nor text"),
    ],
)
def test_json_that_the_dtype_does_not_hold_is_refused(fedcore, mean_fed, given, says):
    ran = fedcore("run", "mean.fed", "--arg", given)
    assert ran.code == 1
    assert says in ran.err


def test_a_text_whose_graphs_are_missing_is_refused_before_tensorflow_is_imported(python, tmp_path):
    digest = "0" * 64
    (tmp_path / "text.fed").write_text(
        f"fedcore 1 traced\n\ngraph @double : (int32 -> int32)  sha256:{digest}\n\n"
        "fn @main(%x: int32) -> int32 {\n  %0 = call(@double, %x) : int32\n  return %0\n}\n"
    )
    said = python(
        "import contextlib, io, sys, fedcore.cli\n"
        "with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.suppress(SystemExit, Exception):\n"
        "    fedcore.cli.main(['run', 'text.fed', '--arg', '1'], standalone_mode=False)\n"
        "print('its bytes are not there' in err.getvalue(), 'tensorflow' in sys.modules)"
    )
    assert said == "True False\n"
