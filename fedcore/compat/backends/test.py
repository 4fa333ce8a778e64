"""`fc.backends.test`: the local runtime, which runs secure sums as plain sums unless it is told to mask them."""

from fedcore.compat.backends.native import (
    create_async_local_cpp_execution_context as create_async_test_cpp_execution_context,
)
from fedcore.compat.backends.native import (
    create_sync_local_cpp_execution_context as create_sync_test_cpp_execution_context,
)
from fedcore.compat.backends.native import (
    set_async_local_cpp_execution_context as set_async_test_cpp_execution_context,
)
from fedcore.compat.backends.native import (
    set_sync_local_cpp_execution_context as set_sync_test_cpp_execution_context,
)
from fedcore.tff_names import tff_names

__all__ = [
    "create_async_test_cpp_execution_context",
    "create_sync_test_cpp_execution_context",
    "set_async_test_cpp_execution_context",
    "set_sync_test_cpp_execution_context",
]

__getattr__ = tff_names("fedcore.backends.test")
