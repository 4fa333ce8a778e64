"""Checks of the operands of one operation, for the bodies of GraphDefs and for operations that are emitted.

A check keeps its operand's value, and is made of pure operations; TensorFlow raises InvalidArgumentError where the
operand does not fit. Where an operand asks for too large a tensor, the error is a number from which `size_message`
makes a text: the names of nodes are lost when a function is named by its content.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import attrs
import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

MAX_ELEMENTS = 2**33  # of a tensor whose size is the value of an operand: 64 GiB of float64

_LIMITS = dict.fromkeys(("TensorListReserve", "TensorListResize"), 2**26)  # each element is an object of 32 bytes

_MAX_SIZE = 2**24  # of a dimension of images or of a filter

# By operation: the rank of its images, and the position of its operand that is a shape; None if none is.
_CONV: Mapping[str, tuple[int, int | None]] = {
    "AvgPoolGrad": (4, 0),
    "AvgPool3DGrad": (5, 0),
    "Conv2D": (4, None),
    "Conv3D": (5, None),
    "DepthwiseConv2dNative": (4, None),
    "Conv2DBackpropFilter": (4, 1),
    "Conv2DBackpropInput": (4, 0),
    "Conv3DBackpropFilterV2": (5, 1),
    "Conv3DBackpropInputV2": (5, 0),
    "DepthwiseConv2dNativeBackpropFilter": (4, 1),
    "DepthwiseConv2dNativeBackpropInput": (4, 0),
}
_POOL_GRADIENTS = ("AvgPoolGrad", "AvgPool3DGrad")
_TENSOR_SCATTERS = (
    "TensorScatterAdd",
    "TensorScatterMax",
    "TensorScatterMin",
    "TensorScatterSub",
    "TensorScatterUpdate",
)
# By operation: the number of dimensions that it transforms. A length of 0 ends the process.
_REAL_TRANSFORMS = {"RFFT": 1, "RFFT2D": 2, "RFFT3D": 3, "IRFFT": 1, "IRFFT2D": 2, "IRFFT3D": 3}
_RESOURCE_SCATTERS = tuple(f"ResourceScatter{how}" for how in ("Add", "Sub", "Mul", "Div", "Max", "Min"))
# By operation: position of an operand -> the shape that it must have; None for any size.
_SHAPED: Mapping[str, Mapping[int, list]] = {
    "Case": {0: []},
    "SparseCrossHashed": {-3: [], -2: [], -1: [2]},
    "Transpose": {1: [None]},
}
_UNSORTED_SEGMENTS = tuple(f"UnsortedSegment{how}" for how in ("Join", "Max", "Min", "Prod", "Sum"))
_SORTED_SEGMENTS = tuple(f"Segment{how}" for how in ("Max", "Mean", "Min", "Prod", "Sum"))
_PADS = ("Pad", "PadV2", "MirrorPad")

# By operation: the position of the operand by which it makes a tensor of any size.
SIZE_OPERANDS: Mapping[str, int] = {
    **dict.fromkeys(("Fill", "RaggedTensorToTensor", "StridedSliceGrad", "StatelessParameterizedTruncatedNormal"), 0),
    **dict.fromkeys(("StatelessRandomBinomial", "StatelessRandomGammaV2", "StatelessRandomGammaV3"), 0),
    **dict.fromkeys(("StatelessRandomPoisson", "StatelessTruncatedNormal", "StatelessTruncatedNormalV2"), 0),
    **{
        f"StatelessRandom{how}{version}": 0
        for how in ("Normal", "Uniform", "UniformFullInt", "UniformInt")
        for version in ("", "V2")
    },
    **dict.fromkeys(("Bincount", "BroadcastTo", "DenseBincount", "OneHot", "Range", "SparseToDense", "Tile"), 1),
    **dict.fromkeys(("StatelessMultinomial", "SobolSample", "TensorListReserve", "TensorListResize"), 1),
    **dict.fromkeys((*_PADS, *_SORTED_SEGMENTS), 1),
    **dict.fromkeys(("ResizeArea", "ResizeBicubic", "ResizeBilinear", "ResizeNearestNeighbor", "ScaleAndTranslate"), 1),
    **dict.fromkeys(("ResizeNearestNeighborGrad", "ExtractGlimpse", "ExtractGlimpseV2"), 1),
    **dict.fromkeys(("HistogramFixedWidth", "ImageProjectiveTransformV2", "ImageProjectiveTransformV3"), 2),
    **dict.fromkeys(
        ("LinSpace", "MatrixDiagV2", "MatrixDiagV3", "RaggedBincount", "ScatterNd", *_UNSORTED_SEGMENTS), 2
    ),
    **dict.fromkeys(("CropAndResize", "SparseBincount", "TensorListScatterV2"), 3),
    **{f"SparseSegment{how}": 2 for how in ("Mean", "SqrtN", "Sum")},
    **{
        f"SparseSegment{how}{which}": 3
        for how in ("Mean", "SqrtN", "Sum")
        for which in ("Grad", "GradV2", "WithNumSegments")
    },
}
# Position of another operand whose value multiplies the number of elements.
_FACTORS: Mapping[str, int] = {"MatrixDiagV2": 3, "MatrixDiagV3": 3, "SobolSample": 0}
# Position of the operand whose elements are repeated as often as the size operand says.
_REPEATED: Mapping[str, int] = {"OneHot": 0, "Tile": 0}
# Operations whose size operand holds the segment of each row: the last segment is the size.
_LARGEST = (*_SORTED_SEGMENTS, "SparseSegmentMean", "SparseSegmentSqrtN", "SparseSegmentSum")

RANKED = ("ScatterNd",)
"""Operations that make a tensor of any size, and whose updates need a check of their rank too."""

CHECKED = frozenset((*_CONV, *_REAL_TRANSFORMS, *_TENSOR_SCATTERS, *_RESOURCE_SCATTERS, *_SHAPED, *SIZE_OPERANDS))

# The size that Slice's error names is the number of the operation times this, plus the elements wanted.
_UNIT = 10**15
_NUMBERED = tuple(sorted(SIZE_OPERANDS))  # the operations, numbered from 1 in this order
_TOO_LONG = 2**30  # a vector of sizes has fewer entries, so that a Slice of so many fails
_SLICE = re.compile(r"Expected size\[0\] in \[0, \d+\], but got (\d{16,})")

_DOUBLE, _INT32, _INT64 = tf.float64, tf.int32, tf.int64


def size_message(text: str) -> str | None:
    """Message of a failed size check, from TensorFlow's error; None for another error."""
    slice_match = _SLICE.search(text)
    number, requested_size = divmod(int(slice_match[1]), _UNIT) if slice_match else (0, 0)
    if not 1 <= number <= len(_NUMBERED):
        return None
    amount = f"{requested_size}" if requested_size < _UNIT - 1 else f"{_UNIT} or more"
    return (
        f"{_NUMBERED[number - 1]} asks for {amount} elements; a tensor may have at most {_limit(_NUMBERED[number - 1])}"
    )


def _limit(op: str) -> int:
    """Elements that an operation may make."""
    return _LIMITS.get(op, MAX_ELEMENTS)


Tensor = TypeVar("Tensor")
"""How an operand is held: by its name in a GraphDef, or as a tensor of what is being built."""


@attrs.frozen
class Checks(Generic[Tensor]):
    """The checks of operations.

    Args:
        make: makes an operation from its name, operands and attributes, and returns its first result.
    """

    make: Callable[[str, list[Tensor], Mapping[str, Any]], Tensor]

    def of(
        self, op: str, operands: Sequence[Tensor], dtypes: Sequence[tf.DType], attributes: Mapping[str, Any]
    ) -> Iterator[tuple[int, Tensor]]:
        """Yields the position of each operand that is checked, and the checked operand that stands in its place.

        Args:
            op: an operation of `CHECKED`.
        """
        if op in _SHAPED:
            for index, target_shape in _SHAPED[op].items():
                yield index, self._ensure_shape(operands[index], dtypes[index], target_shape)
        elif op in _CONV:
            rank, shape = _CONV[op]
            for i, operand in enumerate(operands):
                if i == shape:
                    yield i, self._sizes(operand, dtypes[i], rank, least=0)
                elif op in _POOL_GRADIENTS:
                    yield i, self._with_pooled_sizes(operands[0], operand, dtypes[i], attributes)
                else:
                    yield i, self._ensure_shape(operand, dtypes[i], [None] * rank)
        elif op in _REAL_TRANSFORMS:
            yield 1, self._sizes(operands[1], dtypes[1], _REAL_TRANSFORMS[op], least=1)
        elif op in _TENSOR_SCATTERS:
            yield 2, self._with_rank_of_rows(operands, dtypes, 2)
        elif op in _RESOURCE_SCATTERS:
            yield 1, self._check_table_rows(operands, dtypes)
        else:
            index = SIZE_OPERANDS[op]
            yield index, self._check_size(op, index, operands, dtypes)
            if op in RANKED:
                yield 1, self._with_rank_of_rows(operands, dtypes, 1)

    def _ensure_shape(self, operand: Tensor, dtype: tf.DType, shape: list) -> Tensor:
        return self.make("EnsureShape", [operand], {"T": dtype, "shape": tf.TensorShape(shape)})

    def _sizes(self, sizes: Tensor, dtype: tf.DType, rank: int, *, least: int) -> Tensor:
        """A vector of `rank` sizes, after a check that each is between `least` and `_MAX_SIZE`."""
        sizes = self._ensure_shape(sizes, dtype, [rank])
        inside = self.make(
            "ClipByValue", [sizes, *(self._constant(n, dtype) for n in (least, _MAX_SIZE))], {"T": dtype}
        )
        same = self.make("Equal", [sizes, inside], {"T": dtype})
        fits = self.make("All", [same, self._constant([0], _INT32)], {"Tidx": _INT32})
        return self._where(fits, sizes, dtype, self._constant([_TOO_LONG], _INT64))

    def _with_pooled_sizes(
        self, images: Tensor, gradient: Tensor, dtype: tf.DType, attributes: Mapping[str, Any]
    ) -> Tensor:
        """The gradient of pooled images, after a check that its sizes are those that pooling gives.

        Args:
            images: the sizes of the images, int32 [rank].
            gradient: of the pooled images.
            dtype: of the gradient.
            attributes: of the operation. Windows and strides of 1 leave the batch and the channels as they are.
        """
        windows, strides = attributes["ksize"], attributes["strides"]
        # Pooled sizes: ceil(size / stride) with the padding SAME, else ceil((size - window + 1) / stride).
        spare = [1] * len(windows) if attributes["padding"] in ("SAME", b"SAME") else windows
        sums = [self._constant([s - w for s, w in zip(strides, spare, strict=True)], _INT32), images]
        starts = self.make("AddV2", sums, {"T": _INT32})
        pooled = self.make("FloorDiv", [starts, self._constant(strides, _INT32)], {"T": _INT32})
        gradient = self._ensure_shape(gradient, dtype, [None] * len(windows))
        shape = self.make("Shape", [gradient], {"T": dtype, "out_type": _INT32})
        same = self.make("Equal", [shape, pooled], {"T": _INT32})
        fits = self.make("All", [same, self._constant([0], _INT32)], {"Tidx": _INT32})
        flat = self._where(fits, self._flat(gradient, dtype), dtype, self._constant([_TOO_LONG], _INT64))
        return self.make("Reshape", [flat, shape], {"T": dtype, "Tshape": _INT32})

    def _with_rank_of_rows(self, operands: Sequence[Tensor], dtypes: Sequence[tf.DType], updates: int) -> Tensor:
        """The updates of a scatter, after a check that they have an axis for each axis of the indices but the last.

        The optimiser removes a Reshape to the shape that it infers, so the updates go through a Slice.

        Args:
            updates: position of the updates; the indices stand before them.
        """
        tensor, dtype = operands[updates], dtypes[updates]
        rank = self.make("Rank", [operands[updates - 1]], {"T": dtypes[updates - 1]})
        rows = self.make("Sub", [rank, self._constant(1, _INT32)], {"T": _INT32})
        fits = self.make("LessEqual", [rows, self.make("Rank", [tensor], {"T": dtype})], {"T": _INT32})
        flat = self._where(fits, self._flat(tensor, dtype), dtype, self._constant([_TOO_LONG], _INT64))
        shape = self.make("Shape", [tensor], {"T": dtype, "out_type": _INT32})
        return self.make("Reshape", [flat, shape], {"T": dtype, "Tshape": _INT32})

    def _check_table_rows(self, operands: Sequence[Tensor], dtypes: Sequence[tf.DType]) -> Tensor:
        """The indices (operand 1) of a table, after a check that a table without rows gets none.

        TensorFlow divides by the number of rows.
        """
        table, indices = operands[:2]
        shape = self.make("VariableShape", [table], {"out_type": _INT64})
        rows = self.make(
            "Slice", [shape, self._constant([0], _INT64), self._constant([1], _INT64)], {"T": _INT64, "Index": _INT64}
        )
        rows = self._scalar(rows, _INT64)
        count = self.make("Size", [indices], {"T": dtypes[1], "out_type": _INT64})
        used = self.make("Minimum", [count, self._constant(1, _INT64)], {"T": _INT64})
        fits = self.make("LessEqual", [used, rows], {"T": _INT64})
        flat = self._where(
            fits, self._flat(indices, dtypes[1]), dtypes[1], self._add(count, self._constant([1], _INT64))
        )
        back = self.make("Shape", [indices], {"T": dtypes[1], "out_type": _INT64})
        return self.make("Reshape", [flat, back], {"T": dtypes[1], "Tshape": _INT64})

    def _check_size(self, op: str, index: int, operands: Sequence[Tensor], dtypes: Sequence[tf.DType]) -> Tensor:
        """The size operand, at a position, after a check that it asks for at most as many elements as are allowed."""
        operand, dtype = operands[index], dtypes[index]
        total = self._elements(op, index, operands, dtypes)
        fits = self.make("LessEqual", [total, self._constant(_limit(op), _DOUBLE)], {"T": _DOUBLE})
        least = self.make("Minimum", [total, self._constant(_UNIT - 1, _DOUBLE)], {"T": _DOUBLE})
        requested_size = self.make("Cast", [least], {"SrcT": _DOUBLE, "DstT": _INT64})
        number = self._constant([(_NUMBERED.index(op) + 1) * _UNIT], _INT64)
        flat = self._where(fits, self._flat(operand, dtype), dtype, self._add(requested_size, number))
        back = self.make("Shape", [operand], {"T": dtype, "out_type": _INT32})
        return self.make("Reshape", [flat, back], {"T": dtype, "Tshape": _INT32})

    def _elements(self, op: str, index: int, operands: Sequence[Tensor], dtypes: Sequence[tf.DType]) -> Tensor:
        """The number of elements that an operation makes, as a float64; 0 counts as 1.

        Args:
            index: position of the size operand.
        """
        doubles = [self._double(operands[index], dtypes[index])]
        if op == "Range":
            start, limit, step = (self._double(o, t) for o, t in zip(operands, dtypes, strict=True))
            distance = self.make("Sub", [limit, start], {"T": _DOUBLE})
            steps = self.make("Abs", [self.make("Div", [distance, step], {"T": _DOUBLE})], {"T": _DOUBLE})
            return self._over("Max", steps)
        if op in _LARGEST:
            return self._over(
                "Max",
                self.make(
                    "ConcatV2",
                    [*doubles, self._constant([1], _DOUBLE), self._constant(0, _INT32)],
                    {"N": 2, "T": _DOUBLE, "Tidx": _INT32},
                ),
            )
        if op in _PADS:
            sizes = self._shape(operands[0], dtypes[0])
            pairs = self.make(
                "Reshape", [doubles[0], self._constant([-1, 2], _INT32)], {"T": _DOUBLE, "Tshape": _INT32}
            )
            added = self.make("Sum", [pairs, self._constant([1], _INT32)], {"T": _DOUBLE, "Tidx": _INT32})
            doubles = [self.make("AddV2", [sizes, added], {"T": _DOUBLE})]
        elif op in _FACTORS:
            doubles.append(self._double(operands[_FACTORS[op]], dtypes[_FACTORS[op]]))
        elif op in _REPEATED:
            doubles.append(self._shape(operands[_REPEATED[op]], dtypes[_REPEATED[op]]))
        elif op in _UNSORTED_SEGMENTS:
            rank = self.make("Rank", [operands[1]], {"T": dtypes[1]})
            first = self.make("Reshape", [rank, self._constant([1], _INT32)], {"T": _INT32, "Tshape": _INT32})
            sizes = self._shape(operands[0], dtypes[0])
            doubles.append(
                self.make("Slice", [sizes, first, self._constant([-1], _INT32)], {"T": _DOUBLE, "Index": _INT32})
            )
        unit = self._constant(1, _DOUBLE)
        products = [self._over("Prod", self.make("Maximum", [d, unit], {"T": _DOUBLE})) for d in doubles]
        return products[0] if len(products) == 1 else self.make("Mul", products, {"T": _DOUBLE})

    def _where(self, fits: Tensor, vector: Tensor, dtype: tf.DType, requested_size: Tensor) -> Tensor:
        """The vector if `fits` holds; else Slice raises an error that names `requested_size`, int64 [1]."""
        size = self.make("SelectV2", [fits, self._constant([-1], _INT64), requested_size], {"T": _INT64})
        return self.make("Slice", [vector, self._constant([0], _INT64), size], {"T": dtype, "Index": _INT64})

    def _double(self, operand: Tensor, dtype: tf.DType) -> Tensor:
        """The operand as a vector of float64, which holds products of sizes that int64 does not."""
        return self._flat(self.make("Cast", [operand], {"SrcT": dtype, "DstT": _DOUBLE}), _DOUBLE)

    def _shape(self, operand: Tensor, dtype: tf.DType) -> Tensor:
        """The shape of an operand as a vector of float64."""
        return self._double(self.make("Shape", [operand], {"T": dtype, "out_type": _INT64}), _INT64)

    def _over(self, reduction: str, vector: Tensor) -> Tensor:
        """The scalar to which an operation such as `Max` reduces a vector of float64."""
        return self.make(reduction, [vector, self._constant([0], _INT32)], {"T": _DOUBLE, "Tidx": _INT32})

    def _add(self, scalar: Tensor, vector: Tensor) -> Tensor:
        return self.make("AddV2", [scalar, vector], {"T": _INT64})

    def _flat(self, operand: Tensor, dtype: tf.DType) -> Tensor:
        return self.make("Reshape", [operand, self._constant([-1], _INT32)], {"T": dtype, "Tshape": _INT32})

    def _scalar(self, vector: Tensor, dtype: tf.DType) -> Tensor:
        return self.make("Reshape", [vector, self._constant(np.zeros([0]), _INT32)], {"T": dtype, "Tshape": _INT32})

    def _constant(self, value: ArrayLike, dtype: tf.DType) -> Tensor:
        return self.make("Const", [], {"value": np.asarray(value, dtype.as_numpy_dtype), "dtype": dtype})
