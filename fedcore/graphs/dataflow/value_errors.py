"""Operations that raise an error on values of their operands, of those that graphs may hold.

The list is from a search: kernels on the CPU ran on operands that fit, of which one at a time had its entries replaced
by 0, 1, -1, the dtype's limits, NaN and infinities. Errors that only shapes, axes and sizes raise are left out, except
for sizes that a tensor may be filled to.

Decision 0287.
"""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from fedcore.graphs.dataflow.graph import Value

INTEGER_DIVISIONS_AND_POWERS = ("Div", "FloorDiv", "TruncateDiv", "FloorMod", "Mod", "TruncateMod", "Pow")
"""Operations on two operands that raise only if these are integers: on a divisor of 0, or on a negative exponent."""

TENSOR_SCATTERS = tuple(f"TensorScatter{how}" for how in ("Add", "Max", "Min", "Sub", "Update"))
UNSORTED_SEGMENTS = tuple(f"UnsortedSegment{how}" for how in ("Max", "Min", "Prod", "Sum"))
_SEGMENTS = (
    *(f"Segment{how}{version}" for how in ("Max", "Min", "Prod", "Sum") for version in ("", "V2")),
    "SegmentMean",
)
_SPARSE_SEGMENTS = tuple(
    f"SparseSegment{how}{suffix}"
    for how in ("Mean", "SqrtN", "Sum")
    for suffix in ("", "WithNumSegments", "Grad", "GradV2")
)

RAISING_OPERANDS: Mapping[str, tuple[int, ...]] = {
    # divisors and exponents
    **dict.fromkeys(INTEGER_DIVISIONS_AND_POWERS, (1,)),
    # indices, labels and numbers of segments
    **dict.fromkeys(("Gather", "GatherV2", "GatherNd", *TENSOR_SCATTERS, *UNSORTED_SEGMENTS, *_SEGMENTS), (1,)),
    **dict.fromkeys(("ScatterNd", "InvertPermutation", "DynamicStitch", "ParallelDynamicStitch"), (0,)),
    **dict.fromkeys(_SPARSE_SEGMENTS, (1, 2)),
    **dict.fromkeys(("DynamicPartition", "SparseSoftmaxCrossEntropyWithLogits", "UnsortedSegmentJoin"), (1,)),
    **dict.fromkeys(("Bincount", "DenseBincount", "DenseCountSparseOutput", "NthElement"), (0, 1)),
    **dict.fromkeys(("ReverseSequence", "CTCGreedyDecoder", "HistogramFixedWidth"), (0, 1)),
    **dict.fromkeys(("SparseToDense", "SparseReorder", "SparseReshape", "SparseTensorDenseMatMul"), (0, 1)),
    **dict.fromkeys(("UnravelIndex", "RaggedTensorToSparse", "RaggedTensorToTensor", "RaggedRange"), (0, 1)),
    # matrices
    **dict.fromkeys(("Cholesky", "Eig", "Lu", "MatrixInverse", "MatrixLogarithm", "MatrixSquareRoot"), (0,)),
    **dict.fromkeys(("SelfAdjointEigV2", "Svd", "MatrixSolve", "BandedTriangularSolve"), (0,)),
    **dict.fromkeys(("MatrixSolveLs", "MatrixTriangularSolve", "TridiagonalSolve"), (0, -1)),
    # texts
    **dict.fromkeys(("StringToNumber", "DecodeBase64", "DecodeCSV", "DecodeRaw", "DecodePaddedRaw"), (0,)),
    **dict.fromkeys(("Substr", "UnicodeEncode", "RegexReplace", "RegexFullMatch"), (0, 1)),
    # bounds and algorithms of random numbers
    "StatelessRandomUniformInt": (2, 3),
    "StatelessRandomUniformIntV2": (3, 4, 5),
    "StatelessParameterizedTruncatedNormal": (2, 3, 4, 5),
    **{f"Stateless{how}V2": (3,) for how in ("RandomUniform", "RandomNormal", "TruncatedNormal")},
    **dict.fromkeys(("StatelessRandomUniformFullIntV2", "StatelessShuffle"), (3,)),
    # numbers of entries
    **dict.fromkeys(("Fill", "OneHot"), (0, 1)),
    **dict.fromkeys(("Range", "LinSpace"), (0, 1, 2)),
}
"""Operation -> the positions of the operands on whose values it raises; -1 is the last operand."""


def raising_operands(op: str, operands: Sequence[tf.Tensor | Value]) -> list[int]:
    """The positions of the operands on whose values an operation raises an error."""
    if op in INTEGER_DIVISIONS_AND_POWERS and not operands[1].dtype.is_integer:
        return []
    return [i % len(operands) for i in RAISING_OPERANDS.get(op, ())]
