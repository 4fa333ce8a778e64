import pytest
from wrong_learning_parts import COLUMNS, ByNumber, Late, OneCursor, Rows, WithoutLast

import fedcore as fc
from fedcore.errors import TypeMismatch
from fedcore.simulation.datasets import TestClientData


@pytest.mark.parametrize(
    ("data", "columns"),
    [
        (Rows(), COLUMNS),
        (TestClientData(COLUMNS), COLUMNS),
        (
            TestClientData({"a": {"name": ["x", "y"]}, "b": {"name": ["z"]}}),
            {"a": {"name": ["x", "y"]}, "b": {"name": ["z"]}},
        ),
        (TestClientData(COLUMNS).preprocess(lambda dataset: dataset.batch(2)), None),
    ],
    ids=["own", "arrays", "texts", "batches"],
)
def test_right_client_data_pass(data, columns):
    fc.testing.check_client_data(data, columns)


def test_data_sets_that_draw_an_order_are_compared_in_any_order():
    data = TestClientData(COLUMNS).preprocess(lambda dataset: dataset.shuffle(9))
    fc.testing.check_client_data(data, COLUMNS, is_shuffled=True)
    with pytest.raises(fc.testing.LawBroken, match="the elements are "):
        fc.testing.check_client_data(data, COLUMNS)


def broken(data) -> str:
    with pytest.raises(fc.testing.LawBroken) as raised:
        fc.testing.check_client_data(data, COLUMNS)
    return str(raised.value)


def test_a_missing_row_is_found():
    text = broken(WithoutLast())
    assert text.startswith(
        "the law is broken: WithoutLast: the elements are the rows of the columns\n  client 'client 0'"
    )


def test_ids_in_another_order_are_shown():
    assert "ByNumber: the ids are a sorted list of texts, each once\n  they are ['client 0'" in broken(ByNumber())


@pytest.mark.parametrize(
    ("data", "law"),
    [
        (Late, "the elements do not depend on data sets that are made later"),
        (OneCursor, "the elements are the same where clients are read in turn"),
    ],
)
def test_data_sets_that_share_a_state_are_found(data, law):
    assert f"{data.__name__}: {law}\n  client 'client " in broken(data())


def test_what_is_no_client_data_is_refused():
    with pytest.raises(TypeMismatch, match=r"check_client_data takes client data of fc\.simulation\.datasets, not 3"):
        fc.testing.check_client_data(3)
