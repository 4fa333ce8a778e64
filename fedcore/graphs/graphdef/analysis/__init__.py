"""What a graph tells of its operations: effects, origins, dtypes."""
