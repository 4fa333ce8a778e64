"""Runs each guarded operation with operands that do not fit, in a process that they may end.

`python guarded_operations.py FIRST one|each` prints a line `at NUMBER NAME` before each case from FIRST on, and behind
it a line `error TEXT` or `ran`. A single known shape is that of one operand, in turn, or of each; of what asks for too
much memory all shapes are known or none, in turn, or both.
"""

import sys
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

import fedcore as fc

HUGE = np.array([2**20, 2**20, 2**20], np.int64)
NUMBERS = np.ones([4], np.float32)
IDS = np.array([0, 1, 2, 3], np.int32)
SEED = {"seed": np.array([1, 2])}
KEY = {"key": np.ones([1], np.uint64), "counter": np.ones([2], np.uint64), "alg": np.int32(1)}
IMAGES = np.ones([1, 4, 4, 1], np.float32)
VOLUMES = np.ones([1, 4, 4, 4, 1], np.float32)
WINDOW2 = {"strides": [1] * 4, "padding": "SAME"}
WINDOW3 = {"strides": [1] * 5, "padding": "SAME"}
SCATTERED = {"indices": np.zeros([1, 1, 1], np.int32), "updates": np.ones([1], np.float32)}
LARGE32 = np.array([2**20, 2**20], np.int32)
BRANCHES = [tf.function(lambda k=k: tf.constant(k)).get_concrete_function() for k in (5, 6)]
TWO_BRANCHES = {"input": [], "Tout": [tf.int32], "branches": BRANCHES, "output_shapes": []}
CROSSED = {
    "indices": [np.zeros([1, 2], np.int64)],
    "values": [np.zeros([1], np.int64)],
    "shapes": [np.ones([2], np.int64)],
    "dense_inputs": [],
}
SPARSE = {"data": np.ones([4, 2], np.float32), "indices": IDS, "segment_ids": IDS}
DIAGONAL = {"diagonal": NUMBERS, "k": np.int32(0), "num_cols": np.int32(2**30), "padding_value": np.float32(0)}
NO_WINDOW = np.array([1, 4], np.int32)  # too short for a shape of images


def _gradients(rank: int, images: np.ndarray, window: dict, names: tuple[str, str]) -> Iterator[tuple[str, dict, dict]]:
    kernel = np.ones([2] * (rank - 2) + [1, 1], np.float32)
    of_filter, of_input = names
    yield of_filter, {"input": images, "filter_sizes": NO_WINDOW, "out_backprop": images}, window
    yield of_filter, {"input": NUMBERS, "filter_sizes": np.int32(kernel.shape), "out_backprop": images}, window
    yield of_input, {"input_sizes": NO_WINDOW, "filter": kernel, "out_backprop": images}, window
    yield of_input, {"input_sizes": -np.int32(images.shape), "filter": kernel, "out_backprop": images}, window
    yield of_input, {"input_sizes": np.int32(images.shape), "filter": kernel, "out_backprop": NUMBERS}, window


def misfits() -> Iterator[tuple[str, dict, dict]]:
    """Operands that end the process without a guard: the operation, its operands and its attributes."""
    yield "Conv2D", {"input": NUMBERS, "filter": np.ones([2, 2, 1, 1], np.float32)}, WINDOW2
    yield "Conv2D", {"input": IMAGES, "filter": NUMBERS}, WINDOW2
    yield "DepthwiseConv2dNative", {"input": NUMBERS, "filter": np.ones([2, 2, 1, 1], np.float32)}, WINDOW2
    yield "Conv3D", {"input": NUMBERS, "filter": np.ones([2, 2, 2, 1, 1], np.float32)}, WINDOW3
    yield from _gradients(4, IMAGES, WINDOW2, ("Conv2DBackpropFilter", "Conv2DBackpropInput"))
    yield from _gradients(5, VOLUMES, WINDOW3, ("Conv3DBackpropFilterV2", "Conv3DBackpropInputV2"))
    names = [f"DepthwiseConv2dNativeBackprop{of}" for of in ("Filter", "Input")]
    yield from _gradients(4, IMAGES, WINDOW2, (names[0], names[1]))
    yield "AvgPoolGrad", {"orig_input_shape": NO_WINDOW, "grad": IMAGES}, {"ksize": [1, 2, 2, 1], **WINDOW2}
    yield "AvgPoolGrad", {"orig_input_shape": np.int32([1, 4, 4, 1]), "grad": NUMBERS}, {"ksize": [1] * 4, **WINDOW2}
    for shape in ([2, 4, 4, 1], [1, 4, 5, 1], [1, 4, 4, 2], [1, 0, 4, 1], [1, 3, 4, 1]):
        yield "AvgPoolGrad", {"orig_input_shape": np.int32(shape), "grad": IMAGES}, {"ksize": [1, 2, 2, 1], **WINDOW2}
    yield "AvgPool3DGrad", {"orig_input_shape": NO_WINDOW, "grad": VOLUMES}, {"ksize": [1] * 5, **WINDOW3}
    for rank in (1, 2, 3):
        nothing = {"fft_length": np.zeros([rank], np.int32)}
        which = f"{rank}D" if rank > 1 else ""
        yield f"RFFT{which}", {"input": np.ones([2] * rank, np.float32), **nothing}, {}
        nothing = {"fft_length": np.array([*[1] * (rank - 1), 0], np.int32)}
        yield f"IRFFT{which}", {"input": np.ones([2] * rank, np.complex64), **nothing}, {}
    for how in ("Add", "Max", "Min", "Sub", "Update"):
        yield f"TensorScatter{how}", {"tensor": np.ones([3, 2], np.float32), **SCATTERED}, {}
    yield "ScatterNd", {**SCATTERED, "shape": np.array([2], np.int32)}, {}
    yield "Case", {"branch_index": np.array([0, 1], np.int32)}, TWO_BRANCHES
    hashed = {"num_buckets": np.array([5, 5]), "strong_hash": np.array(False), "salt": np.array([1, 2])}
    yield "SparseCrossHashed", {**CROSSED, **hashed}, {}
    yield "Transpose", {"x": np.ones([2, 2], np.float32), "perm": np.zeros([1, 2], np.int32)}, {}
    for how in ("Add", "Div", "Max", "Min", "Mul", "Sub"):
        yield f"ResourceScatter{how}", {"indices": np.zeros([4000], np.int32)}, {}


def too_large() -> Iterator[tuple[str, dict, dict]]:
    """Operands that ask for more memory than there is."""
    yield "Fill", {"dims": HUGE, "value": np.float32(1)}, {}
    yield "BroadcastTo", {"input": np.float32(1), "shape": HUGE}, {}
    yield (
        "StridedSliceGrad",
        {"shape": HUGE, "begin": HUGE * 0, "end": HUGE, "strides": HUGE * 0 + 1, "dy": NUMBERS},
        {},
    )
    yield "Tile", {"input": NUMBERS, "multiples": np.array([2**40])}, {}
    yield (
        "OneHot",
        {"indices": IDS, "depth": np.int32(2**31 - 1), "on_value": np.float32(1), "off_value": np.float32(0)},
        {},
    )
    yield "Range", {"start": np.int64(0), "limit": np.int64(2**40), "delta": np.int64(1)}, {}
    yield "LinSpace", {"start": np.float32(0), "stop": np.float32(1), "num": np.int64(2**40)}, {}
    yield "Pad", {"input": NUMBERS, "paddings": np.array([[0, 2**40]])}, {}
    yield "PadV2", {"input": NUMBERS, "paddings": np.array([[0, 2**40]]), "constant_values": np.float32(0)}, {}
    yield "MirrorPad", {"input": NUMBERS, "paddings": np.array([[0, 2**40]])}, {"mode": "SYMMETRIC"}
    for how in ("Max", "Mean", "Min", "Prod", "Sum"):
        yield f"Segment{how}", {"data": NUMBERS, "segment_ids": np.array([0, 1, 2, 2**40])}, {}
    for how in ("Max", "Min", "Prod", "Sum"):
        operands = {"data": NUMBERS, "segment_ids": IDS, "num_segments": np.int64(2**40)}
        yield f"UnsortedSegment{how}", operands, {}
    text = np.array([b"a"] * 4, object)
    yield "UnsortedSegmentJoin", {"inputs": text, "segment_ids": IDS, "num_segments": np.int64(2**40)}, {}
    for how in ("Mean", "SqrtN", "Sum"):
        last = {**SPARSE, "segment_ids": np.array([0, 1, 2, 2**40])}
        yield f"SparseSegment{how}", last, {}
        yield f"SparseSegment{how}WithNumSegments", {**SPARSE, "num_segments": np.int64(2**40)}, {}
    yield "ScatterNd", {"indices": np.array([[0]]), "updates": NUMBERS[:1], "shape": np.array([2**40])}, {}
    yield (
        "SparseToDense",
        {
            "sparse_indices": np.array([0]),
            "output_shape": np.array([2**40]),
            "sparse_values": NUMBERS[:1],
            "default_value": np.float32(0),
        },
        {},
    )
    for op in ("ResizeArea", "ResizeBicubic", "ResizeBilinear", "ResizeNearestNeighbor"):
        yield op, {"images": IMAGES, "size": LARGE32}, {}
    for version in ("", "V2"):
        for how in ("Normal", "Uniform", "UniformFullInt"):
            dtype = {"dtype": tf.int32} if how.endswith("Int") else {}
            yield f"StatelessRandom{how}{version}", {"shape": HUGE, **(KEY if version else SEED)}, dtype
        bounds = {"minval": np.int32(0), "maxval": np.int32(5)}
        yield f"StatelessRandomUniformInt{version}", {"shape": HUGE, **(KEY if version else SEED), **bounds}, {}
        yield f"StatelessTruncatedNormal{version}", {"shape": HUGE, **(KEY if version else SEED)}, {}
    yield (
        "TensorListReserve",
        {"element_shape": IDS[:0], "num_elements": np.int32(2**31 - 1)},
        {"element_dtype": tf.float32},
    )
    yield "Bincount", {"arr": IDS, "size": np.int32(2**31 - 1), "weights": NUMBERS}, {}
    yield "MatrixDiagV2", {**DIAGONAL, "num_rows": np.int32(2**30)}, {}
    yield "MatrixDiagV3", {**DIAGONAL, "num_rows": np.int32(2**30)}, {}
    yield (
        "CropAndResize",
        {
            "image": IMAGES,
            "boxes": np.ones([1, 4], np.float32),
            "box_ind": np.zeros([1], np.int32),
            "crop_size": LARGE32,
        },
        {},
    )


def _operation(op: str, names: list[str], attributes: dict) -> Callable:
    def call(operands):
        if op.startswith("ResourceScatter"):
            table = tf.Variable(tf.zeros([0]), shape=[None])
            updates = tf.fill(tf.shape(operands[0]), 2.0)
            scatter = getattr(tf.raw_ops, op)(resource=table.handle, indices=operands[0], updates=updates)
            with tf.control_dependencies([scatter]):
                return tf.size(table)
        keywords: dict = {name.split("/")[0]: [] for name in names if "/" in name}
        for name, operand in zip(names, operands, strict=True):
            if "/" in name:
                keywords[name.split("/")[0]].append(operand)
            else:
                keywords[name] = operand
        result = getattr(tf.raw_ops, op)(**{"dense_inputs": []} if "Cross" in op else {}, **keywords, **attributes)
        tensors = result if isinstance(result, list | tuple) else [result]
        return [
            tf.raw_ops.TensorListLength(input_handle=t) if t.dtype == tf.variant else tf.identity(t) for t in tensors
        ]

    return call


def cases(single: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """The name of each case, and what runs it: with all, with no, and of misfits with a single shape known."""
    small = [(*case, True) for case in misfits()]
    for number, (op, operands, attributes, misfit) in enumerate((*small, *((*case, False) for case in too_large()))):
        flat = {}
        for name, value in operands.items():
            if isinstance(value, list):
                flat.update({f"{name}/{i}": v for i, v in enumerate(value)})
            else:
                flat[name] = value
        names = list(flat)
        values = [np.asarray(v) for v in flat.values()]
        fn = _operation(op, names, attributes)
        count = len(values)
        chosen = range(count) if single == "each" else [number % count]
        singles = [[i == k for i in range(count)] for k in chosen] if misfit and count > 1 else []
        ends = [True, False] if misfit or single == "each" else [number % 2 == 0]  # sizes are values, not shapes
        for known in (*([end] * count for end in ends), *singles):
            types = [
                fc.TensorType(tf.as_dtype(v.dtype), v.shape if k else None) for v, k in zip(values, known, strict=True)
            ]

            def run(types=types, values=values, fn=fn):
                parameter = fc.to_type(tuple(types))
                return fc.tf_computation(fn, parameter)(tuple(values))

            shown = ", ".join(n for n, k in zip(names, known, strict=True) if k) or "none"
            yield f"{op} with known shapes: {shown}", run


def main(first: int, single: str) -> None:
    for number, (name, run) in enumerate(cases(single)):
        if number < first:
            continue
        print("at", number, name, flush=True)
        try:
            run()
        except Exception as error:
            print("error", (str(error).splitlines() or [""])[0], flush=True)
        else:
            print("ran", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
