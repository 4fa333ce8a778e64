"""A server value beside client values is told as a broadcast that is missing."""

import pytest

import fedcore as fc
from fedcore.errors import FedcoreError
from fedcore.ir.one_placement import broadcast_of, check_one_placement

SERVER, CLIENTS = fc.types.at_server("float32"), fc.types.at_clients("float32")

add = fc.tf_computation(lambda a, b: a + b, "float32", "float32")


def error_of(fn):
    with pytest.raises(FedcoreError) as raised:
        fc.federated_computation(fn, SERVER, CLIENTS)
    return str(raised.value)


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (lambda model, x: fc.federated_map(add, (model, x)), "federated_map"),
        (lambda model, x: fc.federated_zip({"m": model, "pair": (x, x)}), "federated_zip"),
        (lambda model, x: fc.federated_mean(x, model), "federated_mean"),
        (lambda model, x: fc.minimum(x, model), "minimum"),
        (lambda model, x: x * model, "*"),
        (lambda model, x: model - x, "-"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_the_message_has_the_users_operation_names_and_line_once(fn, name):
    text = error_of(fn)
    title = f"{name}: `model` is at the server, `x` at the clients, who read a server value once it is sent to them"
    assert text.splitlines()[:3] == [title, "  float32@SERVER", "  {float32}@CLIENTS"]
    assert text.endswith("\n  fix: fc.federated_broadcast(model)")
    assert text.count(f"test_forgotten_broadcast.py:{fn.__code__.co_firstlineno}") == 1


def test_values_without_names_are_told_by_their_operations():
    text = error_of(lambda model, x: fc.federated_map(add, (fc.federated_sum(x), x * 2.0)))
    assert text.startswith("federated_map: the result of federated_sum is at the server, the result of federated_map")
    assert text.endswith("fix: fc.federated_broadcast(…)")


def test_a_computation_that_is_called_with_both_is_mapped_and_sent_to():
    text = error_of(lambda model, x: add(model, x))
    assert "fix: fc.federated_map(<lambda>, (fc.federated_broadcast(model), x)) applies it" in text


def test_a_captured_server_value_is_told_the_same():
    text = error_of(lambda model, x: fc.federated_map(lambda v: v + model, x))
    assert text.endswith("(federated_map takes a tuple of values; to clients, fc.federated_broadcast(model) sends it)")


def test_a_sum_of_a_server_value_is_no_forgotten_broadcast():
    assert "fix" not in error_of(lambda model, x: fc.federated_sum(model))


def test_an_operation_whose_signature_has_both_takes_both():
    def selected(keys, bound, rows):
        check_one_placement(fc.federated_select, {"client_keys": keys, "max_key": bound, "server_val": rows})
        assert broadcast_of(rows) == "fc.federated_broadcast(rows)"
        return fc.federated_select(keys, bound, rows, lambda table, k: table)

    types = fc.types.at_clients(("int32", [1])), fc.types.at_server("int32"), fc.types.at_server("float32")
    fc.federated_computation(selected, *types)


def test_a_program_that_does_not_load_has_its_line_once(tmp_path, monkeypatch):
    from fedcore.cli.loading import import_extension

    (tmp_path / "forgotten.py").write_text(
        "import fedcore as fc\n\n\n"
        "@fc.federated_computation(fc.types.at_server('float32'), fc.types.at_clients('float32'))\n"
        "def scaled(model, x):\n    return x * model\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(FedcoreError) as raised:
        import_extension("forgotten")
    assert str(raised.value).count("forgotten.py:6") == 1
    assert "fix: fc.federated_broadcast(model)" in str(raised.value)
