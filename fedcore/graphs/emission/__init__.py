"""From dataflow graphs to TensorFlow's.

realize            emits a region into the TensorFlow graph being built, once
tf_control_flow    loops, branches and calls in TensorFlow graphs
"""
