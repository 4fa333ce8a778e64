"""Encoders: compression of the tensors that cross between server and clients.

An encoder is used for a broadcast (`fc.learning.framework.build_encoded_broadcast_process_from_model`), or for a sum
(`fc.aggregators.EncodedSumFactory`).
"""

from fedcore.aggregators.encoders.adaptive_quantization import adaptive_quantization
from fedcore.aggregators.encoders.bits import Bits, Integers
from fedcore.aggregators.encoders.chain import chain
from fedcore.aggregators.encoders.encoder import AdaptiveEncoder, Encoder
from fedcore.aggregators.encoders.entropy import entropy
from fedcore.aggregators.encoders.hadamard import hadamard
from fedcore.aggregators.encoders.identity import identity
from fedcore.aggregators.encoders.lloyd_max import lloyd_max
from fedcore.aggregators.encoders.spec_encoders import as_gather_encoder, as_simple_encoder
from fedcore.aggregators.encoders.top_k import top_k
from fedcore.aggregators.encoders.uniform_quantization import RMS as RMS
from fedcore.aggregators.encoders.uniform_quantization import uniform_quantization

__all__ = [
    "AdaptiveEncoder",
    "Bits",
    "Encoder",
    "Integers",
    "adaptive_quantization",
    "as_gather_encoder",
    "as_simple_encoder",
    "chain",
    "entropy",
    "hadamard",
    "identity",
    "lloyd_max",
    "top_k",
    "uniform_quantization",
]
