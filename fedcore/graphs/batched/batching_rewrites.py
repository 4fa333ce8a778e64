"""Rewrites that batching makes while it builds a stage's region, and that a plan switches off by name.

They need what only the data of a call tells, such as how rows are packed, so they are no passes on finished regions.
`plan{without=known-inputs+cse}` leaves out one of them and a stage pass.

Decision 0323.
"""

from collections.abc import Mapping
from types import MappingProxyType

KNOWN_INPUTS, DATA_PRODUCTS, ONE_STEP_FACTORS = "known-inputs", "data-products", "one-step-factors"

BATCHING_REWRITES: Mapping[str, str] = MappingProxyType(
    {
        KNOWN_INPUTS: "Computes products of a first layer's inputs once before the loop over steps.",
        DATA_PRODUCTS: "Keeps products of the data with one another as long as the packed data.",
        ONE_STEP_FACTORS: "Keeps changes of small kernels as factors where a client takes one step.",
    }
)
"""Name -> what the rewrite does, in a line."""
