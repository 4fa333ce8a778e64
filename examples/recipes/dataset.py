"""A data set of clients, in columns of arrays."""

import numpy as np

import fedcore as fc
from fedcore.simulation.datasets.client_data import ArrayClientData


def load_data():
    """Two clients with three readings and one."""
    rows = {"x": np.arange(4, dtype=np.float32)}
    return ArrayClientData(rows, {"north": (0, 3), "south": (3, 4)})


data = load_data()
assert data.client_ids == ["north", "south"]
batches = data.preprocess(lambda dataset: dataset.batch(2)).create_tf_dataset_for_client("north")
assert [len(batch["x"]) for batch in batches] == [2, 1]

fc.testing.check_client_data(
    data, {"north": {"x": np.arange(3, dtype=np.float32)}, "south": {"x": np.array([3], np.float32)}}
)
