"""Clients' identifiers as a data source."""

import pytest

import fedcore as fc
from fedcore.errors import InvalidValue, TypeMismatch

IDS = ["ada", "bob", "eve", "mallory"]


def test_selections_are_of_identifiers_without_repetition():
    source = fc.program.ClientIdDataSource(IDS)
    assert str(source.federated_type) == str(source.iterator().federated_type) == "{str}@CLIENTS"
    iterator = source.iterator()
    assert sorted(iterator.select(4)) == IDS
    assert len({*iterator.select(3)}) == 3
    assert iterator.select(0) == []


def test_selections_are_by_seed_and_go_on_from_bytes():
    one, other = (fc.program.ClientIdDataSource(IDS, seed=7).iterator() for _ in range(2))
    assert [one.select(2) for _ in range(5)] == [other.select(2) for _ in range(5)]
    restored = fc.program.ClientIdDataSourceIterator.from_bytes(one.to_bytes())
    assert restored == one
    assert [restored.select(2) for _ in range(5)] == [other.select(2) for _ in range(5)]
    assert restored != one


@pytest.mark.parametrize("k", [None, -1, 5])
def test_a_number_of_clients_that_cannot_be_is_refused(k):
    with pytest.raises(InvalidValue, match="from 0 to 4"):
        fc.program.ClientIdDataSource(IDS).iterator().select(k)


@pytest.mark.parametrize(("ids", "error"), [([], InvalidValue), ("ada", InvalidValue), ([1], TypeMismatch)])
def test_identifiers_are_texts(ids, error):
    with pytest.raises(error, match="client_ids"):
        fc.program.ClientIdDataSource(ids)
    with pytest.raises(error, match="client_ids"):
        fc.program.ClientIdDataSourceIterator(ids)


@pytest.mark.parametrize("data", [b"", b"\xff", b"{}", b"[[], 1, 0]", b'[["a"], 1, -1]', b"7"])
def test_other_bytes_are_refused(data):
    with pytest.raises(InvalidValue, match="these are not the bytes of a ClientIdDataSourceIterator"):
        fc.program.ClientIdDataSourceIterator.from_bytes(data)
