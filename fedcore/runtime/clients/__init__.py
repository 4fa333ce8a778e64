"""Client stages: clients are read, packed into calls, run, and merged."""
