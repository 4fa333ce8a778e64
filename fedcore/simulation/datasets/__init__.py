"""Data sets that are split over clients. Each module of a data set has `load_data()` and `get_synthetic()`.

`digits` and `synthetic` need no network. The others are published by TFF; `load_data` downloads each of them once,
verifies its checksum, and keeps it in a cache directory: the argument `cache_dir`, else $FEDCORE_DATA, else
~/.cache/fedcore/datasets. TFF's own files (`*.h5`, `*.tar.bz2`, `*.sqlite`, `*.sqlite.lzma`) are found there too.
`gldv2` and `inaturalist` read what TFF wrote to a directory, and download nothing.
"""

from typing import TYPE_CHECKING

from fedcore.simulation.datasets import cifar100 as cifar100
from fedcore.simulation.datasets import digits as digits
from fedcore.simulation.datasets import emnist as emnist
from fedcore.simulation.datasets import gldv2 as gldv2
from fedcore.simulation.datasets import inaturalist as inaturalist
from fedcore.simulation.datasets import shakespeare as shakespeare
from fedcore.simulation.datasets import stackoverflow as stackoverflow
from fedcore.simulation.datasets import synthetic as synthetic
from fedcore.simulation.datasets.client_data import ArrayClientData as ArrayClientData
from fedcore.simulation.datasets.client_data import ClientData as ClientData
from fedcore.simulation.datasets.client_data import TestClientData as TestClientData
from fedcore.simulation.datasets.client_partition import split_over_clients as split_over_clients
from fedcore.simulation.datasets.conversions import from_arrays as from_arrays
from fedcore.simulation.datasets.conversions import from_clients as from_clients
from fedcore.simulation.datasets.conversions import from_huggingface as from_huggingface
from fedcore.simulation.datasets.conversions import from_pandas as from_pandas
from fedcore.simulation.datasets.conversions import from_torch as from_torch
from fedcore.simulation.datasets.file_per_user_client_data import FilePerUserClientData as FilePerUserClientData
from fedcore.simulation.datasets.hdf5_client_data import HDF5ClientData as HDF5ClientData
from fedcore.simulation.datasets.hdf5_client_data import save_hdf5 as save_hdf5
from fedcore.simulation.datasets.image_files import ImageFolders as ImageFolders
from fedcore.simulation.datasets.image_files import image_folders as image_folders
from fedcore.simulation.datasets.mixtures import build_dataset_mixture as build_dataset_mixture
from fedcore.simulation.datasets.mixtures import build_single_label_dataset as build_single_label_dataset
from fedcore.simulation.datasets.mixtures import build_synthethic_iid_datasets as build_synthethic_iid_datasets
from fedcore.simulation.datasets.sqlite_client_data import SqlClientData as SqlClientData
from fedcore.simulation.datasets.sqlite_client_data import (
    load_and_parse_sql_client_data as load_and_parse_sql_client_data,
)
from fedcore.simulation.datasets.sqlite_client_data import save_sqlite as save_sqlite
from fedcore.simulation.datasets.sqlite_client_data import save_to_sql_client_data as save_to_sql_client_data
from fedcore.simulation.datasets.transforming_client_data import TransformingClientData as TransformingClientData
from fedcore.tff_names import tff_names

if not TYPE_CHECKING:
    __getattr__ = tff_names("fedcore.simulation.datasets")
