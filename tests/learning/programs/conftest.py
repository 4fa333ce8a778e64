import pytest
import tiny


@pytest.fixture(scope="session")
def process():
    return tiny.build()


@pytest.fixture(scope="session")
def evaluation():
    return tiny.build_evaluation()


@pytest.fixture(scope="session")
def data():
    return tiny.clients()
