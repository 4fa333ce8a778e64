"""From the stages of a plan to TensorFlow functions: kernels, fusing, realizing, XLA."""
