"""Graphs of one operation whose operands almost fit: a size, an axis, a number or an attribute is another.

Operands that are drawn at random seldom reach a kernel, which refuses most of them. `near_operands.py COUNT [OP ...]`
prints which cases killed a process, as `dying.py` does.
"""

import functools
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence

import dying
import numpy as np
import tensorflow as tf
from operations import DTYPE_NAMES, Case, Drawing
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.framework import op_def_registry

from fedcore.errors import FedcoreError
from fedcore.graphs.graphdef.analysis import op_classes
from fedcore.testing.operand_search import OperandsNotFound, find_operands
from fedcore.types import TensorType

_FIELDS = {"int": "i", "float": "f", "bool": "b", "string": "s", "type": "type"}

Fit = tuple[Mapping[str, object], Sequence[np.ndarray]]
"""Attributes and operands that TensorFlow takes."""

STEPS = {"T": tf.float32, "strides": [1] * 4, "dilations": [1] * 4, "padding": b"SAME", "data_format": b"NHWC"}
KERNEL = np.ones([2, 2, 2, 3], np.float32)
IMAGES, WINDOW = np.ones([2, 2, 2, 2], np.float32), {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": b"SAME"}
DECLARED: dict[str, Fit] = {
    "AvgPoolGrad": ({"T": tf.float32, **WINDOW}, [np.int32([2, 4, 4, 2]), IMAGES]),
    "MaxPoolGrad": ({"T": tf.float32, **WINDOW}, [np.ones([2, 4, 4, 2], np.float32), IMAGES, IMAGES]),
    "ExtractImagePatches": (
        {"T": tf.float32, "ksizes": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "rates": [1, 2, 2, 1], "padding": b"SAME"},
        [np.ones([2, 4, 4, 2], np.float32)],
    ),
    "Conv2D": (
        {**STEPS, "padding": b"EXPLICIT", "explicit_paddings": [0, 0, 1, 1, 1, 1, 0, 0]},
        [np.ones([2, 4, 4, 2], np.float32), KERNEL],
    ),
    "Conv2DBackpropFilter": (
        STEPS,
        [np.ones([2, 4, 4, 2], np.float32), np.int32(KERNEL.shape), np.ones([2, 4, 4, 3], np.float32)],
    ),
    "Conv3DBackpropFilterV2": (
        {"T": tf.float32, "strides": [1] * 5, "dilations": [1] * 5, "padding": b"SAME", "data_format": b"NDHWC"},
        [np.ones([1, 4, 4, 4, 2], np.float32), np.int32([2, 2, 2, 2, 3]), np.ones([1, 4, 4, 4, 3], np.float32)],
    ),
}
"""Of operations for which the search finds none, or takes long."""


def fits(op: str) -> list[Fit]:
    """Operands and attributes of some ranks and dtypes."""
    if op in DECLARED:
        return [DECLARED[op]]
    try:
        return [(m.attributes, [c.array for c in m.candidates]) for m in find_operands(op)]
    except OperandsNotFound:
        return []


def neighbours(fit: Fit, rng: random.Random) -> list[Fit]:
    """The operands with another in one place, and the attributes with another, in random order."""
    attributes, arrays = fit
    near: list[Fit] = []
    for i, array in enumerate(arrays):
        near += [(attributes, [*arrays[:i], other, *arrays[i + 1 :]]) for other in _other_arrays(array)]
    for name, value in attributes.items():
        near += [({**attributes, name: other}, arrays) for other in _other_attributes(value)]
    rng.shuffle(near)
    return near


def _other_arrays(array: np.ndarray) -> Iterator[np.ndarray]:
    """Other sizes and ranks; of a few integers other numbers."""
    for axis in range(array.ndim):
        size = array.shape[axis]
        for rows in (range(size - 1), range(0), [*range(size), 0], [0] * (3 * size + 2)):
            yield np.take(array, rows, axis, mode="clip") if size else array
    yield from (array[None], array[..., None], array.reshape(-1))
    if array.dtype.kind in "iu" and array.size <= 8:
        for index in np.ndindex(array.shape):
            for number in (int(array[index]) + 1, int(array[index]) - 1, 0, 100, np.iinfo(array.dtype).max):
                other = array.copy()
                other[index] = max(number, np.iinfo(array.dtype).min)
                yield other


def _other_attributes(value: object) -> Iterator[object]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value - 1, 0, 2**31 - 1)
    elif isinstance(value, bytes):
        yield from (b"SAME", b"VALID", b"NCHW", b"NHWC")
    elif isinstance(value, list) and value and isinstance(value[0], int):
        yield from (value[:-1], [])
        for i, number in enumerate(value):
            yield from ([*value[:i], other, *value[i + 1 :]] for other in (number + 1, 0, 7, 2**31 - 1, 2**31))


class _Near(Drawing):
    """A graph with these attributes and operands; each operand is an argument of unknown shape."""

    def __init__(self, op: str, fit: Fit) -> None:
        super().__init__(random.Random(op), op_def_registry.get(op))
        self.fit = fit

    def _attribute(self, attr) -> attr_value_pb2.AttrValue:
        return _attribute_proto(self.fit[0][attr.name], attr.type) if attr.name in self.fit[0] else attr.default_value

    def _operand(self, dtype: int) -> str:
        self.arguments.append(TensorType(DTYPE_NAMES[dtype], None))
        return f"arg{len(self.arguments) - 1}"

    def _values(self) -> tuple:
        return tuple(self.fit[1])


def _attribute_proto(value, kind: str) -> attr_value_pb2.AttrValue:
    if kind in ("shape", "list(shape)", "tensor", "func", "list(func)"):
        raise FedcoreError(f"an attribute is a {kind}")
    is_list = kind.startswith("list(")
    field = _FIELDS[kind.removeprefix("list(").removesuffix(")")]
    values = [tf.as_dtype(v).as_datatype_enum if field == "type" else v for v in (value if is_list else [value])]
    if is_list:
        return attr_value_pb2.AttrValue(list=attr_value_pb2.AttrValue.ListValue(**{field: values}))
    return attr_value_pb2.AttrValue(**{field: values[0]})


def near_case(op: str, seed: int) -> Case:
    """The case of that number among those near operands that fit; the first fits."""
    return _Near(op, _cases(op)[seed % len(_cases(op))]).case()


@functools.cache
def _cases(op: str) -> list[Fit]:
    rng = random.Random(op)
    fitting = fits(op)
    return fitting[:1] + [other for fit in fitting for other in neighbours(fit, rng)]


def main() -> None:
    """COUNT cases of each operation, or of all that are allowed."""
    count, *ops = sys.argv[1:]
    named = [op for op in ops or sorted(op_classes._allowed_operations()) if _cases(op)]  # before any fork
    survey = dying.survey(named, range(int(count)), case=near_case, say=lambda d: print(json.dumps(d), flush=True))
    print(json.dumps({"outcomes": survey["outcomes"], "seconds": survey["seconds"], "deaths": len(survey["deaths"])}))


if __name__ == "__main__":
    main()
