import subprocess
import sys

import pytest

from fedcore.types import (
    FederatedType,
    Placement,
    PlacementVariable,
    Signature,
    StructType,
    StructWithPythonType,
    TensorType,
    contains,
    leaves,
    map_leaves,
    parse_signature,
    parse_type,
    register_placement,
    strip_containers,
    strip_placement,
)


def test_leaves_have_paths_in_order():
    type_ = parse_type('{<x=<y=<int32,str>>,"a b"=bool*>}@CLIENTS')
    assert [(path, str(leaf)) for path, leaf in leaves(type_)] == [
        ("x.y[0]", "int32"),
        ("x.y[1]", "str"),
        ('"a b"', "bool*"),
    ]


def test_map_leaves_keeps_structure():
    mapped = map_leaves(lambda _: TensorType("bool"), parse_type("list<x=int32,{str}@CLIENTS>"))
    assert mapped == parse_type("list<x=bool,{bool}@CLIENTS>")


def test_strip_placement_reaches_everywhere():
    assert strip_placement(parse_type("<int32@SERVER,({str}@CLIENTS -> bool@P)*>")) == parse_type(
        "<int32,(str -> bool)*>"
    )


def test_strip_containers_reaches_everywhere():
    assert strip_containers(parse_type("list<OrderedDict<x=int32>*>")) == parse_type("<<x=int32>*>")


def test_a_map_that_changes_nothing_gives_the_same_object():
    type_ = parse_type("<x=(int32 -> {str}@CLIENTS*)>")
    assert strip_containers(type_) is type_


def test_contains_looks_into_functions():
    assert contains(parse_type("<(int32@SERVER -> str)>"), lambda inner: isinstance(inner, FederatedType))


def test_elements_are_found_by_name_and_position():
    struct = parse_type("<x=int32,str>")
    assert struct["x"] == struct[0] == struct[-2] == TensorType("int32")
    assert struct.names == ("x", None)
    with pytest.raises(KeyError):
        struct["y"]
    with pytest.raises(IndexError):
        struct[2]


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: StructType([("x", int), ("x", int)]), "two elements are named 'x'"),
        (lambda: StructType([("\ud800", int)]), "holds surrogates"),
        (lambda: TensorType("int32", [-1]), "not negative"),
        (lambda: TensorType("int32", [2**63]), "fits into 64 bits"),
        (lambda: FederatedType(int, Placement("NOWHERE")), "'NOWHERE' is no placement"),
        (lambda: PlacementVariable("CLIENT"), "no placement variable"),
        (lambda: StructWithPythonType([("x", int)], ""), "a container is a name, not ''"),
        (lambda: Signature([]), "a signature has an alternative"),
        (
            lambda: Signature(
                [
                    *parse_signature("(a: T -> T) where T: numeric").alternatives,
                    *parse_signature("(a: T, b: T -> T) where T: integer").alternatives,
                ]
            ),
            "give one variable different kinds",
        ),
        (
            lambda: FederatedType(int, Placement("CLIENTS", default_all_equal=True)),
            "is not the registered placement of that name",
        ),
        (lambda: register_placement("P"), "cannot name a placement"),
        (lambda: register_placement("CLIENTS", default_all_equal=True), "is registered with"),
    ],
)
def test_what_the_notation_could_not_write_cannot_be_made(make, problem):
    with pytest.raises(ValueError, match=problem):
        make()


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: TensorType("int32", "23"), "'23' is not a shape"),
        (lambda: TensorType("int32", [2, True]), r"\[2, True\] is not a shape; a shape is a tuple of sizes"),
        (lambda: TensorType("int32", [2.5]), r"\[2\.5\] is not a shape; a shape is a tuple of sizes"),
        (lambda: FederatedType(int, "CLIENTS"), "'CLIENTS' is not a placement"),
        (lambda: TensorType("int32", None).sizes, "the rank of int32.* has to be known here"),
    ],
)
def test_what_is_of_another_kind_is_refused(make, problem):
    with pytest.raises(TypeError, match=problem):
        make()


def test_types_import_no_tensorflow():
    code = "import sys, fedcore.types; sys.exit('tensorflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
