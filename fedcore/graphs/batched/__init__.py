"""Client stages that compute several clients at once along a leading client axis."""
