"""Lines of the user's code in errors: no library's is taken for one."""

import functools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import fedcore as fc
from fedcore.errors import TypeMismatch
from fedcore.ir.locations import user_location


@fc.tf_computation("float32")
def half(x):
    return x / 2.0


def test_a_computation_that_a_pool_calls_has_no_line():
    with ThreadPoolExecutor() as pool:
        assert pool.submit(user_location).result() is None
        with pytest.raises(TypeMismatch) as error:
            list(pool.map(half, [None]))
    assert ".py" not in str(error.value)


def test_a_line_of_the_user_is_found_behind_the_standard_library():
    @functools.singledispatch
    def through_functools(x):
        return user_location()

    location = through_functools(1)
    assert Path(location.path) == Path(__file__)
    assert functools.partial(lambda x: user_location().line)(1) > location.line
