"""Values, sizes, seeds, caches, threads and cancellation: nothing here looks into a graph."""
