"""Federated Stack Overflow: sentences of questions and answers, by user.

Source:
    Stack Overflow's data, licensed CC BY-SA 3.0; Reddi et al. 2020, arXiv:2003.00295, for its use.
"""

from __future__ import annotations

import collections
import itertools
import json
import os
from typing import TYPE_CHECKING

import numpy as np

from fedcore.scalars import whole_number
from fedcore.simulation.datasets.client_data import ClientData, TestClientData
from fedcore.simulation.datasets.downloads import Archive, cached_members
from fedcore.simulation.datasets.published import Published
from fedcore.tff_names import tff_names

_PUBLISHED = Published(
    Archive(
        "stackoverflow.tar.bz2",
        "99eca2f8b8327a09e5fc123979df2d237acbc5e52322f6d86bf523ee47b961a2",
        ("stackoverflow_train.h5", "stackoverflow_held_out.h5", "stackoverflow_test.h5"),
    ),
    "stackoverflow.sqlite",
    ("train", "heldout", "test"),
    {
        "creation_date": ("string", ()),
        "score": ("int64", ()),
        "tags": ("string", ()),
        "title": ("string", ()),
        "tokens": ("string", ()),
        "type": ("string", ()),
    },
)
_WORD_COUNTS = Archive(
    "stackoverflow.word_count.tar.bz2",
    "1dc00256d6e527c54b9756d968118378ae14e6692c0b3b6cad470cdd3f0c519c",
    ("stackoverflow.word_count",),
)
_TAG_COUNTS = Archive(
    "stackoverflow.tag_count.tar.bz2",
    "6fe281cec490d9384a290d560072438e7e2b377bbb823876ce7bd6f82696772d",
    ("stackoverflow.tag_count",),
)


def load_data(cache_dir: str | os.PathLike | None = None) -> tuple[ClientData, ClientData, ClientData]:
    """Loads federated Stack Overflow as (training data, held-out data, test data).

    Training: 342,477 users before 2018, with 135,818,730 sentences. Held out: a tenth of the users, 38,758 with
    16,491,230. Test: 204,088 users from 2018 on, with 16,586,035. Downloaded once; see `datasets`.

    Types, for each client:
        <creation_date=str,score=int64,tags=str,title=str,tokens=str,type=str>*   with tags separated by `|`, tokens by
        spaces, and the type `question` or `answer`

    Args:
        cache_dir: directory of downloaded files. Default: $FEDCORE_DATA, or ~/.cache/fedcore/datasets.
    Raises:
        FedcoreError: the file is not there and cannot be downloaded, or is damaged; or h5py is not installed.
    """
    train, held_out, test = _PUBLISHED.load("stackoverflow.load_data", cache_dir)
    return train, held_out, test


def load_word_counts(
    cache_dir: str | os.PathLike | None = None, vocab_size: int | None = None
) -> collections.OrderedDict[str, int]:
    """Word -> how many users of the training data wrote it, the most frequent first.

    Args:
        cache_dir: directory of downloaded files. Default: $FEDCORE_DATA, or ~/.cache/fedcore/datasets.
        vocab_size: how many words, at least 1. Default: all.
    Raises:
        FedcoreError: as for `load_data`; or `vocab_size` is no whole number of at least 1.
    """
    size = None if vocab_size is None else whole_number("vocab_size", vocab_size, at_least=1)
    (path,) = cached_members("stackoverflow.load_word_counts", _WORD_COUNTS, cache_dir)
    with path.open(encoding="utf-8") as lines:
        pairs = (line.split() for line in itertools.islice(lines, size))
        return collections.OrderedDict((word, int(count)) for word, count in pairs)


def load_tag_counts(cache_dir: str | os.PathLike | None = None) -> collections.OrderedDict[str, int]:
    """Tag -> how many users of the training data used it, the most frequent first.

    Args:
        cache_dir: directory of downloaded files. Default: $FEDCORE_DATA, or ~/.cache/fedcore/datasets.
    Raises:
        FedcoreError: as for `load_data`.
    """
    (path,) = cached_members("stackoverflow.load_tag_counts", _TAG_COUNTS, cache_dir)
    return _most_frequent_first(json.loads(path.read_text(encoding="utf-8")))


def get_synthetic() -> ClientData:
    """Synthetic data with the type of `load_data`, for tests: three clients with two or three sentences each."""
    return TestClientData(
        {
            "synthetic_1": _client(
                ("2011-03-02 10:11:12 UTC", 41, "python|list", "how to reverse a list", "you can slice it .", "answer"),
                ("2011-03-02 10:11:12 UTC", 41, "python|list", "how to reverse a list", "or call reversed .", "answer"),
                ("2012-07-09 08:00:00.5 UTC", 7, "sql", "how to count rows", "i have a table of users .", "question"),
            ),
            "synthetic_2": _client(
                ("2009-12-24 18:30:00 UTC", 3, "git|merge", "undo a merge", "how can i undo it ?", "question"),
                ("2010-01-05 07:15:42.1 UTC", -1, "css", "center a box", "thanks !", "answer"),
                ("2010-01-05 07:15:42.1 UTC", -1, "css", "center a box", "see <URL>", "answer"),
            ),
            "synthetic_3": _client(
                ("2013-05-17 21:45:03 UTC", 0, "python|numpy", "sum of a list", "a list of numbers .", "question"),
                ("2013-05-17 21:45:03 UTC", 0, "python|numpy", "sum of a list", "how can i sum it ?", "question"),
            ),
        }
    )


def get_synthetic_word_counts() -> collections.OrderedDict[str, int]:
    """Word -> how often it occurs in `get_synthetic`, the most frequent first."""
    return _count_parts("tokens", " ")


def get_synthetic_tag_counts() -> collections.OrderedDict[str, int]:
    """Tag -> how often it occurs in `get_synthetic`, the most frequent first."""
    return _count_parts("tags", "|")


def _client(*sentences: tuple[str, int, str, str, str, str]) -> dict:
    """The columns of a client, from sentences with their fields in the order of `_PUBLISHED.fields`."""
    columns = dict(zip(_PUBLISHED.fields, map(list, zip(*sentences, strict=True)), strict=True))
    return {**columns, "score": np.array(columns["score"], np.int64)}


def _count_parts(field: str, separator: str) -> collections.OrderedDict[str, int]:
    texts = get_synthetic().in_memory()._columns[field]
    counts = collections.Counter(part for text in texts for part in text.decode().split(separator))
    return _most_frequent_first(counts)


def _most_frequent_first(counts: dict[str, int]) -> collections.OrderedDict[str, int]:
    return collections.OrderedDict(sorted(counts.items(), key=lambda item: item[1], reverse=True))


if not TYPE_CHECKING:
    __getattr__ = tff_names("fedcore.simulation.datasets.stackoverflow")
