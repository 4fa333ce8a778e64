"""Types nest to a limit, and functions over types of that depth work on a deep stack."""

import pickle

import pytest

from fedcore.errors import InvalidValue
from fedcore.types import StructType, Type, fits, leaves, map_leaves, parse_type, to_type
from fedcore.types.types import MAX_DEPTH, MAX_PARTS

FLOAT = to_type("float32")


def deepest() -> Type:
    type_ = to_type("int32")
    for _ in range(MAX_DEPTH - 1):
        type_ = StructType([type_])
    return type_


def in_frames(count: int, work):
    """The result of the work, that many calls deeper on Python's stack."""
    return work() if count == 0 else in_frames(count - 1, work)


def nested(depth: int, kind: type):
    value = "int32"
    for _ in range(depth):
        value = {"x": value} if kind is dict else kind([value])
    return value


WORK = {
    "equality": lambda: deepest() == deepest(),
    "hash": lambda: hash(deepest()) == hash(deepest()),
    "text": lambda: parse_type(str(deepest())) == deepest(),
    "pickle": lambda: pickle.loads(pickle.dumps(deepest())) == deepest(),
    "fits": lambda: fits(deepest(), deepest()),
    "map": lambda: leaves(map_leaves(lambda _: FLOAT, deepest())) == [("[0]" * (MAX_DEPTH - 1), FLOAT)],
    "conversion": lambda: to_type(nested(MAX_DEPTH - 1, tuple)) == deepest(),
}


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_functions_over_the_deepest_types_work_three_hundred_frames_down(work):
    assert in_frames(300, work)


@pytest.mark.parametrize("kind", [tuple, list, dict])
@pytest.mark.parametrize("depth", [MAX_DEPTH, 5000])
def test_containers_that_nest_deeper_than_types_are_refused(depth, kind):
    with pytest.raises(InvalidValue, match=f"^types nest at most {MAX_DEPTH} deep$"):
        to_type(nested(depth, kind))


def test_a_list_that_holds_itself_is_refused():
    endless: list = []
    endless.append(endless)
    with pytest.raises(InvalidValue, match="nest at most"):
        to_type(endless)


def test_containers_that_double_at_each_level_are_refused_before_they_are_walked():
    value: object = "int32"
    for _ in range(60):
        value = (value, value)
    with pytest.raises(InvalidValue, match=f"^types have at most {MAX_PARTS} parts$"):
        to_type(value)
