"""Facts of a graph's operations: effects, origins, dtypes, bytes."""
