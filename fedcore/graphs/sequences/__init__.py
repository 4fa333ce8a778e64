"""Client sequences: columns and steps outside of graphs, gather loops and symbolic datasets inside."""
