"""All that touches TensorFlow graphs: tracing, kernels, realizing, values."""

from fedcore.graphs.autograph import claim_package
from fedcore.graphs.threads import claim_threads

claim_threads()
claim_package()
