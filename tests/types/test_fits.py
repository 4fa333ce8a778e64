import attrs
import pytest
from hypothesis import given
from strategies import types, value_types

from fedcore.errors import Location
from fedcore.types import TensorType, explain, fits, map_leaves, mismatches, parse_type, strip_containers
from fedcore.types.fits import join_shapes


@given(types)
def test_every_type_fits_itself(type_):
    assert fits(type_, type_)


@given(types)
def test_containers_do_not_matter(type_):
    assert fits(type_, strip_containers(type_))
    assert fits(strip_containers(type_), type_)


@given(value_types)
def test_every_type_fits_itself_with_its_shapes_forgotten(type_):
    def forget(leaf):
        return attrs.evolve(leaf, shape=None) if isinstance(leaf, TensorType) else leaf

    assert fits(type_, map_leaves(forget, type_))


@given(types, types)
def test_fits_says_whether_there_are_mismatches(have, want):
    assert fits(have, want) == (mismatches(have, want) == [])


@pytest.mark.parametrize(
    ("have", "want"),
    [
        ("int32[10]", "int32[?]"),
        ("int32[10]", "int32[...]"),
        ("int32[?]", "int32[...]"),
        ("<x=int32>", "<int32>"),
        ("<int32>", "<x=int32>"),
        ("int32[10]*", "int32[?]*"),
        ("(int32[?] -> int32[10])", "(int32[10] -> int32[?])"),
        ("int32@CLIENTS", "{int32}@CLIENTS"),
        ("{int32[10]}@CLIENTS", "{int32[?]}@CLIENTS"),
    ],
)
def test_fits_one_way_only_where_something_is_forgotten(have, want):
    assert fits(parse_type(have), parse_type(want))
    if "<" not in have:
        assert not fits(parse_type(want), parse_type(have))


@pytest.mark.parametrize(
    ("left", "right", "joined"),
    [
        ("int32[10]", "int32[10]", "int32[10]"),
        ("int32[2,3]", "int32[2,5]", "int32[2,?]"),
        ("int32[2]", "int32[2,3]", "int32[...]"),
        ("int32[2]", "int32[...]", "int32[...]"),
        ("<x=int32[2],int64>", "<x=int32[3],int64>", "<x=int32[?],int64>"),
        ("int32[2]", "int64[2]", None),
        ("<x=int32[2],int64>", "<x=int32[3],int32>", None),
        ("<int32>", "<int32,int32>", None),
        ("int32*", "int32*", None),
    ],
)
def test_shapes_are_joined_to_the_narrowest_that_both_fit(left, right, joined):
    found = join_shapes(parse_type(left), parse_type(right))
    assert found == (parse_type(joined) if joined else None)
    assert found is None or (fits(parse_type(left), found) and fits(parse_type(right), found))


@pytest.mark.parametrize(
    ("have", "want", "paths"),
    [
        ("int32", "int64", [""]),
        ("int32", "int32[1]", [""]),
        ("<x=int32>", "<y=int32>", ["x"]),
        ("<int32,int32>", "<int32>", [""]),
        ("<a=int32,b=<str,bool>>", "<a=int64,b=<str,str>>", ["a", "b[1]"]),
        ("{int32}@CLIENTS", "{int32}@SERVER", [""]),
        ("int32", "int32@SERVER", [""]),
        ("T", "U", [""]),
        ("(-> int32)", "(int32 -> int32)", [""]),
        ("(int32 -> int32)", "(int64 -> int32)", [":parameter"]),
    ],
)
def test_all_mismatches_are_found_with_their_paths(have, want, paths):
    assert [mismatch.path for mismatch in mismatches(parse_type(have), parse_type(want))] == paths


def test_the_explanation_aligns_both_sides_and_points():
    have = parse_type("{<x=float32[784],y=int64>}@CLIENTS")
    want = parse_type("{<x=float32[784],y=int32>}@CLIENTS")
    text = explain(
        "federated_map: `values` does not fit",
        have,
        want,
        location=Location("train.py", 41),
        function="next_round",
    )
    assert text == (
        "federated_map: `values` does not fit\n"
        "  signature  wants  {<x=float32[784],y=int32>}@CLIENTS\n"
        "  argument   has    {<x=float32[784],y=int64>}@CLIENTS\n"
        "                                       ^^^^^\n"
        "  at train.py:41, in next_round"
    )


def test_each_mismatch_gets_its_carets_and_labels_align():
    text = explain(
        "the value does not fit",
        parse_type("<a=int32,z=bool>"),
        parse_type("<a=int64,b=bool>"),
        have_label="value",
        want_label="the state",
        fix="cast `a` to int64",
    )
    assert text == (
        "the value does not fit\n"
        "  the state  wants  <a=int64,b=bool>\n"
        "  value      has    <a=int32,z=bool>\n"
        "                       ^^^^^ ^\n"
        "  fix: cast `a` to int64"
    )
