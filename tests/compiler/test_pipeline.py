import attrs
import pytest

import fedcore as fc
from fedcore import context
from fedcore.compiler import (
    DEFAULT_PIPELINE,
    all_passes,
    compile_module,
    get_pass,
    parse_pipeline,
    pipeline,
    run_passes,
)
from fedcore.errors import FedcoreError, TypeMismatch
from fedcore.ir import Constant, Module, Ref, parse_module, verify


@pytest.mark.parametrize(
    ("pipeline", "says"),
    [
        ("inlin", "no pass is called 'inlin'; there are inline, lower-intrinsics, canonicalize"),
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
    from fedcore.ir import registry

    monkeypatch.setattr(registry, "_registry", dict(registry._registry))
    monkeypatch.setattr(pipeline._passes, "_parts", dict(pipeline._passes._parts))


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
    says = r"(?s)after the pass break-it \(.*test_pipeline\.py:[0-9]+\): .* it returns %nowhere, which is not bound"
    with pytest.raises(FedcoreError, match=says):
        list(run_passes(total.module, "break-it"))


def test_an_intrinsic_that_leaves_the_clients_without_an_aggregation_is_named_with_its_line(of_others):
    @fc.intrinsic("({T}@CLIENTS -> T@SERVER)")
    def first_of(values):
        return values[0]

    @first_of.in_stage
    def _(value):
        return value

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

    says = r"told: `how` is an attribute, so it is a number, a text, bytes or a tuple of these, not \{1\}"
    with pytest.raises(TypeMismatch, match=says):
        fc.federated_computation(lambda xs: told(xs, how={1}), FLOATS)


def test_defaults_of_attributes_and_operands_are_given(of_others):
    @fc.intrinsic("(value: {float32}@CLIENTS, by: float32 -> float32@SERVER)", attributes=("times", "name"))
    def scaled(value, by=3.0, times=2, name=None):
        return sum(value) * by * times

    @scaled.lowering
    def _(value, by, times, name=None):
        assert name is None
        return fc.federated_sum(fc.federated_map(lambda x: x * by * times, value))

    tripled = fc.federated_computation(lambda xs: (scaled(xs), scaled(xs, 1.0), scaled(xs, times=1)), FLOATS)
    assert parse_module(tripled.to_text()) == tripled.module
    assert tripled([1.0, 2.0]) == (18.0, 6.0, 9.0)


@pytest.mark.parametrize("others", [1, 2])
def test_a_lowering_without_end_is_named_with_its_line(of_others, others):
    @fc.intrinsic("({T}@CLIENTS -> T@SERVER) where T: numeric")
    def one(values):
        return sum(values)

    @fc.intrinsic("({T}@CLIENTS -> T@SERVER) where T: numeric")
    def other(values):
        return sum(values)

    one.lowering(lambda values: other(values))
    other.lowering(lambda values: one(values) if others == 2 else other(values))
    endless = fc.federated_computation(lambda xs: one(xs), FLOATS)
    with pytest.raises(FedcoreError, match=r"the lowering of \w+ \(.*test_pipeline\.py:[0-9]+\) does not end"):
        compile_module(endless.module)


def test_a_lowering_that_descends_into_a_type_ends(of_others):
    @fc.intrinsic("({T}@CLIENTS -> float32@SERVER) where T: numeric")
    def total(values):
        return sum(values)

    @total.lowering
    def _(values):
        if isinstance(values.type.member, fc.TensorType):
            return fc.federated_sum(values)
        return total(values[0])

    deep, value = "float32", 2.0
    for _ in range(60):
        deep, value = (deep,), (value,)
    assert fc.federated_computation(lambda xs: total(xs), fc.FederatedType(deep, fc.CLIENTS))([value, value]) == 4.0


def test_a_lowering_that_returns_nothing_is_named(of_others):
    @fc.intrinsic("({T}@CLIENTS -> T@SERVER) where T: numeric")
    def forgotten(values):
        return sum(values)

    forgotten.lowering(lambda values: None)
    with pytest.raises(FedcoreError, match=r"the lowering of forgotten returns None; it returns a value of type float"):
        compile_module(fc.federated_computation(lambda xs: forgotten(xs), FLOATS).module)


def test_a_pass_that_returns_no_module_is_named(of_others):
    pipeline.compiler_pass("forget")(lambda module: None)
    total = fc.federated_computation(lambda x: fc.federated_sum(x), FLOATS)
    with pytest.raises(FedcoreError, match=r"the pass forget \(.*\) returns None; a pass returns a module"):
        compile_module(total.module, "forget,default")


def test_a_pipeline_may_go_over_a_plan_again():
    total = fc.federated_computation(lambda x: fc.federated_mean(x), FLOATS)
    again = verify(compile_module(compile_module(total.module)))
    assert again.stage == "planned"
    assert fc.Computation(again)([1.0, 3.0]) == 2.0


def test_planning_before_lowering_says_what_is_missing():
    total = fc.federated_computation(lambda x: fc.federated_sum(x), FLOATS)
    with pytest.raises(FedcoreError, match=r"federated_sum \(.*\) is not lowered: lower-intrinsics runs before"):
        compile_module(total.module, "planning")


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


# Passes of one's own in the default pipeline.


@pytest.fixture
def doubling(of_others):
    """A pass of a third party that turns each literal 1.0 of a program into 2.0."""

    @pipeline.compiler_pass("double-ones")
    def double_ones(module: Module, *, to: int = 2) -> Module:
        """Turns each literal 1.0 into another number."""

        def changed(op):
            one = op.kind == "literal" and op.attributes["value"].to_numpy() == 1.0
            return attrs.evolve(op, attributes={"value": Constant.of(float(to), "float32")}) if one else op

        functions = [attrs.evolve(f, operations=tuple(map(changed, f.operations))) for f in module.functions]
        return attrs.evolve(module, functions=tuple(functions))


def sum_and_one():
    @fc.federated_computation(FLOATS)
    def computation(xs):
        return fc.federated_map(lambda total: total + 1.0, fc.federated_sum(xs))

    return computation


def test_names_of_pipelines_stand_for_their_passes():
    default = parse_pipeline(DEFAULT_PIPELINE)
    assert parse_pipeline("default") == parse_pipeline("lowering,planning") == default
    assert parse_pipeline("default , dce") == [*default, (get_pass("dce"), {})]
    assert pipeline.pipeline_with({}) == pipeline.pipeline_with({}, " lowering,planning") == DEFAULT_PIPELINE


def test_options_of_a_named_pipeline_are_those_of_the_pass_plan():
    assert [options for one, options in parse_pipeline("default{without=cse}") if options] == [{"without": "cse"}]
    assert parse_pipeline("planning{without=cse+dce}")[-1][1] == {"without": "cse+dce"}
    with pytest.raises(FedcoreError, match="the pass plan has no option 'most=3'"):
        parse_pipeline("default{most=3}")


def test_options_of_the_runtime_are_those_of_the_pass_plan():
    text = pipeline.pipeline_with({"xla": True, "block_size": 2}, "inline,plan,dce")
    assert text == "inline,plan{block_size=2,xla=true},dce"
    own = pipeline.pipeline_with({"xla": True, "block_size": 2}, "inline, plan{block_size=4}")
    assert own == "inline,plan{block_size=4,xla=true}"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("lowering{xla=true}", "lowering is the pipeline inline,.*: only its passes take options"),
        ("default,mine", "no pass is called 'mine'; there are "),
        ("plan{xla}", r"the option 'xla' of plan has no value: write 'plan\{xla=1\}'"),
    ],
)
def test_a_pipeline_with_names_that_is_wrong_is_refused_where_it_is_given(line, says):
    with pytest.raises(FedcoreError, match=says):
        fc.use(pipeline=line)


@pytest.mark.parametrize("name", ["", "two words", "a{b}", "a,b"])
def test_no_pass_takes_a_name_that_a_pipeline_cannot_write(of_others, name):
    with pytest.raises(FedcoreError, match=r"a pass cannot be called .*: names are of letters, digits, _ and -"):
        pipeline.compiler_pass(name)


def test_no_pass_takes_the_name_of_a_pipeline(of_others):
    with pytest.raises(FedcoreError, match="a pass cannot be called 'default': that names the pipeline inline,"):
        pipeline.compiler_pass("default")


@pytest.mark.parametrize("line", ["double-ones,default", "lowering,double-ones,planning"])
def test_a_pass_of_ones_own_runs_in_the_default_pipeline(doubling, line):
    program = sum_and_one()
    assert program([1.0, 2.0]) == 4.0
    with fc.use(pipeline=line):
        assert program([1.0, 2.0]) == 5.0
        with fc.use(seed=1):
            assert program([1.0, 2.0]) == 5.0
        with fc.use(pipeline=line.replace("ones", "ones{to=4}")):
            assert program([1.0, 2.0]) == 7.0
        with fc.use(pipeline="default"):
            assert program([1.0, 2.0]) == 4.0
    assert program([1.0, 2.0]) == 4.0


def test_a_pass_after_the_default_pipeline_sees_the_plan(of_others):
    seen = []

    @pipeline.compiler_pass("look")
    def look(module: Module) -> Module:
        """Looks at the module."""
        seen.append(module.stage)
        return module

    with fc.use(pipeline="default,look"):
        assert sum_and_one()([1.0]) == 2.0
    assert seen == ["planned"]


def test_plans_on_disk_are_kept_by_pipeline(doubling, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_CACHE", str(tmp_path))
    program = sum_and_one().module
    with fc.use(pipeline="double-ones,default"):
        doubled = context.PlanCache().get(program, pipeline.pipeline_with({}, "double-ones,default"))
    plain = context.PlanCache().get(program)
    assert doubled.digest() != plain.digest()
    assert context.PlanCache().get(program).digest() == plain.digest()
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("inline,lower-intrinsics", "leaves a lowered module, which no runtime takes: end it with planning"),
        ("default,break-it", "(?s)after the pass break-it .* it returns %nowhere, which is not bound"),
    ],
)
def test_a_call_whose_pipeline_leaves_no_plan_is_refused(of_others, line, says):
    @pipeline.compiler_pass("break-it")
    def break_it(module: Module) -> Module:
        """Returns what nobody bound."""
        main = attrs.evolve(module.main, result=Ref("nowhere"))
        return attrs.evolve(module, functions=(*module.functions[:-1], main))

    with fc.use(pipeline=line), pytest.raises(FedcoreError, match=says):
        sum_and_one()([1.0])


def test_a_lowering_that_does_not_fit_names_the_call_of_the_user():
    total = fc.federated_computation(lambda x: fc.federated_sum(x), fc.FederatedType(("int32", [None]), fc.CLIENTS))
    says = r"its zero is not known\n  in the lowering of federated_sum at .*test_pipeline\.py:[0-9]+$"
    with pytest.raises(TypeMismatch, match=says):
        compile_module(total.module)
