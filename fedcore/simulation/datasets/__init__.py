"""Data sets that are split over clients. Each module of a data set has `load_data()` and `get_synthetic()`."""

from fedcore.simulation.datasets import digits
from fedcore.simulation.datasets.client_data import ArrayClientData, ClientData, TestClientData
