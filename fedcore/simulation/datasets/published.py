"""Data sets in the files in which TFF publishes them."""

from __future__ import annotations

import os

import attrs

from fedcore.simulation.datasets.client_data import ClientData
from fedcore.simulation.datasets.downloads import Archive, cached_database, cached_members
from fedcore.simulation.datasets.hdf5_client_data import HDF5ClientData
from fedcore.simulation.datasets.sqlite_client_data import load_and_parse_sql_client_data


@attrs.frozen
class Published:
    """A data set in its two published forms, with the same splits in one order.

    Args:
        archive: HDF5 files, one for each split.
        database: the SQLite database of all splits.
        splits: their names in the database.
        fields: name of each field -> dtype and shape.
    """

    archive: Archive
    database: str
    splits: tuple[str, ...]
    fields: dict[str, tuple[str, tuple[int, ...]]]

    def load(self, user: str, cache_dir: str | os.PathLike | None) -> list[ClientData]:
        """The splits: from the database if it is in the cache directory, else from the archive's files.

        The archive is what is downloaded, since it has a published checksum.

        Args:
            user: the function that loads, for messages.
        """
        import tensorflow as tf

        database = cached_database(self.database, cache_dir)
        if database is None:
            return [HDF5ClientData(path) for path in cached_members(user, self.archive, cache_dir)]
        spec = {name: tf.TensorSpec(shape, dtype) for name, (dtype, shape) in self.fields.items()}
        return [load_and_parse_sql_client_data(database, spec, split) for split in self.splits]
