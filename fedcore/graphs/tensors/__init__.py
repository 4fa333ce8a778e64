"""Lowest layer of graphs: values, sizes, seeds, caches, threads and cancellation. It reads no graph."""
