"""Devices, and the executables that they hold."""
