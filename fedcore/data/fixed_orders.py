"""The orders that sequences of one call share: `take` and `skip` of one shuffle without a seed split its elements.

Sequences with a step of one token draw by one seed. It is the call's, folded with the place of the token among those of
the call, so that the same call draws the same in every process, and in whichever worker a client runs.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping

import tensorflow as tf

from fedcore.data.client_dataset import ClientDataset
from fedcore.data.tf_data_import import tokens_of
from fedcore.seeds import fold_in
from fedcore.types import FederatedType, SequenceType, StructType, Type, contains

_ORDERS = 1 << 41  # apart from the numbers of clients and leaves, which are folded into the call's seed too


def fixed_seeds(arguments: Iterable, types: Iterable[Type], seed: int) -> Mapping[Hashable, int]:
    """The seeds of the tokens in the arguments of a call, as given.

    Clients that are made when they are read are not looked at: there, the sequences of one client share an order.
    """
    found: dict[Hashable, int] = {}
    for value, type_ in zip(arguments, types, strict=True):
        if not contains(type_, lambda t: isinstance(t, SequenceType)):
            continue
        for token in _tokens(value, type_):
            if token not in found:
                found[token] = fold_in(fold_in(seed, _ORDERS), len(found))
    return found


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
