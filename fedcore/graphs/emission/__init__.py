"""From dataflow graphs to TensorFlow's.

region_function    emits a region into the TensorFlow graph being built, once
tf_control_flow    loops, branches and calls in TensorFlow graphs
onednn_kernels     oneDNN's kernels in the functions that TensorFlow has traced
"""
