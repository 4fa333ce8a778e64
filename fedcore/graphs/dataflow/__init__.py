"""A client stage as a graph of TensorFlow's operations that is not in TensorFlow yet: built, printed, rewritten.

graph            values, nodes, regions, and the block that is being built
operations       the vocabulary of batching rules: adds nodes, under the names of TensorFlow's functions
shape_inference  the door to TensorFlow's shape functions
text             prints a region; `text_parser` reads it, `text_attributes` has the notation of attributes
first_known      when each value is first known: static, broadcast, data, step
rewriting        copies of regions with other nodes, and rules that are declared as patterns
stage_passes     registry and pipeline of the passes on regions, which stand in `passes`
region_log       the regions that become functions, for dumps and recordings
"""
