"""Heavy hitters by invertible Bloom lookup tables."""

from typing import TYPE_CHECKING

from fedcore.analytics.heavy_hitters.iblt.chunkers import CharacterEncoding, create_chunker
from fedcore.analytics.heavy_hitters.iblt.hyperedge_hashers import CoupledHyperEdgeHasher, RandomHyperEdgeHasher
from fedcore.analytics.heavy_hitters.iblt.iblt_computation import build_iblt_computation
from fedcore.analytics.heavy_hitters.iblt.iblt_factory import ClippingIbltFactory, IbltFactory
from fedcore.analytics.heavy_hitters.iblt.tables import (
    DEFAULT_REPETITIONS,
    IbltDecoder,
    IbltEncoder,
    IbltTensorDecoder,
    IbltTensorEncoder,
    decode_iblt_tensor_tf,
    decode_iblt_tf,
)
from fedcore.tff_names import tff_names

__all__ = [
    "DEFAULT_REPETITIONS",
    "CharacterEncoding",
    "ClippingIbltFactory",
    "CoupledHyperEdgeHasher",
    "IbltDecoder",
    "IbltEncoder",
    "IbltFactory",
    "IbltTensorDecoder",
    "IbltTensorEncoder",
    "RandomHyperEdgeHasher",
    "build_iblt_computation",
    "create_chunker",
    "decode_iblt_tensor_tf",
    "decode_iblt_tf",
]

if not TYPE_CHECKING:
    __getattr__ = tff_names("fedcore.analytics.heavy_hitters.iblt")
