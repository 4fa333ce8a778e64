"""The number of intra-op threads by the environment."""

import pytest

from fedcore.errors import FedcoreError
from fedcore.graphs.tensors import intra_op_threads


def test_a_number_of_threads_that_is_none_names_its_variable(monkeypatch):
    monkeypatch.setenv("FEDCORE_INTRA_OP_THREADS", "many")
    with pytest.raises(FedcoreError, match=r"^FEDCORE_INTRA_OP_THREADS is a number of threads, not 'many'$"):
        intra_op_threads.set_intra_op_threads(None)
