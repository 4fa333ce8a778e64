import attrs
import pytest

import fedcore as fc
from fedcore.compiler import (
    DEFAULT_PIPELINE,
    all_passes,
    compile_module,
    get_pass,
    parse_pipeline,
    pipeline,
    run_passes,
)
from fedcore.errors import FedcoreError
from fedcore.ir import Module, Ref, parse_module, verify


@pytest.mark.parametrize(
    ("pipeline", "says"),
    [
        ("inlin", "no pass is called 'inlin'; there are canonicalize, cse, dce"),
        ("inline{fast=true}", "the pass inline has no option 'fast=true'; it has none"),
        ("inline;dce", "the pipeline 'inline;dce' is not understood at 'inline;dce'"),
    ],
)
def test_a_pipeline_that_is_not_understood_says_why(pipeline, says):
    with pytest.raises(FedcoreError) as raised:
        parse_pipeline(pipeline)
    assert says in str(raised.value)


def test_spaces_in_a_pipeline_do_not_matter():
    assert [p.name for p, _ in parse_pipeline(" inline , dce")] == ["inline", "dce"]


@pytest.mark.parametrize("name", [p.name for p in all_passes()])
def test_a_pass_is_the_function_of_its_name(name):
    assert get_pass(name).run.__name__ == name.replace("-", "_")


@pytest.mark.parametrize("name", [p.name for p in all_passes()])
def test_a_pass_says_in_one_sentence_what_it_does(name):
    assert get_pass(name).summary.endswith(".")


def test_a_pass_that_changes_nothing_yields_the_module_itself():
    total = fc.federated_computation(lambda x: fc.federated_sum(x), fc.FederatedType("int32", fc.CLIENTS))
    ((_, after),) = run_passes(total.module, "dce")
    assert after is total.module


def test_the_default_pipeline_names_each_pass_once():
    names = [one.name for one, _ in parse_pipeline(DEFAULT_PIPELINE)]
    assert len(set(names)) == len(names)


FLOATS = fc.FederatedType("float32", fc.CLIENTS)


@pytest.fixture
def of_others(monkeypatch):
    """Passes and intrinsics that a test declares are forgotten after it."""
    from fedcore.ir import operations

    monkeypatch.setattr(operations, "_registry", dict(operations._registry))
    monkeypatch.setattr(pipeline, "_registry", dict(pipeline._registry))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("twist{times=often}", "the option times of twist is a whole number, not 'often'"),
        ("twist{hard=1}", "the option hard of twist is true or false, not '1'"),
    ],
)
def test_an_option_of_another_kind_is_refused(of_others, line, says):
    @pipeline.compiler_pass("twist")
    def twist(module: Module, *, times: int = 1, hard: bool = False) -> Module:
        """Does nothing."""
        return module

    with pytest.raises(FedcoreError, match=says):
        parse_pipeline(line)


def test_a_pass_that_breaks_a_module_is_named(of_others):
    @pipeline.compiler_pass("break-it")
    def break_it(module: Module) -> Module:
        """Returns what nobody bound."""
        main = attrs.evolve(module.main, result=Ref("nowhere"))
        return attrs.evolve(module, functions=(*module.functions[:-1], main))

    total = fc.federated_computation(lambda x: fc.federated_sum(x), FLOATS)
    with pytest.raises(FedcoreError, match=r"(?s)after the pass break-it: .* it returns %nowhere, which is not bound"):
        list(run_passes(total.module, "break-it", verify_each=True))


def test_an_intrinsic_that_leaves_the_clients_without_a_lowering_is_named_with_its_line(of_others):
    @fc.intrinsic("({T}@CLIENTS -> T@SERVER)")
    def first_of(values):
        return values[0]

    first = fc.federated_computation(lambda xs: first_of(xs), FLOATS)
    says = r"first_of \(.*test_pipeline\.py:[0-9]+\) takes a client value to the server without an aggregation"
    with pytest.raises(FedcoreError, match=says):
        compile_module(first.module)


def test_a_lowering_of_another_type_than_its_signature_is_named(of_others):
    @fc.intrinsic("({T}@CLIENTS -> T@SERVER)")
    def lowered_wrongly(values):
        return values[0]

    @lowered_wrongly.lowering
    def _(values):
        return fc.federated_count(values)

    wrong = fc.federated_computation(lambda xs: lowered_wrongly(xs), FLOATS)
    says = "the lowering of lowered_wrongly gives int32@SERVER, but its signature says float32@SERVER"
    with pytest.raises(FedcoreError, match=says):
        compile_module(wrong.module)


def test_an_attribute_that_the_text_cannot_write_is_refused(of_others):
    @fc.intrinsic("(value: {T}@CLIENTS -> {T}@CLIENTS)", attributes=("how",))
    def told(value, how):
        return value

    with pytest.raises(FedcoreError, match=r"test_pipeline\.py:[0-9]+\): no text can hold the attribute how, \{1\}"):
        fc.federated_computation(lambda xs: told(xs, how={1}), FLOATS)


CAPTURING = """fedcore 1 traced
fn @accumulate(%c: float32, %a: float32, %b: float32) -> float32 {
  %0 = generic_plus(%a, %b) : float32
  return %0
}
fn @merge(%a: float32, %b: float32) -> float32 {
  %0 = generic_plus(%a, %b) : float32
  return %0
}
fn @report(%a: float32) -> float32 {
  return %a
}
fn @main(%x: float32, %xs: {float32}@CLIENTS) -> float32@SERVER {
  %0 = literal() : float32 {value=0.0}
  %1 = bind(@accumulate, %x) : (<a=float32,b=float32> -> float32)
  %2 = federated_aggregate(%xs, %0, %1, @merge, @report) : float32@SERVER   loc("round.py":7)
  return %2
}"""

CAPTURING_GRAPH = f"""fedcore 1 traced
graph @add : (<x=float32,y=float32> -> float32)  sha256:{"ab" * 32}
fn @main(%x: float32, %xs: {{float32}}@CLIENTS) -> {{float32}}@CLIENTS {{
  %0 = bind(@add, %x) : (float32 -> float32)
  %1 = federated_map(%0, %xs) : {{float32}}@CLIENTS   loc("round.py":7)
  return %1
}}"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            CAPTURING,
            r"federated_aggregate \(round\.py:7\): its functions may capture constants only; put what they need",
        ),
        (CAPTURING_GRAPH, r"federated_map \(round\.py:7\): the graph @add captures nothing"),
    ],
)
def test_what_a_text_may_not_capture_is_named_with_its_line(text, says):
    with pytest.raises(FedcoreError, match=says):
        compile_module(verify(parse_module(text)))
