import pytest

from fedcore.deployment import site_plans


@pytest.fixture(autouse=True)
def plans_imported_here(monkeypatch):
    """Sites of this process import plans without a child of theirs, which imports TensorFlow for each plan.

    The site processes of test_flare.py have such children.
    """
    monkeypatch.setattr(site_plans, "check_in_child", lambda module, trusted: None)
