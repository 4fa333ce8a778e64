"""Federated Shakespeare: the lines of the plays, by character.

Source:
    Caldas et al. 2018, arXiv:1812.01097 (LEAF), after McMahan et al. 2017, arXiv:1602.05629.
"""

from __future__ import annotations

import os

from fedcore.simulation.datasets.client_data import ClientData, TestClientData
from fedcore.simulation.datasets.downloads import Archive
from fedcore.simulation.datasets.published import Published

_PUBLISHED = Published(
    Archive(
        "shakespeare.tar.bz2",
        "0285be9906cb5f268092eee4edeeacfc2af4574f2941f7cc2f08a321d7f5c707",
        ("shakespeare_train.h5", "shakespeare_test.h5"),
    ),
    "shakespeare.sqlite",
    ("train", "test"),
    {"snippets": ("string", ())},
)


def load_data(cache_dir: str | os.PathLike | None = None) -> tuple[ClientData, ClientData]:
    """Loads federated Shakespeare as (training data, test data); each of 715 characters is a client of both.

    16,068 and 2,356 snippets: lines that the character speaks at once. Downloaded once; see `datasets`.

    Types, for each client:
        <snippets=str>*

    Args:
        cache_dir: directory of downloaded files. Default: $FEDCORE_DATA, or ~/.cache/fedcore/datasets.
    Raises:
        FedcoreError: the file is not there and cannot be downloaded, or is damaged; or h5py is not installed.
    """
    train, test = _PUBLISHED.load("shakespeare.load_data", cache_dir)
    return train, test


def get_synthetic() -> ClientData:
    """Synthetic data with the type of `load_data`, for tests: a few lines of three characters."""
    return TestClientData(
        {
            "HAMLET_BARNARDO": {"snippets": ["Who's there?", "Long live the king!", "'Tis now struck twelve."]},
            "HAMLET_HAMLET": {
                "snippets": [
                    "A little more than kin, and less than kind.",
                    "Words, words, words.",
                    "The play's the thing\nWherein I'll catch the conscience of the king.",
                    "Alas, poor Yorick!",
                ]
            },
            "MACBETH_FIRST_WITCH": {"snippets": ["When shall we three meet again?"]},
        }
    )
