"""Values of context variables inside a `with` block."""

import contextvars

import pytest

from fedcore.context_values import set_inside


def test_a_value_is_seen_inside_and_the_one_before_again_behind():
    variable = contextvars.ContextVar("variable", default=1)
    with set_inside(variable, 2) as value, set_inside(variable, 3):
        assert (value, variable.get()) == (2, 3)
    assert variable.get() == 1


def test_an_error_inside_leaves_the_value_before():
    variable = contextvars.ContextVar("variable", default=1)
    with pytest.raises(KeyError), set_inside(variable, 2):
        raise KeyError
    assert variable.get() == 1
