"""Which of Python's and numpy's values a dtype takes, wherever a user gives one; both runtimes say the same."""

import numpy as np
import pytest

import fedcore as fc
from fedcore.errors import FedcoreError, TracingError, TypeMismatch
from fedcore.runtime.reports.result_difference import difference
from fedcore.types import as_dtype

C, S = fc.CLIENTS, fc.SERVER

REFUSED = [
    ("float32", 1 + 2j, ""),
    ("float32", 1e300, "x is 1e+300, which float32 does not hold"),
    ("float32", -1e39, "x is -1e+39, which float32 does not hold"),
    ("float16", 70000.0, "x is 70000.0, which float16 does not hold"),
    ("float16", 70000, "x is 70000, which float16 does not hold"),
    ("bfloat16", 1e39, "x is 1e+39, which bfloat16 does not hold"),
    ("bfloat16", 10**400, "which bfloat16 does not hold"),
    ("float64", 10**400, "which float64 does not hold"),
    ("bfloat16", 257, "x is 257, which bfloat16 does not hold"),
    ("float32", 2**24 + 1, "x is 16777217, which float32 does not hold"),
    ("float32", 2**70 + 1, "x is 1180591620717411303425, which float32 does not hold"),
    ("complex64", 1e300j, "x is 1e+300j, which complex64 does not hold"),
    ("complex64", 1e300, "x is 1e+300, which complex64 does not hold"),
    ("int32", 2**31, "x is 2147483648, which int32 does not hold"),
    ("int64", 2**63, "x is 9223372036854775808, which int64 does not hold"),
    ("uint64", 2**64, "x is 18446744073709551616, which uint64 does not hold"),
    ("uint8", -1, "x is -1, which uint8 does not hold"),
    ("uint64", -1, "x is -1, which uint64 does not hold"),
    ("int8", 128, "x is 128, which int8 does not hold"),
    ("int32", 1.0, ""),
    ("int32", float("nan"), ""),
    ("int32", float("inf"), ""),
    ("int32", True, ""),
    ("float32", True, ""),
    ("bool", 1, ""),
    ("bool", 1.0, ""),
    ("str", 1, "x is 1, but the type is str"),
    ("int32", "1", ""),
    ("int32", None, "None is neither number nor text"),
    ("str", "\ud800", "surrogates"),
    ("float32", np.float64(0.5), ""),
    ("float32[2]", [1.0, 1e300], r"x\[1\] is 1e\+300, which float32 does not hold"),
    ("int32[2,1]", [[1], [2**40]], r"x\[1\]\[0\] is 1099511627776, which int32 does not hold"),
    ("int32[2]", [True, 2], "bools stand among numbers"),
    ("float32[2]", [np.True_, 2.0], "bools stand among numbers"),
    ("str[2]", ["a", 1], "text stands among numbers"),
    ("int32[2]", [1, "a"], "text stands among numbers"),
    ("int32[2]", [1, None], "None is neither number nor text"),
    ("float32[2]", [[1.0], [1.0, 2.0]], "lengths differ"),
]  # fmt: skip

TAKEN = [
    ("float32", 0.1, np.float32(0.1)),
    ("float32", 1e-300, np.float32(0)),
    ("float32", 3.4e38, np.float32(3.4e38)),
    ("float32", float("inf"), np.float32("inf")),
    ("bfloat16", float("nan"), as_dtype("bfloat16").numpy.type("nan")),
    ("float32", 2**70, np.float32(2.0**70)),
    ("bfloat16", 2**70, as_dtype("bfloat16").numpy.type(2.0**70)),
    ("float16", 2048, np.float16(2048)),
    ("complex64", 1.5, np.complex64(1.5)),
    ("complex64", 1 + 2j, np.complex64(1 + 2j)),
    ("int64", 2**63 - 1, np.int64(2**63 - 1)),
    ("uint64", 2**64 - 1, np.uint64(2**64 - 1)),
    ("int8", -128, np.int8(-128)),
    ("str", b"a\0", b"a\0"),
    ("str[2]", ["é", b"\xff\0"], np.array([b"\xc3\xa9", b"\xff\0"], object)),
    ("float32[2]", [1, 0.5], np.array([1, 0.5], np.float32)),
    ("float32[1]", np.array([1.5], ">f4"), np.array([1.5], np.float32)),
    ("int32[0]", [], np.zeros(0, np.int32)),
    ("str[0]", [], np.zeros(0, object)),
]


@pytest.fixture(scope="module", params=[fc.runtime.local, fc.runtime.reference], ids=lambda make: make.__name__)
def runtime(request):
    made = request.param()
    with fc.use(made):
        yield made
    made.close()


def _same(*types):
    return fc.federated_computation(lambda x: x, *types)


@pytest.mark.parametrize(("type_", "value", "says"), REFUSED)
def test_a_value_that_the_dtype_does_not_hold_is_refused(type_, value, says, runtime):
    says = says if "\\" in says else says.replace("+", r"\+")
    with pytest.raises(TypeMismatch, match=says or "x does not fit\n"):
        _same(type_)(value)
    with pytest.raises(TypeMismatch, match=says or "x does not fit\n"):
        _same(fc.FederatedType(type_, S))(value)
    of_client = says.replace("x is", r"x\[1\] is").replace(r"x\[", r"x\[1\]\[", says.startswith(r"x\["))
    good = {"bo": True, "st": "a"}.get(type_[:2], 1)
    size = type_.partition("[")[2][:-1]
    first = np.full([int(n) for n in size.split(",")], good).tolist() if size else good
    with pytest.raises(TypeMismatch, match=of_client or r"x\[1\] does not fit\n"):
        _same(fc.FederatedType(type_, C))([first, value])


@pytest.mark.parametrize(("type_", "value", "wanted"), TAKEN)
def test_a_value_that_the_dtype_holds_is_taken(type_, value, wanted, runtime):
    for given in (type_, fc.FederatedType(type_, S)):
        found = _same(given)(value)
        assert type(found) is type(wanted)
        assert difference(found, wanted, tolerance=0) is None
    (found,) = _same(fc.FederatedType(type_, C))([value])
    assert difference(found, wanted, tolerance=0) is None


def test_the_message_names_the_client_and_the_leaf(runtime):
    leaf = fc.FederatedType(fc.StructType([("w", fc.StructType([(None, "float32[2]")]))]), C)
    with pytest.raises(TypeMismatch, match=r"x\[1\]\.w\[0\]\[1\] is 1e\+300, which float32 does not hold"):
        _same(leaf)([{"w": ([1.0, 2.0],)}, {"w": ([1.0, 1e300],)}])
    total = fc.federated_computation(
        lambda x: fc.federated_sum(fc.federated_map(lambda s: fc.sequence_sum(s), x)),
        fc.FederatedType(fc.SequenceType("int8"), C),
    )
    with pytest.raises(TypeMismatch, match=r"x\[0\]\[2\] is 300, which int8 does not hold"):
        total([[1, 2, 300]])


LITERALS = [
    (lambda x: x * 1e300, "1e.300 is no value of a computation: Python's numbers become float32, which does not hold"),
    (lambda x: fc.federated_value(1e39, S), r"np.float64\(1e.39\) is a float64"),
    (lambda x: fc.federated_value(1e300j, S), r"np.complex128\(1e.300j\) is a complex128"),
    (lambda x: fc.federated_value(2**64, S), "no integer dtype holds it"),
    (lambda x: fc.federated_value(np.array([b"a", 1], object), S), "text stands among numbers"),
    (lambda x: x + (1 + 2j), "float32"),
    (lambda x: x + (2**24 + 1), "float32"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "says"), LITERALS, ids=range(len(LITERALS)))
def test_a_literal_that_no_dtype_holds_is_refused(body, says):
    with pytest.raises(FedcoreError, match=says) as caught:
        fc.federated_computation(body, fc.FederatedType("float32", S))
    assert isinstance(caught.value, TracingError | TypeMismatch)


def test_a_literal_takes_the_dtype_beside_it_where_that_holds_it(runtime):
    wide = fc.federated_computation(lambda x: (x * 1e300, x + 2**60), "float64")
    assert wide(1.0) == (1e300, float(2**60 + 1))


COLUMNS = [
    ([1, "a"], "text stands among numbers"),
    ([1, None], "None is neither number nor text"),
    ([2**64, 1], "no integer dtype holds 18446744073709551616"),
]


@pytest.mark.parametrize(("column", "says"), COLUMNS)
def test_a_column_of_mixed_values_is_refused(column, says):
    with pytest.raises(FedcoreError, match=says):
        fc.data.ClientDataset.from_columns({"x": np.array(column, object)})


def test_a_column_of_bytes_keeps_their_zeros():
    dataset = fc.data.ClientDataset.from_columns(np.array([b"a\0", "é"], object))
    assert [x.numpy() for x in dataset] == [b"a\0", b"\xc3\xa9"]


def test_a_column_of_another_dtype_is_refused(runtime):
    total = fc.federated_computation(
        lambda x: fc.federated_sum(fc.federated_map(lambda s: fc.sequence_sum(s), x)),
        fc.FederatedType(fc.SequenceType("float32"), C),
    )
    for column in ([1 + 2j], [1e300], [1], [True]):
        with pytest.raises(TypeMismatch, match=r"wants  float32\*"):
            total([fc.data.ClientDataset.from_columns(np.array(column))])
