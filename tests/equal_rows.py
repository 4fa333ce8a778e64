"""Marks tests of bits that hold where a row of a product has the same bits beside any other rows.

Tests pin the target of such processors; on others, plans avoid what these tests check.
"""

import pytest

from fedcore.compiler.host_target import host_target
from fedcore.graphs.batched.batching_policy import ISAS_OF_EQUAL_ROWS

needs_equal_rows = pytest.mark.skipif(
    host_target().isa not in ISAS_OF_EQUAL_ROWS, reason="here the bits of a product's row depend on the other rows"
)
