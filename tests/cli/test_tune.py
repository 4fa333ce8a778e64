import json
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.slow  # compiles each strategy

SENSORS = """\
import fedcore as fc


@fc.tf_computation("float32")
def to_celsius(fahrenheit):
    return (fahrenheit - 32.0) / 2.0


@fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
def mean(readings):
    return fc.federated_mean(fc.federated_map(to_celsius, readings))


@fc.federated_computation(fc.FederatedType("float32", fc.SERVER))
def no_clients(x):
    return fc.federated_map(to_celsius, x)
"""


@pytest.fixture
def sensors(tmp_path):
    (tmp_path / "sensors.py").write_text(SENSORS)


@pytest.mark.usefixtures("sensors")
def test_tune_measures_each_strategy_and_writes_a_plan_that_runs(fedcore):
    tuned = fedcore(
        "tune", "sensors:mean", "--clients", "6", "--rounds", "2", "--width", "2", "--width", "4", "--format", "json"
    )
    assert tuned.code == 0, tuned.err
    told = json.loads(tuned.out)
    trials = told["stages"]["clients"]
    assert [(t["strategy"], t.get("width")) for t in trials] == [
        ("vectorised", 32), ("loop", None), ("loop", None), ("loop", None), ("vectorised", 2), ("vectorised", 4),
        ("vectorised", 32), ("loop", None),
    ]  # fmt: skip
    assert [t.get("xla", False) for t in trials] == [False] * 6 + [True, False]
    assert [t.get("parallel") for t in trials] == [None] * 7 + [4]
    assert all(len(t["rounds_s"]) == 2 and min(t["rounds_s"]) > 0 for t in trials)
    (chosen,) = [t for t in trials if t["chosen"]]
    fastest = min(trials, key=lambda t: t["median_s"])
    assert chosen in (fastest, trials[0])

    readings = ("--arg", "[68.0, 66.0, 72.0]", "--format", "json")
    direct = json.loads(fedcore("run", "pinned.fed", *readings).out)
    named = json.loads(fedcore("run", "sensors:mean", *readings, FEDCORE_PLANS="pinned.fed").out)
    own = json.loads(fedcore("run", "sensors:mean", *readings).out)
    assert direct["report"]["plan"] == named["report"]["plan"] == told["plan"]["digest"] != own["report"]["plan"]
    assert direct["result"] == named["result"] == own["result"]

    text = fedcore("dump", "pinned.fed", "--stage", "planned").out
    assert f"strategy={chosen['strategy']}" in text
    assert "program=" in text


@pytest.mark.usefixtures("sensors")
def test_tune_all_says_for_each_client_stage_of_a_module_how_fast_the_rules_choice_is(fedcore, tmp_path):
    few = (
        "--clients",
        "3",
        "--rounds",
        "1",
        "--width",
        "2",
        "--block",
        "2",
        "--target",
        "avx2/small-l2/slow-memory/no-gpu",
    )
    compared = fedcore("tune", "--all", "sensors", *few)
    assert compared.code == 0, compared.err
    (line,) = compared.out.splitlines()
    assert line.startswith("sensors:mean @clients: the rules' choice is ")
    assert "vectorised, width=32" in line
    assert not (tmp_path / "pinned.fed").exists()


def test_comparisons_name_the_fastest_strategy_and_its_share(capsys):
    from fedcore.cli.tuning import Trial, Tuned
    from fedcore.cli.verbs.tune import _print_comparisons

    rules = Trial({"strategy": "vectorised", "width": 4, "block": 8}, rounds_s=[0.2, 0.2])
    loop = Trial({"strategy": "loop", "block": 8, "parallel": 4}, rounds_s=[0.13, 0.13], chosen=True)
    fastest = Trial({"strategy": "loop", "block": 1}, rounds_s=[0.1], chosen=True)
    _print_comparisons({"a:b": Tuned({"clients": [rules, loop], "clients_1": [fastest]}, None)})
    assert capsys.readouterr().out.splitlines() == [
        "a:b @clients: the rules' choice is not the fastest: vectorised, width=4, block=8; loop, block=8, parallel=4 "
        "takes 0.65 of its time",
        "a:b @clients_1: the rules' choice is the fastest: loop, block=1",
    ]


def test_a_narrow_terminal_cuts_no_column_of_the_table(capsys, monkeypatch):
    from fedcore.cli.tuning import Trial, Tuned
    from fedcore.cli.verbs.tune import _print

    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    trial = Trial({"strategy": "vectorised", "width": 32, "block": 8}, 1.25, [0.002], chosen=True)
    _print(Tuned({"clients": [trial]}, None), SimpleNamespace(digest=lambda: "ab" * 32), "pinned.fed")
    said = capsys.readouterr().out
    assert "…" not in said.split("pinned.fed")[0]
    for part in ("vectorised", "32", "1.25 s", "2.0 ms", "1.00", "same", "first call", "a round", "strategy"):
        assert part in said


@pytest.mark.usefixtures("sensors")
def test_tune_prints_a_table_of_plain_text_in_a_pipe(fedcore):
    ran = fedcore("tune", "sensors:mean", "--arg", "[68.0, 66.0]", "--rounds", "1", "--width", "2", "-o", "here.fed")
    assert ran.code == 0, ran.err
    assert "@clients" in ran.out
    assert "first call" in ran.out
    assert "1.00 (the plan's)" in ran.out
    assert ran.out.rstrip().endswith("or fedcore run here.fed")
    assert "\x1b" not in ran.out


@pytest.mark.usefixtures("sensors")
@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("sensors:no_clients",), 1, "@no_clients has no client stage: there is nothing to tune"),
        (("nothing:measured", "-o", "no/such.fed"), 2, "-o: cannot write no/such.fed: No such file or directory"),
        (("sensors:mean", "--width", "1"), 2, "is not in the range"),
        (("sensors:mean", "--width", "65537"), 2, "Invalid value for --width: it is at most 65536 clients"),
        (("sensors:mean", "--block", "1000000000"), 2, "Invalid value for --block: it is at most 65536 clients"),
    ],
)
def test_what_cannot_be_tuned_says_why(fedcore, arguments, code, says):
    ran = fedcore("tune", *arguments)
    assert ran.code == code
    assert says in ran.err


def test_what_is_compiled_already_is_not_tuned(fedcore, mean_fed):
    planned = fedcore("opt", "mean.fed", "-p", "inline,lower-intrinsics,inline,dce,partition,plan", "-o", "plan.fed")
    assert planned.code == 0, planned.err
    ran = fedcore("tune", "plan.fed")
    assert ran.code == 2
    assert "plan.fed is planned; only a traced program can be tuned" in ran.err
    assert fedcore("run", "plan.fed", "--arg", "[1.0, 2.0]").out == "[1.5, 3.0]\n"


def test_values_are_generated_for_every_kind_of_type():
    import numpy as np

    import fedcore as fc
    from fedcore.cli.synthetic_arguments import Sizes, synthetic_argument

    element = fc.StructType([("x", fc.TensorType("float32", (None, 3))), ("y", fc.TensorType("int32", (None,)))])
    sizes, rng = Sizes(clients=2, steps=3, rows=4), np.random.default_rng(0)
    clients = synthetic_argument(fc.FederatedType(fc.SequenceType(element), fc.CLIENTS), sizes, rng)
    batches = [batch["x"].shape for batch in clients[0]]
    assert (len(clients), batches) == (2, [(4, 3)] * 3)
    assert synthetic_argument(fc.SequenceType("float32"), sizes, rng).element_type == fc.to_type("float32")
    assert synthetic_argument(fc.to_type(("str", "bool")), sizes, rng)[0] == b""
    with pytest.raises(fc.errors.FedcoreError, match="give it with --arg"):
        synthetic_argument(fc.TensorType("float32", None), sizes, rng)


@pytest.mark.usefixtures("sensors")
def test_tune_takes_a_pipeline_with_a_pass_of_ones_own(fedcore, tmp_path):
    (tmp_path / "own_pass.py").write_text(
        "import attrs\n"
        "from fedcore.compiler import compiler_pass\n\n"
        "@compiler_pass('rename')\n"
        "def rename(module):\n"
        '    """Names the main function."""\n'
        "    return attrs.evolve(module, functions=(*module.functions[:-1], attrs.evolve(module.main, name='own')))\n"
    )
    few = ("--clients", "3", "--rounds", "1", "--width", "2", "--block", "2", "--load", "own_pass")
    tuned = fedcore("tune", "sensors:mean", *few, "-p", "default,rename")
    assert tuned.code == 0, tuned.err
    assert "fn @own(" in fedcore("dump", "pinned.fed", "--stage", "planned").out
    refused = fedcore("tune", "sensors:mean", *few, "-p", "lowering")
    assert refused.code == 1
    assert "the pipeline lowering has no pass plan, which decides the strategies" in refused.err


def test_tune_keeps_the_options_of_plan_that_it_does_not_vary():
    from fedcore.cli.tuning import _around_plan

    before, with_options = _around_plan("inline,plan{low_rank=false,vectorize=4,target=host},dce")
    assert before == "inline"
    assert with_options({}) == "plan{low_rank=false,vectorize=4,target=host},dce"
    assert with_options({"vectorize": 2}) == "plan{vectorize=2,low_rank=false,target=host},dce"
