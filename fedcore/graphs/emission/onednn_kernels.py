"""Functions with the kernels of oneDNN, on processors for which TensorFlow chooses other ones.

TensorFlow has two kernels for an operation such as Conv2D: its own, and that of oneDNN, which is an operation of
another name with the same operands. On processors without VNNI instructions it takes its own, unless a variable is set
before TensorFlow is imported. A plan's attribute `kernels=onednn` says that the functions of a stage have oneDNN's.

    Conv2D, its gradients       _MklNativeConv2D, …
    Conv2D, BiasAdd, Relu       _MklNativeFusedConv2D, where nothing else reads the tensors between
    MaxPool, MaxPoolGrad        _MklNativeMaxPool, which hands the places of the maxima to its gradient
    MatMul, BatchMatMulV2       _MklMatMul, _MklBatchMatMulV2

oneDNN's kernels for images are wrong where there are none: TensorFlow 2.21 returns tensors of a wrong shape, or ends
the process. So they get an image of zeros in this case, which is removed behind them. Otherwise this copies nothing.
Gradients of kernels with strides, and depthwise convolutions, keep TensorFlow's: on AVX2, oneDNN's write outside of
their memory for some shapes, such as one image of 8 x 10 x 5, a kernel of 1 x 1 x 5 x 1, and strides of 2.

Example: on AVX2, the gradient of 64 kernels of 5 x 5 x 32 for 20 images takes 6.5 ms with TensorFlow's kernel, and
3.0 ms with oneDNN's.

The rewrites are no patterns of regions: they change functions that TensorFlow has traced, in which loops are cycles.

Decision 0198.
"""

import collections
from collections.abc import Iterator

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, function_pb2, node_def_pb2, types_pb2

PRODUCTS = {"MatMul": "_MklMatMul", "BatchMatMulV2": "_MklBatchMatMulV2"}
"""By operation of TensorFlow: oneDNN's, which takes the same operands and attributes."""

FORWARD, OF_KERNEL, OF_IMAGES = "", "BackpropFilter", "BackpropInput"
CONVOLUTIONS = {f"Conv2D{kind}": f"_MklNativeConv2D{kind}" for kind in (FORWARD, OF_KERNEL, OF_IMAGES)}
"""By convolution of TensorFlow, or gradient of one: oneDNN's."""

FUSED, POOL, POOL_GRADIENT = "_MklNativeFusedConv2D", "_MklNativeMaxPool", "_MklNativeMaxPoolGrad"

REPLACED = frozenset({*PRODUCTS, *CONVOLUTIONS, "MaxPool"})
"""Operations of TensorFlow that a function with oneDNN's kernels has others for."""

_LABEL = b"MklNameChangeOp"
"""The label of the kernels whose operands are ordinary tensors."""

_WINDOW = ("T", "ksize", "strides", "padding", "explicit_paddings", "data_format")


def with_onednn_kernels(function: function_pb2.FunctionDef) -> bool:
    """Gives the operations of a function oneDNN's kernels; returns whether there were any."""
    has_kernels = any(n.op in REPLACED and _has_kernel(n) for n in function.node_def)
    if has_kernels:
        _fuse(function)
        for node in function.node_def:
            if node.op in PRODUCTS and _has_kernel(node):
                _rename(node, PRODUCTS[node.op])
        _ImageOperations(function).rewrite()
    return has_kernels


def called_functions(function: function_pb2.FunctionDef) -> Iterator[attr_value_pb2.NameAttrList]:
    """The references to other functions, which may be changed; none to those that XLA compiles: it has no kernels."""
    for node in function.node_def:
        if "_XlaMustCompile" in node.attr and node.attr["_XlaMustCompile"].b:
            continue
        for value in node.attr.values():
            if value.HasField("func"):
                yield value.func
            yield from value.list.func


def _has_kernel(node: node_def_pb2.NodeDef) -> bool:
    """Whether oneDNN has a kernel for the type, the padding, the strides and the window of a node, and a safe one."""
    if node.attr["T"].type != types_pb2.DT_FLOAT:
        return False
    if "padding" in node.attr and node.attr["padding"].s == b"EXPLICIT":
        return False
    if node.op.endswith(OF_KERNEL) and any(s != 1 for s in node.attr["strides"].list.i):
        return False
    if "ksize" not in node.attr:
        return True
    window = [*node.attr["ksize"].list.i, *node.attr["strides"].list.i]
    channels = 1 if node.attr["data_format"].s == b"NCHW" else 3
    return all(window[i] == 1 for i in (0, channels, 4, 4 + channels))  # of rows and columns only


def _rename(node: node_def_pb2.NodeDef, op: str) -> None:
    """Makes a node an operation of oneDNN."""
    node.op = op
    node.attr["_kernel"].s = _LABEL


def _fuse(function: function_pb2.FunctionDef) -> None:
    """Makes one node of a convolution, its bias, and its ReLU if it has one."""
    nodes = function.node_def
    uses = collections.Counter(i for n in nodes for i in n.input)
    uses.update(function.ret.values())
    uses.update(f"^{name}" for name in function.control_ret.values())
    reads = {n.input[0]: n for n in nodes if n.op in ("BiasAdd", "Relu")}

    def only_reader(node: node_def_pb2.NodeDef, op: str) -> node_def_pb2.NodeDef | None:
        """The node that reads a node's result, if it is of a kind, and nothing else reads or waits for it."""
        result = f"{node.name}:output:0"
        reader = reads.get(result)
        alone = uses[result] == 1 and not uses[f"^{node.name}"]
        return reader if alone and reader is not None and reader.op == op else None

    renamed = {}
    for conv in [n for n in nodes if n.op == "Conv2D" and _has_kernel(n)]:
        bias = only_reader(conv, "BiasAdd")
        if bias is None or _data_format(bias) != _data_format(conv):
            continue
        relu = only_reader(bias, "Relu")
        parts = [n for n in (conv, bias, relu) if n is not None]
        last, operands = parts[-1], [*conv.input[:2], bias.input[1]]
        controls = [i for n in parts for i in n.input if i.startswith("^")]
        if relu is not None:
            renamed[f"{relu.name}:activations:0"] = f"{relu.name}:output:0"
        name, attributes = last.name, dict(conv.attr)
        last.Clear()
        last.name, last.device = name, conv.device
        last.input.extend([*operands, *dict.fromkeys(controls)])
        for key, value in attributes.items():
            last.attr[key].CopyFrom(value)
        last.attr["TArgs"].list.type.append(types_pb2.DT_FLOAT)
        last.attr["num_args"].i = 1
        last.attr["fused_ops"].list.s.extend([b"BiasAdd", b"Relu"][: len(parts) - 1])
        _rename(last, FUSED)
        for part in parts[:-1]:
            nodes.remove(part)
    _replace_tensors(function, renamed)


def _replace_tensors(function: function_pb2.FunctionDef, names: dict[str, str]) -> None:
    """Renames tensors that the nodes of a function read, and that it returns."""
    for node in function.node_def:
        node.input[:] = [names.get(i, i) for i in node.input]
    function.ret.update({key: names.get(tensor, tensor) for key, tensor in function.ret.items()})


def _data_format(node: node_def_pb2.NodeDef) -> bytes:
    return node.attr["data_format"].s or b"NHWC"


class _ImageOperations:
    """Gives oneDNN's kernels to the operations on images in a function.

    If there are no images, operands get one of zeros: `missing`, int32 [4], is the number of these, 1 or 0, and three
    zeros.
    """

    def __init__(self, function: function_pb2.FunctionDef) -> None:
        self._nodes, self._function = function.node_def, function
        self._missing: dict[str, tuple[str, str]] = {}  # by tensor of images; see `_missing_and_zeros`

    def rewrite(self) -> None:
        """Renames the operations, and adds the nodes that their kernels need before and behind them."""
        image_nodes = [
            n for n in self._nodes if n.op == FUSED or (n.op in (*CONVOLUTIONS, "MaxPool") and _has_kernel(n))
        ]
        pool_gradients = {n.name: self._gradients_of(n) for n in image_nodes if n.op == "MaxPool"}
        image_nodes += [g for gradients in pool_gradients.values() for g in gradients]
        names_of_results = [n.name for n in image_nodes if not n.op.endswith(OF_KERNEL)]
        # The readers of images read the result without the added one, which `_remove_added_image` computes.
        _replace_tensors(self._function, {f"{name}:output:0": f"{name}/kept:output:0" for name in names_of_results})
        for node in image_nodes:
            gives_images = not node.op.endswith(OF_KERNEL)
            images = node.input[2 if node.op.endswith(OF_IMAGES) else 0]
            if node.op == "MaxPool":
                node.attr["workspace_enabled"].b = bool(pool_gradients[node.name])
            elif node.op == "MaxPoolGrad":  # reads the pooling's whole result, and the places of the maxima
                pool = node.input[1].split(":")[0].removesuffix("/kept")
                node.input[1] = f"{pool}:output:0"
                node.input.insert(3, f"{pool}:workspace:0")
                node.attr["workspace_enabled"].b = True
            if node.op.endswith(OF_IMAGES):  # its first operand is the shape of its result
                terms = [node.input[0], self._missing_and_zeros(images)[0]]
                sizes = self._new("AddV2", f"{node.name}/sizes", terms, T="int32")
                node.input[0] = f"{sizes}:z:0"
            for i in _IMAGE_OPERANDS[node.op]:
                node.input[i] = self._at_least_one(node, i, images)
            _rename(node, _KERNELS.get(node.op, node.op))
            if gives_images:
                self._remove_added_image(node, images)

    def _gradients_of(self, pool: node_def_pb2.NodeDef) -> list[node_def_pb2.NodeDef]:
        """The gradients of a MaxPool, which read its operand and its result and have the same window."""
        operands = [pool.input[0], f"{pool.name}:output:0"]
        gradients = [n for n in self._nodes if n.op == "MaxPoolGrad" and list(n.input[:2]) == operands]
        return [g for g in gradients if all(g.attr[key] == pool.attr[key] for key in _WINDOW)]

    def _missing_and_zeros(self, images: str) -> tuple[str, str]:
        """The tensors `missing` of a tensor of images, and int32 [4] of zeros; their nodes are added once."""
        if images not in self._missing:
            name = f"{images.replace(':', '_')}/onednn"
            shape = self._new("Shape", f"{name}/shape", [images], T="float", out_type="int32")
            one_image = self._new("Const", f"{name}/one", [f"^{shape}"], dtype="int32", value=[1, 0, 0, 0])
            zeros = self._new("ZerosLike", f"{name}/zeros", [f"{shape}:output:0"], T="int32")
            fewer = self._new("Sub", f"{name}/fewer", [f"{one_image}:output:0", f"{shape}:output:0"], T="int32")
            missing = self._new("Maximum", f"{name}/missing", [f"{fewer}:z:0", f"{zeros}:y:0"], T="int32")
            self._missing[images] = f"{missing}:z:0", f"{zeros}:y:0"
        return self._missing[images]

    def _at_least_one(self, node: node_def_pb2.NodeDef, i: int, images: str) -> str:
        """The tensor of operand `i`, with an image of zeros if `images` has none."""
        missing, zeros = self._missing_and_zeros(images)
        name = f"{node.name}/onednn/{i}"
        paddings = self._new("Pack", f"{name}/paddings", [zeros, missing], T="int32", N=2, axis=1)
        padded = self._new("Pad", name, [node.input[i], f"{paddings}:output:0"], T="float", Tpaddings="int32")
        return f"{padded}:output:0"

    def _remove_added_image(self, node: node_def_pb2.NodeDef, images: str) -> None:
        """Removes the added image from a node's result."""
        missing, zeros = self._missing_and_zeros(images)
        result, name = f"{node.name}:output:0", f"{node.name}/kept"
        shape = self._new("Shape", f"{name}/shape", [result], T="float", out_type="int32")
        sizes = self._new("Sub", f"{name}/sizes", [f"{shape}:output:0", missing], T="int32")
        self._new("Slice", name, [result, zeros, f"{sizes}:z:0"], T="float", Index="int32")

    def _new(self, op: str, name: str, inputs: list[str], **attributes: str | int | list[int]) -> str:
        """The name of a new node.

        Args:
            attributes: names of types, whole numbers, and the list of a constant.
        """
        node = self._nodes.add(op=op, name=name, input=inputs)
        for key, value in attributes.items():
            if isinstance(value, str):
                node.attr[key].type = tf.as_dtype(value).as_datatype_enum
            elif isinstance(value, int):
                node.attr[key].i = value
            else:
                node.attr[key].tensor.CopyFrom(tf.make_tensor_proto(value, tf.int32))
        return name


_IMAGE_OPERANDS = {
    **dict.fromkeys((FUSED, "Conv2D", "MaxPool"), (0,)),
    **dict.fromkeys((f"Conv2D{OF_KERNEL}", "MaxPoolGrad"), (0, 2)),
    f"Conv2D{OF_IMAGES}": (2,),
}
"""By operation of TensorFlow its operands that are images, or gradients of them."""

_KERNELS = {**CONVOLUTIONS, "MaxPool": POOL, "MaxPoolGrad": POOL_GRADIENT}
