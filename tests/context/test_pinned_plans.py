"""Pinned plans: which program runs by which plan, and what the report says of it."""

import re

import pytest
import tensorflow as tf
from elsewhere import module_of

import fedcore as fc
from fedcore import context
from fedcore.compiler import DEFAULT_PIPELINE, compile_module
from fedcore.compiler.pinned_plans import pin_plan
from fedcore.errors import FedcoreError, TracingError, TypeMismatch
from fedcore.ir import Module, bundle

FLOATS = fc.FederatedType("float32", fc.CLIENTS)
READINGS = [0.1, 0.7, 1.3, 1.9, 2.4]


@fc.tf_computation("float32")
def tenth(x):
    return x / 10.0


@fc.federated_computation(FLOATS)
def mean_of_tenths(xs):
    return fc.federated_mean(fc.federated_map(tenth, xs))


@fc.federated_computation(FLOATS)
def other(xs):
    return fc.federated_sum(xs)


def plan_with(options: str) -> Module:
    return pin_plan(compile_module(mean_of_tenths.module, f"{DEFAULT_PIPELINE}{{{options}}}"), mean_of_tenths.digest)


@pytest.fixture
def looping(tmp_path):
    """A file with a plan of another strategy than the compiler's."""
    path = tmp_path / "pinned.fed"
    bundle.write(plan_with("vectorize=false,block_size=2"), path)
    return path


def ran() -> tuple[str, int]:
    report = context.last_report()
    return report.plan, report.graph_calls["blocks"]


def test_a_pinned_plan_runs_instead_of_the_compilers_and_its_digest_stands_in_the_report(looping):
    mean_of_tenths(READINGS)
    assert ran() == (mean_of_tenths.to_module("planned").digest(), 1)
    with fc.use(plans=looping):
        mean_of_tenths(READINGS)
        assert ran() == (plan_with("vectorize=false,block_size=2").digest(), 3)
        assert mean_of_tenths.to_module("planned") == plan_with("vectorize=false,block_size=2")
    mean_of_tenths(READINGS)
    assert ran()[1] == 1


def test_another_program_runs_by_the_compilers_plan(looping):
    with fc.use(plans=looping):
        other(READINGS)
    assert ran()[0] == other.to_module("planned").digest()


def test_the_same_strategy_gives_the_same_bits(tmp_path):
    path = tmp_path / "same.fed"
    bundle.write(plan_with("vectorize=auto"), path)
    expected = mean_of_tenths(READINGS)
    with fc.use(plans=path):
        assert mean_of_tenths(READINGS).tobytes() == expected.tobytes()
    assert fc.load(path)(READINGS).tobytes() == expected.tobytes()


def test_a_directory_of_plans_and_the_environment_name_them_too(looping, monkeypatch):
    monkeypatch.setenv("FEDCORE_PLANS", str(looping.parent))
    mean_of_tenths(READINGS)
    assert ran()[1] == 3


def test_two_plans_of_one_program_are_refused_with_both_files(looping):
    copy = looping.parent / "copy.fed"
    bundle.write(plan_with("vectorize=false,block_size=2"), copy)
    with fc.use(plans=looping.parent):
        mean_of_tenths(READINGS)
    assert ran()[1] == 3

    second = looping.parent / "second.fed"
    bundle.write(plan_with("vectorize=false,block_size=3"), second)
    text = f"two plans of one program, @mean_of_tenths: which one is to run?\n  {copy}\n  {second}\n"
    with pytest.raises(FedcoreError, match=re.escape(text)), fc.use(plans=looping.parent):
        pass


def test_a_plan_is_loaded_and_runs_as_it_is(looping):
    loaded = fc.load(looping)
    assert loaded.type_signature == mean_of_tenths.type_signature
    loaded(READINGS)
    assert ran() == (loaded.digest, 3)


def test_a_plan_is_recorded_with_the_program_that_it_stands_for(looping, tmp_path, monkeypatch):
    from fedcore.cli.recorded import read_recorded

    monkeypatch.setenv("FEDCORE_TRACE", str(tmp_path / "trace"))
    with fc.use(plans=looping):
        mean_of_tenths(READINGS)
    (one,) = read_recorded(tmp_path / "trace").computations
    assert [stage.name for stage in one.stages] == ["traced", "pinned"]


def test_the_report_says_that_a_program_changed_since_it_was_tuned(looping):
    def mean_of_tenths(xs):
        return fc.federated_mean(xs)

    with fc.use(plans=looping):
        fc.federated_computation(mean_of_tenths, FLOATS)(READINGS)
    (note,) = context.last_report().notes
    assert note == f"the plan of @mean_of_tenths in {looping} is for another program: run fedcore tune again"


def test_a_plan_of_another_type_is_refused(tmp_path):
    path = tmp_path / "wrong.fed"
    bundle.write(pin_plan(other.to_module("planned"), fc.federated_computation(lambda: 1.0).digest), path)
    wrong = fc.federated_computation(lambda: 1.0)
    with fc.use(plans=path), pytest.raises(fc.errors.TypeMismatch, match=r"wrong\.fed: the plan does not fit"):
        wrong()


def test_what_is_no_pinned_plan_is_refused(tmp_path):
    fc.save(mean_of_tenths, tmp_path / "traced.fed")
    with (
        pytest.raises(FedcoreError, match=r"traced\.fed is no pinned plan but a traced module"),
        fc.use(plans=tmp_path / "traced.fed"),
    ):
        pass
    with (
        pytest.raises(FedcoreError, match=r"cannot read .*nothing\.fed: No such file"),
        fc.use(plans=tmp_path / "nothing.fed"),
    ):
        pass
    (tmp_path / "empty").mkdir()
    with pytest.raises(FedcoreError, match=r"empty holds no \.fed file"), fc.use(plans=tmp_path / "empty"):
        pass


def reads(x):
    return tf.strings.to_number(tf.io.read_file("secret.txt")) + x


@pytest.fixture
def reading(tmp_path):
    """A file that says to be the plan of `mean_of_tenths`, and reads a file at every client."""
    leaf = fc.Computation(module_of(reads, "float32"))
    stolen = fc.federated_computation(lambda xs: fc.federated_mean(fc.federated_map(leaf, xs)), FLOATS)
    path = tmp_path / "reading.fed"
    bundle.write(pin_plan(stolen.to_module("planned"), mean_of_tenths.digest), path)
    return path


REFUSED = (
    r"(?s)reading\.fed: graph @\w+ holds operations that a file from elsewhere may not:\s+"
    r"ReadFile at .*: it reads or writes files.*"
    r"if you trust whoever wrote the file, name it by fc\.use\(plans=\.\.\., trusted=True\)"
)


def test_settings_of_another_class_are_refused():
    with pytest.raises(TypeMismatch, match="a pipeline is a text, such as 'default,mine', not 5"):
        fc.use(pipeline=5)
    with pytest.raises(TypeMismatch, match="plans is the path of a pinned plan or of a directory of them, not 5"):
        fc.use(plans=5)


def test_a_plan_with_operations_that_a_file_may_not_hold_is_refused(reading, monkeypatch):
    with pytest.raises(FedcoreError, match=REFUSED), fc.use(plans=reading):
        pass
    with pytest.raises(FedcoreError, match=REFUSED), fc.use(plans=reading.parent):
        pass
    monkeypatch.setenv("FEDCORE_PLANS", str(reading))
    with pytest.raises(FedcoreError, match=REFUSED):
        mean_of_tenths(READINGS)


def test_a_trusted_plan_may_hold_any_operation(reading, monkeypatch):
    monkeypatch.chdir(reading.parent)
    (reading.parent / "secret.txt").write_text("40")
    with fc.use(plans=reading, trusted=True):
        assert mean_of_tenths([1.0, 3.0]) == 42.0


def test_a_plan_has_no_earlier_stage_and_stands_in_no_computation(looping):
    loaded = fc.load(looping)
    with pytest.raises(FedcoreError, match="mean_of_tenths is planned: it holds no traced module"):
        loaded.to_module("traced")
    with pytest.raises(TracingError, match="mean_of_tenths is planned: call it from Python"):
        fc.federated_computation(lambda xs: loaded(xs), FLOATS)
