"""Data sets that are split over clients. Each module of a data set has `load_data()` and `get_synthetic()`.

`digits` needs no network. The others are published by TFF; `load_data` downloads each of them once, verifies its
checksum, and keeps it in a cache directory: the argument `cache_dir`, else $FEDCORE_DATA, else
~/.cache/fedcore/datasets. TFF's own files (`*.h5`, `*.tar.bz2`, `*.sqlite`, `*.sqlite.lzma`) are found there too.
`gldv2` and `inaturalist` read what TFF wrote to a directory, and download nothing.
"""

from fedcore.simulation.datasets import cifar100, digits, emnist, gldv2, inaturalist, shakespeare, stackoverflow
from fedcore.simulation.datasets.client_data import ArrayClientData, ClientData, TestClientData
from fedcore.simulation.datasets.conversions import (
    from_arrays,
    from_clients,
    from_huggingface,
    from_pandas,
    from_torch,
)
from fedcore.simulation.datasets.file_per_user_client_data import FilePerUserClientData
from fedcore.simulation.datasets.hdf5_client_data import HDF5ClientData, save_hdf5
from fedcore.simulation.datasets.mixtures import (
    build_dataset_mixture,
    build_single_label_dataset,
    build_synthethic_iid_datasets,
)
from fedcore.simulation.datasets.sqlite_client_data import (
    SqlClientData,
    load_and_parse_sql_client_data,
    save_sqlite,
    save_to_sql_client_data,
)
from fedcore.simulation.datasets.transforming_client_data import TransformingClientData
from fedcore.tff_names import tff_name


def __getattr__(name):
    return tff_name("fedcore.simulation.datasets", name)
