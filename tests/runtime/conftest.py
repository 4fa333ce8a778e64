import pytest

import fedcore as fc


@pytest.fixture
def runtime():
    """A stack of one worker, in use."""
    made = fc.runtime.local(workers_per_device=1)
    with fc.use(runtime=made):
        yield made
    made.close()
