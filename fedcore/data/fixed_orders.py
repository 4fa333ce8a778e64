"""Seeds of the orders that several sequences of one call share.

`take(n)` and `skip(n)` after a shuffle without a seed must split its elements, so both need the same order. A step that
fixes an order has a token. The seed of a token is the call's seed folded with the position of the token among the
tokens of the call. So the order does not depend on the process or the worker in which a client runs.
"""

import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

import tensorflow as tf

from fedcore.data.client_dataset import ClientDataset
from fedcore.data.tf_data_import import tokens_of
from fedcore.seeds import fold_in
from fedcore.types import FederatedType, SequenceType, StructType, Type, contains

_ORDERS = 1 << 41  # greater than the numbers of clients and leaves, which are also folded into the call's seed


FixedSeeds = Callable[[], Mapping[Hashable, int]]
"""Gives the seeds of the tokens in the arguments of a call. The first call looks for the tokens."""


def fixed_seeds(arguments: Iterable, types: Iterable[Type], seed: int) -> FixedSeeds:
    """The seeds of the tokens in the arguments of a call. Few calls have tokens, and a cohort has many clients, so the
    arguments are searched when the first sequence with a token is read.

    Clients of an iterator or an `fc.Cohort` are not read here. Their tokens have no seed in the result, so only the
    sequences within one such client share an order.
    """

    @functools.cache
    def seeds() -> Mapping[Hashable, int]:
        found: dict[Hashable, int] = {}
        for value, type_ in zip(arguments, types, strict=True):
            if not _has_sequences(type_):
                continue
            for token in _tokens(value, type_):
                if token not in found:
                    found[token] = fold_in(fold_in(seed, _ORDERS), len(found))
        return found

    return seeds


def _has_sequences(type_: Type) -> bool:
    return contains(type_, lambda t: isinstance(t, SequenceType))


def _tokens(value, type_: Type) -> Iterator[Hashable]:
    if isinstance(type_, FederatedType):
        if type_.placement.name != "CLIENTS" or type_.all_equal:
            yield from _tokens(value, type_.member)
        elif isinstance(value, list | tuple):
            for client in value:
                yield from _tokens(client, type_.member)
    elif isinstance(type_, StructType):
        parts = list(value.values()) if isinstance(value, Mapping) else value
        if isinstance(parts, list | tuple) and len(parts) == len(type_.types):
            for part, member in zip(parts, type_.types, strict=True):
                yield from _tokens(part, member)
    elif isinstance(value, ClientDataset):
        if value.columns.has_fixed_order:
            yield from (step.token for step in value.columns.steps if step.token is not None)
    elif isinstance(value, tf.data.Dataset):
        yield from tokens_of(value)
