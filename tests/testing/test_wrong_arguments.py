"""What the checkers say of arguments that are no checkable thing."""

import pytest

import fedcore as fc
from fedcore.testing.faults import Faults

COUNT = (0, lambda n, _: n + 1, lambda m, n: m + n, lambda n: n)
DEAD = """fedcore 1 traced

fn @main(%x: float32) -> float32 {
  %0 = generic_plus(%x, %x) : float32
  return %x
}
"""


@pytest.mark.parametrize(
    ("check", "says"),
    [
        (lambda: fc.testing.check_aggregation(*COUNT, 5), "values is a list of the clients' values, not 5"),
        (lambda: fc.testing.check_pass(3), "takes a pass, its name or a function from module to module, not 3"),
        (lambda: fc.testing.check_intrinsic(3), "takes an intrinsic or its name, not 3"),
        (lambda: Faults(0, "nan", "half"), "fraction is a number, not 'half'"),
        (lambda: Faults(0, "nan", 0.5).clients(-1), "count is a whole number, 0 or more, not -1"),
    ],
)
def test_wrong_arguments_are_named(check, says):
    with pytest.raises(fc.errors.FedcoreError, match=says):
        check()


def test_values_of_an_aggregation_can_be_read_once():
    fc.testing.check_aggregation(*COUNT, iter([1, 2, 3]))


def test_one_pipeline_and_one_program_need_no_list():
    listed = fc.testing.check_pass("dce", before=["inline"], programs=3)
    assert fc.testing.check_pass("dce", before="inline", programs=3) == listed
    assert fc.testing.check_pass("dce", cases=DEAD, programs=0).changed == 1
