"""Programs over a network of real clients: the networks, cohorts of sites, and a site's own process and policy.

The runtime is `fc.runtime.network(exchange)`. docs/deployment.md leads from one machine to several.
"""

from typing import TYPE_CHECKING, Any

from fedcore.lazy_imports import LazyImports

if TYPE_CHECKING:
    from fedcore.deployment.flare_network import flare as flare
    from fedcore.deployment.flower_network import flower as flower
    from fedcore.deployment.flower_network import flower_client_app as flower_client_app
    from fedcore.deployment.site import Site as Site
    from fedcore.deployment.site_cohorts import sites as sites
    from fedcore.graphs.tensors.specs import element_spec as element_spec
    from fedcore.runtime.network.exchange import Exchange as Exchange
    from fedcore.runtime.network.exchange import NoReply as NoReply

_LAZY = LazyImports(__name__)

__all__ = [*_LAZY.names]

__getattr__ = _LAZY.load


def __dir__() -> list[str]:
    return __all__
