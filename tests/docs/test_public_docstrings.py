"""Docstrings of the learning layer, the aggregators and the export: equal sections everywhere, examples that run."""

import doctest
import inspect
import re
import types

import pytest

import fedcore as fc
from fedcore.compat.names import PLACES

SECTIONS = ["Types", "Args:", "Returns:", "Raises:", "Source:", "Example:"]
CANNOT_FAIL = {  # records, which hold any values, and parts that take nothing from the caller
    "analytics.heavy_hitters.iblt.CharacterEncoding",
    "learning.BatchOutput",
    "learning.ClientStart",
    "learning.ClientStateOutput",
    "aggregators.AggregationFactory",
    *(f"aggregators.encoders.{n}" for n in ("AdaptiveEncoder", "Bits", "Encoder", "Integers")),
    *(f"aggregators.encoders.{n}" for n in ("entropy", "hadamard", "identity")),
    "learning.ClientWeighting",
    "learning.LearningAlgorithmState",
    "learning.LearningProcessOutput",
    "learning.LoopImplementation",
    "learning.ModelWeights",
    "learning.metrics.MetricsAggregatorType",
    "learning.metrics.NumBatchesCounter",
    "learning.metrics.NumExamplesCounter",
    "learning.models.PureModel",
    "learning.models.ReconstructionBatchOutput",
    "learning.optimizers.Optimizer",
    "learning.optimizers.handle_indexed_slices_gradients",
    "learning.programs.ProgramState",
    "learning.templates.ClientResult",
    "learning.templates.reject_non_finite_update",
}


def public(package: types.ModuleType, name: str) -> dict:
    """The public functions and classes of a package and of the packages in it, each under its shortest name."""
    found: dict = {}
    inner = []
    moved = [place.removeprefix(f"{name}.") for place in PLACES if place.rpartition(".")[0] == name]
    for member in sorted({*package.__all__, *moved}):
        value = getattr(package, member)
        if value is package:
            continue
        if isinstance(value, types.ModuleType):
            inner.append((value, f"{name}.{member}"))
        elif callable(value) and not isinstance(value, types.GenericAlias):  # an alias of a type has no docstring
            found[f"{name}.{member}"] = value
    for where in inner:
        found |= {n: v for n, v in public(*where).items() if not any(v is known for known in found.values())}
    return found


PUBLIC = {
    **public(fc.learning, "learning"),
    **public(fc.aggregators, "aggregators"),
    **public(fc.analytics, "analytics"),
    **public(fc.export, "export"),
}


@pytest.fixture(scope="module")
def shared_names() -> dict:
    """The names that the docstring of `fedcore.learning` defines for all examples."""
    test = doctest.DocTestParser().get_doctest(fc.learning.__doc__, {}, "fedcore.learning", None, 0)
    run(test, clear_globs=False)
    return test.globs


def run(test: doctest.DocTest, **options) -> None:
    runner, said = doctest.DocTestRunner(), []
    runner.run(test, out=said.append, **options)
    assert runner.failures == 0, "".join(said)


@pytest.mark.parametrize("name", PUBLIC)
def test_the_examples_run(name, shared_names):
    for test in doctest.DocTestFinder().find(PUBLIC[name], name, module=False, globs=shared_names):
        run(test)


@pytest.mark.parametrize("name", PUBLIC)
def test_the_sections_are_there_and_in_order(name):
    lines = inspect.getdoc(PUBLIC[name]).splitlines()
    found = [section for line in lines for section in SECTIONS if line.startswith(section)]
    assert found == [section for section in SECTIONS if section in found]
    errors = set() if name in CANNOT_FAIL else {"Raises:"}
    assert {*found} & {"Types", "Raises:", "Example:"} == {"Types", "Example:"} | errors


@pytest.mark.parametrize("name", PUBLIC)
def test_the_arguments_that_are_explained_are_those_of_the_signature(name):
    section = re.search(r"^Args:\n((?: .*\n)+)", inspect.getdoc(PUBLIC[name]), re.MULTILINE)
    explained = re.findall(r"^    (\w[\w, ]*): ", section[1], re.MULTILINE) if section else []
    named = [argument for names in explained for argument in names.split(", ")]
    assert [n for n in named if n not in inspect.signature(PUBLIC[name]).parameters] == []
