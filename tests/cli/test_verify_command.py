import json


def test_a_valid_file_is_told_with_what_it_holds(fedcore, mean_fed):
    ran = fedcore("verify", "mean.fed")
    assert (ran.code, ran.out) == (0, "mean.fed: traced: 4 operations, 1 function\n")


def test_one_wrong_file_makes_the_exit_code_1_and_shows_its_line(fedcore, mean_fed, tmp_path):
    (tmp_path / "wrong.fed").write_text(mean_fed.read_text().replace("return %3", "return %9"))
    ran = fedcore("verify", "mean.fed", "wrong.fed")
    assert ran.code == 1
    assert "mean.fed: traced" in ran.out
    assert "it returns %9, which is not bound" in ran.out


def test_json_tells_each_file(fedcore, mean_fed, tmp_path):
    (tmp_path / "wrong.fed").write_text("fedcore 9 traced\n")
    ran = fedcore("verify", "mean.fed", "wrong.fed", "--format", "json")
    good, bad = json.loads(ran.out)
    assert (good["valid"], len(good["digest"])) == (True, 64)
    assert bad["valid"] is False


def test_a_file_that_is_not_there_is_a_usage_error(fedcore):
    ran = fedcore("verify", "nothing.fed")
    assert ran.code == 2
    assert "cannot read nothing.fed: No such file or directory" in ran.err


def test_results_are_told_beside_a_file_that_is_not_there(fedcore, mean_fed):
    ran = fedcore("verify", "mean.fed", "missing.fed", "mean.fed")
    assert (ran.code, ran.out) == (2, "mean.fed: traced: 4 operations, 1 function\n" * 2)
    assert "cannot read missing.fed: No such file or directory" in ran.err


SUMS = """import fedcore as fc

COUNTS = fc.FederatedType("int32", fc.CLIENTS)


@fc.federated_computation(COUNTS)
def hidden(counts):
    return fc.federated_secure_sum(counts, 9), fc.federated_count(counts)


@fc.federated_computation(COUNTS)
def shown(counts):
    return fc.federated_sum(counts)
"""


def test_secure_fails_where_a_clients_value_reaches_the_server_and_names_line_and_tensor(fedcore, tmp_path):
    (tmp_path / "sums.py").write_text(SUMS)
    ran = fedcore("verify", "--secure", "sums:hidden", "sums:shown")
    assert ran.code == 1
    assert ran.out.splitlines() == [
        "sums:hidden: traced: 4 operations, 1 function; clients' values reach the server in secure sums only",
        "sums:shown: clients' values reach the server outside of secure sums",
        "  sums.py:13: counts : int32",
    ]


def test_a_file_with_operations_from_elsewhere_needs_their_module(fedcore, tmp_path):
    (tmp_path / "own_operation.py").write_text(OWN_OPERATION)
    (tmp_path / "own.fed").write_text(
        "fedcore 1 traced\n\nfn @main(%x: int32) -> int32 {\n  %0 = twice_of(%x) : int32\n  return %0\n}\n"
    )
    commands = [("verify", "own.fed"), ("run", "own.fed", "--arg", "3"), ("diff", "own.fed", "own.fed")]
    for command in commands:
        without = fedcore(*command)
        assert without.code == 1
        assert "no operation is called 'twice_of'" in without.out + without.err
    said = [fedcore(*command, "--load", "own_operation").out for command in commands]
    assert said == ["own.fed: traced: 1 operation, 1 function\n", "6\n", "equal\n"]


OWN_OPERATION = """
import fedcore as fc

@fc.intrinsic("(value: int32 -> int32)", level="local")
def twice_of(value):
    \"\"\"Twice the value.

    Example:
        >>> twice_of(x)
    \"\"\"
    return value + value

@twice_of.lowering
def _(value):
    return fc.generic_plus(value, value)
"""
