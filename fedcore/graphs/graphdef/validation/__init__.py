"""Graphs from elsewhere: what is allowed, and how they are imported."""
