"""Translates stages of a plan to TensorFlow functions: kernels, fusing of local operations, realizing, XLA."""
