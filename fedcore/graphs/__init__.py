"""All that touches TensorFlow graphs: tracing, kernels, realizing, values."""

from fedcore.graphs.capture.autograph_rules import claim_package
from fedcore.graphs.tensors.intra_op_threads import claim_threads

claim_threads()
claim_package()
