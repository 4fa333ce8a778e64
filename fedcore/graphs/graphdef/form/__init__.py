"""What a graph is: its canonical form, its parsed form, and the checks of its operands that are operations."""
