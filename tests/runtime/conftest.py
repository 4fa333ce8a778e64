import pytest
from two_machines import DROP

import fedcore as fc


@pytest.fixture
def runtime():
    """A stack of one worker, in use."""
    made = fc.runtime.local(workers_per_device=1)
    with fc.use(runtime=made):
        yield made
    made.close()


@pytest.fixture(scope="module")
def local():
    """A runtime of one worker with the options of the clusters it is compared with, not in use."""
    made = fc.runtime.local(workers_per_device=1, **DROP)
    yield made
    made.close()
