"""Each seeded wrong part is found by a law of its check."""

import pytest
from wrong_parts import PARTS

QUICK = {
    ("pass", "swaps the operands of generic_minus"),
    ("pass", "merges seeds"),
    ("stage pass", "drops + 0 of floats"),
    ("stage pass", "takes x == x for true"),
    ("batching rule", "ArgMax takes the last of ties"),
    ("slice executor", "WithoutReport"),
    ("aggregator", "averages averages"),
    ("aggregation", "a merge of the mean of means"),
    ("encoder", "decodes to float64"),
    ("encoder", "always rounds up"),
    ("optimizer", "forgets its velocity"),
    ("metric", "Averages over time."),
    ("client data", "Has the rows of the client that was asked for last."),
}
"""The parts of the ordinary suite; the tests of each check have more."""

RAISING = {
    "raises for selections",
    "swaps the operands of Sub for ever",
    "forgets that conditions broadcast",
    "takes a rotation for its inverse",
    "slices a slice to the end of the whole",
}


def test_there_are_enough_wrong_parts_of_each_kind():
    names = [(part.kind, part.name) for part in PARTS]
    assert len({*names}) == len(names) >= 60
    assert set(names) >= QUICK


@pytest.mark.parametrize(
    "part",
    [pytest.param(p, marks=() if (p.kind, p.name) in QUICK else pytest.mark.soak) for p in PARTS],
    ids=lambda part: f"{part.kind}: {part.name}",
)
def test_a_wrong_part_is_found(part):
    law = part.law()
    assert law, f"no law finds the {part.kind} that {part.name}"
    assert part.name in RAISING or not law.endswith(" runs"), "the part does not do what its name says"
    assert not law.endswith(("changes a program", "changes a region")), "nothing was checked"
