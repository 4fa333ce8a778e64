"""Cohorts of sites: client data that stay where they are."""

from collections.abc import Iterable
from typing import Any

from fedcore.data import Cohort
from fedcore.errors import NotFound, brief
from fedcore.graphs.tensors.specs import element_spec
from fedcore.runtime.network.exchange import Exchange
from fedcore.runtime.network.transcript import DATA, HELD_OUT
from fedcore.site_value import SiteValue
from fedcore.types import SequenceType, Type, to_type


class Sites:
    """The sites of a network as client data; the result of `sites`.

    Guarantees:
      - `client_ids` are sorted, and are all sites of the federation, also those that are offline. So a sampler and a
        checkpoint mean equal clients in every process.
      - Nothing is read here: an element of a cohort is the name of a site's data.
    """

    def __init__(self, exchange: Exchange, element_type: Type, source: str = DATA) -> None:
        self._exchange = exchange
        self._source = source
        self.element_type = element_type

    @property
    def client_ids(self) -> list[str]:
        return sorted(self._exchange.sites)

    @property
    def online(self) -> list[str]:
        """The sites that are connected now, sorted."""
        return [site for site in self.client_ids if self._exchange.is_online(site)]

    @property
    def element_type_structure(self) -> Any:
        """The `tf.TensorSpec`s of one element, as of other client data."""
        return element_spec(self.element_type)

    def create_tf_dataset_for_client(self, client_id: str) -> SiteValue:
        """The name of a site's data.

        Raises:
            NotFound: it is no site.
        """
        if client_id not in self._exchange.sites:
            raise NotFound(f"no site {brief(client_id)} among {', '.join(self.client_ids)}")
        return SiteValue(client_id, self._source)

    def cohort(self, client_ids: Iterable[str]) -> Cohort:
        """The clients of a round, in this order.

        Raises:
            NotFound: an unknown site.
        """
        values = [self.create_tf_dataset_for_client(client_id) for client_id in client_ids]
        return Cohort(len(values), values.__getitem__)

    def __repr__(self) -> str:
        return f"<{len(self.client_ids)} sites of {SequenceType(self.element_type)}, {self._source}>"


def sites(exchange: Exchange, element_type: Any, *, held_out: bool = False) -> Sites:
    """The sites of a network as client data, for `programs.train`, samplers and computations.

    Args:
        exchange: the network, such as `fc.deployment.flare(...)`.
        element_type: type of an element of each site's data, such as `"<x=float32[?,8],y=int32[?,1]>"`. A site checks
            its data against the type that the plan asks for.
        held_out: the rows that sites hold out for evaluations, each once (`data.held_out_every` of site.toml). A site
            that holds out none refuses.
    Example:
        >>> data = fc.deployment.sites(exchange, "<x=float32[?,8],y=int32[?,1]>")
        >>> held_out = fc.deployment.sites(exchange, "<x=float32[?,8],y=int32[?,1]>", held_out=True)
        >>> history = fc.learning.programs.train(
        ...     process, data, rounds=10, evaluation=evaluation, evaluation_data=held_out)
    """
    return Sites(exchange, to_type(element_type), HELD_OUT if held_out else DATA)
