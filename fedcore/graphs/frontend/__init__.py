"""A user's Python function as a graph, and computations called inside one."""
