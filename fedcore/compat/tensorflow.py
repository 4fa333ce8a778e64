"""`fc.tensorflow.computation`: another name of `fc.tf_computation`."""

from fedcore.computation import tf_computation as computation

__all__ = ["computation"]
