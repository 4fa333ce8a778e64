"""The built-in passes on regions, one a file; `stage_passes` has their order."""
