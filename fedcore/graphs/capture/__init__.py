"""Tracing of Python functions to graphs (variables, random numbers, Keras' seeds), and import of graphs into others."""
