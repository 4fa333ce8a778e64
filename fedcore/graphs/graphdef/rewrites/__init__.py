"""Rewrites of GraphDefs."""
