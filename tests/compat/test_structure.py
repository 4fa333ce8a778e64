"""A struct with other elements."""

import collections

import attrs
import pytest

import fedcore as fc
from fedcore.errors import FedcoreError

Pair = collections.namedtuple("Pair", ["a", "b"])


@attrs.frozen
class State:
    a: int
    b: int


@pytest.mark.parametrize("make", [dict, collections.OrderedDict, Pair, State])
def test_named_elements_are_replaced_and_the_container_kept(make):
    given = make(a=1, b=2)
    assert fc.structure.update_struct(given, b=3) == make(a=1, b=3)
    assert given == make(a=1, b=2)


def test_other_containers_and_unknown_names_are_refused():
    with pytest.raises(FedcoreError, match=r"update_struct takes a dict, .*, not \[1\]"):
        fc.structure.update_struct([1], a=1)
    with pytest.raises(FedcoreError, match="has no element c, d"):
        fc.structure.update_struct(Pair(1, 2), d=1, c=2)
