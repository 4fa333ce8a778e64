"""From Python to a graph: tracing, variables, random numbers, Keras' seeds; and a graph's import into another."""
