"""The form of a graph: canonical, parsed, and with the checks of its operands that are operations."""
