"""A saved round of federated averaging needs nothing of what built it."""

import subprocess
import sys

import numpy as np

import fedcore as fc

from .conftest import random_clients

SCRIPT = """
import sys
import numpy as np
import fedcore as fc

folder = sys.argv[1]
initialize, next_fn = fc.load(folder + "/initialize.fed"), fc.load(folder + "/next.fed")
arrays = np.load(folder + "/clients.npz")
clients = [fc.data.ClientDataset.from_columns((arrays[f"x{k}"], arrays[f"y{k}"])).batch(4) for k in range(3)]
state = initialize.invoke(seed=3)
for seed in (5, 6):
    # The classes of states and outputs are unknown here: their structs are dicts.
    state, metrics = next_fn.invoke(state, clients, seed=seed).values()

def leaves(x):
    if hasattr(x, "values"):
        x = tuple(x.values())
    return [y for part in x for y in leaves(part)] if isinstance(x, (tuple, list)) else [np.asarray(x)]

np.savez(folder + "/out.npz", *leaves((state, metrics)))
assert "fedcore.learning" not in sys.modules
"""


def leaves(x) -> list[np.ndarray]:
    if hasattr(x, "__attrs_attrs__"):
        x = tuple(getattr(x, a.name) for a in x.__attrs_attrs__)
    if hasattr(x, "values"):
        x = tuple(x.values())
    return [y for part in x for y in leaves(part)] if isinstance(x, tuple | list) else [np.asarray(x)]


def test_saved_rounds_run_in_a_process_that_has_no_model(process, tmp_path):
    fc.save(process.initialize, tmp_path / "initialize.fed")
    fc.save(process.next, tmp_path / "next.fed")
    clients = random_clients([7, 3, 12])
    columns = [c.columns.arrays for c in clients]
    arrays = {f"{name}{k}": part for k, pair in enumerate(columns) for name, part in zip("xy", pair, strict=True)}
    np.savez(tmp_path / "clients.npz", **arrays)
    ran = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr

    state = process.initialize.invoke(seed=3)
    for seed in (5, 6):
        state, metrics = process.next.invoke(state, clients, seed=seed)
    with np.load(tmp_path / "out.npz") as out:
        there = [out[name] for name in out.files]
    here = leaves((state, metrics))
    assert len(there) == len(here)
    for mine, theirs in zip(here, there, strict=True):
        np.testing.assert_array_equal(mine, theirs)
