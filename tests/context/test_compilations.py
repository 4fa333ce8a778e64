"""Computations that are made anew in every round are told by their line, with the part that differs."""

import logging
import tracemalloc
import warnings

import numpy as np
import pytest

import fedcore as fc
from fedcore.ir import Constant
from fedcore.runtime.reports import compilations
from fedcore.runtime.reports.compilations import MANY, CompilationLog

FLOATS = fc.types.at_clients("float32")


def by_closure(number):
    add = fc.tf_computation(lambda x: x + float(number), "float32")
    return fc.federated_computation(lambda xs: fc.federated_sum(fc.federated_map(add, xs)), FLOATS)


def by_value(number):
    return fc.federated_computation(lambda xs: fc.federated_sum(xs * float(number + 2)), FLOATS)


def by_shape(number):
    return fc.federated_computation(lambda xs: fc.federated_sum(xs), fc.types.at_clients(("float32", [number + 1])))


def by_dtype(number):
    dtype = ["float32", "int32", "float64", "int64"][number]
    return fc.federated_computation(lambda xs: fc.federated_sum(xs), fc.types.at_clients(dtype))


def by_operations(number):
    def body(xs):
        for _ in range(number):
            xs = xs + xs
        return fc.federated_sum(xs)

    return fc.federated_computation(body, FLOATS)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (by_closure, "closure"),
        (by_value, "Python value"),
        (by_shape, "shape"),
        (by_dtype, "dtype"),
        (by_operations, "operations"),
    ],
)
def test_the_part_that_differs_is_told(make, reason):
    log = CompilationLog()
    first, second = (log.add(make(number).module, 0.01) for number in (0, 1))
    assert (first.reason, first.number) == ("", 1)
    assert (second.reason, second.number) == (reason, 2)
    assert second.line == f"test_compilations.py:{make.__code__.co_firstlineno + len(lines_before(make))}"


def lines_before(make):
    """The lines of a function before the one that makes the computation."""
    import inspect

    lines = inspect.getsource(make).splitlines()
    body = next((i for i, line in enumerate(lines) if "def body" in line), None)
    return lines[: body if body is not None else next(i for i, x in enumerate(lines) if "federated_computation" in x)]


@pytest.mark.parametrize("constant_of", [lambda array: array, Constant.view])
def test_a_large_literal_is_compared_by_its_digest(constant_of):
    def module_of(array):
        def body(xs):
            return fc.federated_sum(xs), fc.federated_value(constant_of(array), fc.SERVER)

        return fc.federated_computation(body, FLOATS).module

    ones = np.ones(2**20, np.float32)
    first, equal, other = module_of(ones), module_of(ones.copy()), module_of(2 * ones)
    log = CompilationLog()
    tracemalloc.start()
    reasons = [log.add(module, 0.01).reason for module in (first, equal, other)]
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reasons == ["", "settings", "Python value"]
    assert peak_bytes < ones.nbytes / 4


def test_a_warning_comes_once_where_compiling_is_costly():
    log = CompilationLog()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in range(MANY + 2):
            log.add(by_closure(number).module, 0.5)
    (warning,) = caught
    text = str(warning.message)
    assert f"compiled {MANY} times, 2 s in all" in text
    assert text.endswith("before in its closure\n  fix: give what the function closes over as an argument")


def test_cheap_compilations_give_no_warning():
    log = CompilationLog()
    for number in range(3 * MANY):
        log.add(by_closure(number).module, 0.01)


def test_a_warning_that_is_an_error_is_logged(caplog):
    log = CompilationLog()
    with caplog.at_level(logging.WARNING, "fedcore"), warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(MANY):
            log.add(by_value(number).module, 1.0)
    assert "differs from the one before in its Python value" in caplog.text


def test_calls_have_their_compilation_in_the_report_and_many_in_its_notes(monkeypatch):
    monkeypatch.setattr(compilations, "COSTLY_S", 1e9)
    for number in range(100, 100 + MANY):
        computation = by_closure(number)
        computation([1.0, 2.0])
    report = fc.context.last_report()
    assert report.compilation.number == MANY
    assert report.compilation.seconds > 0
    (note,) = report.notes
    assert note == str(report.compilation)
    computation([3.0])
    assert fc.context.last_report().compilation is None
    assert fc.context.last_report().notes == []


def test_an_equal_program_is_not_compiled_again():
    for _ in range(2):
        by_closure(77)([1.0])
    assert fc.context.last_report().compilation is None


def test_programs_that_are_called_again_are_compared_and_not_made_for_a_round():
    log = CompilationLog()
    for number in range(2 * MANY):
        module = by_closure(number).module
        compilation = log.add(module, 10.0)
        log.call(module)
    assert (compilation.number, compilation.total_seconds, compilation.reason) == (1, 10.0, "closure")


def test_a_comparison_of_aggregators_gives_no_note():
    values = fc.types.at_clients("float32")
    for factor in range(2, 3 + MANY):
        aggregator = fc.aggregators.clipping_factory(float(factor), fc.aggregators.SumFactory())
        process = aggregator.create(values.member)
        state = process.initialize()
        for _ in range(3):
            state = process.next(state, [1.0, 2.0]).state
            assert fc.context.last_report().notes == []


def test_settings_and_programs_without_parameters_give_no_warning():
    log, same = CompilationLog(), by_closure(0)
    for _ in range(2 * MANY):
        log.add(same.module, 1.0)
    for number in range(2 * MANY):
        log.add(starting_at(number).module, 1.0)


def starting_at(number):
    start = fc.tf_computation(lambda: float(number))
    return fc.federated_computation(lambda: fc.federated_eval(start, fc.SERVER))


def test_the_parts_of_a_process_of_one_line_are_counted_apart():
    log = CompilationLog()
    process = fc.learning.algorithms.build_fed_kmeans(2, (3,))
    initialize, next_round = process.initialize.module, process.next.module
    assert initialize.main.location.line == next_round.main.location.line
    assert [log.add(module, 1.0).number for module in (initialize, next_round)] == [1, 1]
