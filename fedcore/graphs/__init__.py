"""All that touches TensorFlow graphs: tracing, kernels, realizing, values."""
