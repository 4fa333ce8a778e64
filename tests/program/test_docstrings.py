"""The examples of `fedcore.program` run."""

import doctest

import pytest

import fedcore as fc


@pytest.fixture(scope="module")
def names():
    test = doctest.DocTestParser().get_doctest(fc.program.__doc__, {}, "fedcore.program", None, 0)
    run(test, clear_globs=False)
    return test.globs


def run(test, **options):
    runner, said = doctest.DocTestRunner(), []
    runner.run(test, out=said.append, **options)
    assert runner.failures == 0, "".join(said)


@pytest.mark.parametrize("name", fc.program.__all__)
def test_the_examples_run(name, names):
    value = getattr(fc.program, name)
    assert value.__doc__
    for test in doctest.DocTestFinder().find(value, name, module=False, globs={"fc": fc, **names}):
        run(test)
