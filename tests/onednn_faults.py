"""Marks of tests that plain TensorFlow cannot pass either with the kernels that it takes from oneDNN here."""

import pytest
from tensorflow.python.framework.test_util import IsMklEnabled

from fedcore.processor import avoids_avx512, processor_flags

# TensorFlow asks the processor for AVX-512, oneDNN the variable: its kernels for bfloat16 raise, or end the process.
needs_bfloat16 = pytest.mark.skipif(
    IsMklEnabled() and avoids_avx512() and "avx512f" in processor_flags(),
    reason="oneDNN is kept from the instructions that its kernels for bfloat16 need",
)

needs_own_convolutions = pytest.mark.skipif(
    IsMklEnabled(),
    reason="TensorFlow takes oneDNN's gradient of a kernel with strides, which writes outside its memory",
)
