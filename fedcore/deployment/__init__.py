"""Programs over a network of real clients: the networks, cohorts of sites, and a site's own process and policy.

The runtime is `fc.runtime.network(exchange)`. docs/deployment.md leads from one machine to several.
"""

import importlib

from fedcore.deployment.engines import engine_installed

# Each name is loaded when it is first used, since a network's engine may not be installed: name -> module.
_PLACES = {
    "Exchange": "fedcore.runtime.network.exchange",
    "NoReply": "fedcore.runtime.network.exchange",
    "Site": "fedcore.deployment.site",
    "element_spec": "fedcore.graphs.tensors.specs",
    "flare": "fedcore.deployment.flare_exchange",
    "sites": "fedcore.deployment.site_cohorts",
}

__all__ = sorted(_PLACES)


def __getattr__(name):
    if name in _PLACES:
        with engine_installed():
            return getattr(importlib.import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'fedcore.deployment' has no attribute {name!r}")


def __dir__():
    return __all__
