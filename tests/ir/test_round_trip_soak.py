import pytest
from generators import federated_modules
from hypothesis import HealthCheck, given, settings

from fedcore.ir import bundle, parse_module, print_module


@pytest.mark.soak
@settings(max_examples=10_000, suppress_health_check=list(HealthCheck))
@given(federated_modules())
def test_ten_thousand_generated_modules_come_back_from_their_text_and_their_file(module):
    assert parse_module(print_module(module)) == module
    data = bundle.to_bytes(module)
    assert bundle.from_bytes(data) == module
    assert bundle.to_bytes(bundle.from_bytes(data)) == data
