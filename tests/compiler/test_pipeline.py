import pytest

import fedcore as fc
from fedcore.compiler import DEFAULT_PIPELINE, all_passes, get_pass, parse_pipeline, run_passes
from fedcore.errors import FedcoreError


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
