"""Rewrites the random operations of a traced graph to functions of the graph's implicit seed.

TensorFlow's stateful random operations keep a counter in the process, so two runs give different numbers. The graph is
rewritten in place.

In:  a traced GraphDef, and the name of the placeholder of its implicit seed (an int64 scalar).
Out: the GraphDef without stateful random operations:
     - Each random operation is stateless. Its seed (int64 [2]) is the implicit seed folded with a number: the
       operation's position among the random operations of its function, or the operation seed that the user set.
     - A constant with a default seed of Keras, [2], is the implicit seed folded with it.
     - A function that contains random operations, or calls such a function, takes a seed as its last argument.
     - The body of a loop also returns the seed of the next iteration.
     - A call of a function without stateful operations is a stateless call.

Example: the second random operation of a graph, before and after the rewrite.

    name: "u" op: "RandomUniform" input: "shape" attr: seed=0, seed2=0, dtype=float32, T=int32

    name: "fedcore_number_7" op: "Const" attr: value=2
    name: "fedcore_pair_8" op: "PartitionedCall" input: "seed" input: "fedcore_number_7" attr: f=[fold_in(seed, 2), 0]
    name: "u" op: "StatelessRandomUniform" input: "shape" input: "fedcore_pair_8" attr: dtype=float32, Tseed=int64

Operations for which the user set equal seeds give equal numbers within one call of their function.

Decision 0003.
"""

from collections.abc import Callable, Iterable

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, function_pb2, graph_pb2, node_def_pb2, types_pb2

from fedcore.errors import TracingError
from fedcore.graphs import private_api
from fedcore.graphs.capture.keras_seeds import is_default_seed
from fedcore.graphs.graphdef.analysis.side_effects import (
    STATELESS_CALL,
    TiedToProcess,
    is_stateful,
)
from fedcore.graphs.graphdef.form.canonical_form import Nodes
from fedcore.graphs.graphdef.form.function_calls import BRANCHES, CALLS, LOOPS, callees, functions_with
from fedcore.graphs.tensors.tensor_seeds import fold_in
from fedcore.lru_cache import LruCache

_INT64 = types_pb2.DT_INT64
_SEEDED_BY_OP = 87654321  # TensorFlow's attribute `seed` of an operation for which the user set a seed

# Stateful operation -> (its stateless form, the position of the seed operand, renamed attributes).
_DIRECT: dict[str, tuple[str, int, dict[str, str]]] = {
    "RandomUniform": ("StatelessRandomUniform", 1, {}),
    "RandomStandardNormal": ("StatelessRandomNormal", 1, {}),
    "TruncatedNormal": ("StatelessTruncatedNormal", 1, {}),
    "RandomUniformInt": ("StatelessRandomUniformInt", 1, {"Tout": "dtype"}),
    "Multinomial": ("StatelessMultinomial", 2, {}),
}

# Stateful operation without a stateless form -> a function (seed, *inputs, dtype of the result) -> result.
_BY_FUNCTION: dict[str, Callable] = {
    "RandomShuffle": lambda seed, value, dtype: tf.random.experimental.stateless_shuffle(value, seed),
    "RandomGamma": lambda seed, shape, alpha, dtype: tf.random.stateless_gamma(
        tf.concat([shape, tf.shape(alpha, shape.dtype)], 0), seed, alpha, dtype=dtype
    ),
    "RandomPoissonV2": lambda seed, shape, rate, dtype: tf.random.stateless_poisson(
        tf.concat([shape, tf.shape(rate, shape.dtype)], 0), seed, rate, dtype
    ),
    "NonDeterministicInts": lambda seed, shape, dtype: tf.random.stateless_uniform(shape, seed, None, None, dtype),
}
# The attribute with the dtype of the result, and the attributes with the dtypes of the inputs (default: T).
_RESULT_DTYPE = {"RandomPoissonV2": "dtype", "NonDeterministicInts": "dtype", "RandomGamma": "T", "RandomShuffle": "T"}
_INPUT_DTYPES = {"RandomPoissonV2": ("S", "R"), "NonDeterministicInts": ("shape_dtype",), "RandomGamma": ("S", "T")}
_REFUSED = frozenset(
    {
        *(
            "ParameterizedTruncatedNormal",
            "RandomPoisson",
            "SampleDistortedBoundingBox",
            "SampleDistortedBoundingBoxV2",
        ),
        *("UniformCandidateSampler", "LogUniformCandidateSampler", "LearnedUnigramCandidateSampler"),
        *("ThreadUnsafeUnigramCandidateSampler", "FixedUnigramCandidateSampler", "AllCandidateSampler"),
    }
)


def seed_random_operations(graph_def: graph_pb2.GraphDef, seed: str, describe: str) -> None:
    """Rewrites the graph's random operations, in place, to functions of the placeholder `seed` (int64).

    Raises:
        TracingError: a random operation has no stateless form, or its function is called by an operation that cannot
            pass a seed.
    """
    _Seeding(graph_def, describe).run(seed)


class _Seeding:
    """The rewrite of one graph.

    Attributes:
        functions: the library's functions as they were traced.
        random_functions: names of the functions that contain random operations, or call such a function.
        added: names of new library functions, by key.
    """

    def __init__(self, graph_def: graph_pb2.GraphDef, describe: str) -> None:
        self.graph_def = graph_def
        self.describe = describe
        self.functions = {f.signature.name: f for f in graph_def.library.function}
        for nodes in (graph_def.node, *(f.node_def for f in graph_def.library.function)):
            _mark_unseeded(nodes)
        self.random_functions = functions_with(graph_def.library.function, self.is_random)
        self.added: dict[str, str] = {}

    def is_random(self, node: node_def_pb2.NodeDef) -> bool:
        """Whether a node draws, or holds a default seed of Keras.

        Raises:
            TiedToProcess: it has no form with a seed.
        """
        if node.op in _REFUSED:
            raise TiedToProcess(
                f"{self.describe} draws with the op {node.op}, which has no form with a seed. Use tf.random.uniform, "
                "normal, truncated_normal, shuffle, categorical, gamma or poisson"
            )
        if node.op in _DATASETS:
            return _UNSEEDED in node.attr
        return node.op in _DIRECT or node.op in _BY_FUNCTION or _default_seed(node) is not None

    def run(self, seed: str) -> None:
        rewritten = _Body(self, self.graph_def.node, seed, in_function=False)
        rewritten.run()
        if rewritten.count:
            self._make_calls_stateless()

    def _make_calls_stateless(self) -> None:
        """Makes the calls of functions stateless that contain no stateful operation after the rewrite."""
        stateful = functions_with(self.graph_def.library.function, lambda node: is_stateful(node.op))
        for function in self.graph_def.library.function:
            if function.signature.name not in stateful:
                function.signature.is_stateful = False
        bodies = [self.graph_def.node, *(f.node_def for f in self.graph_def.library.function)]
        for node in (n for body in bodies for n in body):
            if node.op in STATELESS_CALL and not stateful.intersection(callees(node)):
                node.op = STATELESS_CALL[node.op]

    def add_seeded_function(self, name: str, *, loop: bool = False) -> str:
        """The name of the function with the seed as its last argument.

        Args:
            loop: the function is the body of a loop, which also returns the seed of the next iteration.
        """
        key = f"{name}_{'loop' if loop else 'draws'}"
        if key in self.added:
            return self.added[key]
        self.added[key] = key
        function = self.graph_def.library.function.add()
        function.CopyFrom(self.functions[name])
        function.signature.name = key
        function.signature.input_arg.add(name="fedcore_seed", type=_INT64)
        body = _Body(self, function.node_def, "fedcore_seed", in_function=True)
        body.run()
        if loop:
            function.signature.output_arg.add(name="fedcore_seed_after", type=_INT64)
            function.ret["fedcore_seed_after"] = body.fold_seed(0)
        return key

    def library_function(self, key: str, fn: Callable, specs: list[tf.TensorSpec]) -> str:
        """Adds a traced Python function to the graph's library; returns its name. Equal keys mean equal functions."""
        if key not in self.added:
            functions = _functions.get(key, lambda: _trace(fn, specs))
            self.graph_def.library.function.extend(functions)
            self.added[key] = functions[0].signature.name
        return self.added[key]


_functions: LruCache[str, list[function_pb2.FunctionDef]] = LruCache(256)
"""By key of `library_function` the function and those that it calls."""


def _trace(fn: Callable, specs: list[tf.TensorSpec]) -> list[function_pb2.FunctionDef]:
    """A Python function as a library function, first, and the functions that it calls."""
    with private_api.quick_operations():
        concrete = tf.function(fn, autograph=False).get_concrete_function(*specs)
    definition = function_pb2.FunctionDef.FromString(concrete.function_def.SerializeToString())
    return [definition, *concrete.graph.as_graph_def().library.function]


_DATASETS = {"ShuffleDatasetV3": 2, "RandomDatasetV2": 0}
"""Random operation of datasets -> position of the first of its two seed operands; two zeros mean no seed."""

_UNSEEDED = "_fedcore_unseeded"
"""Attribute that marks random operations of datasets without a seed."""


def _mark_unseeded(nodes: Iterable[node_def_pb2.NodeDef]) -> None:
    """Marks the random operations of datasets whose seeds are two constant zeros."""
    zeros = {n.name for n in nodes if n.op == "Const" and n.attr["dtype"].type == _INT64 and _is_zero(n)}
    for node in nodes:
        position = _DATASETS.get(node.op)
        if position is not None and all(node.input[position + i].split(":")[0] in zeros for i in (0, 1)):
            node.attr[_UNSEEDED].b = True


def _is_zero(node: node_def_pb2.NodeDef) -> bool:
    return not tf.make_ndarray(node.attr["value"].tensor).any()


def _default_seed(node: node_def_pb2.NodeDef) -> int | None:
    """Keras' default seed, if the node is a constant that holds such a seed; else None."""
    if node.op != "Const" or node.attr["dtype"].type not in (types_pb2.DT_UINT32, types_pb2.DT_INT32, _INT64):
        return None
    tensor = node.attr["value"].tensor
    if [d.size for d in tensor.tensor_shape.dim] != [2]:
        return None
    first, second = tf.make_ndarray(tensor).tolist()
    return first if second == 0 and is_default_seed(first) else None


def _fold(seed: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    return fold_in(seed, number)


def _pair(seed: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    """The seed folded with a number, int64 [2]; see `_Body.pair`."""
    return tf.stack([fold_in(seed, number), tf.constant(0, tf.int64)])


class _Body:
    """The rewrite of one body, of the graph or of a function.

    Args:
        owner: the rewrite of the whole graph.
        nodes: the body's, edited in place.
        seed: the name of the tensor of the body's seed, an int64 scalar.
        in_function: whether the body is a function's, in which tensors are named `node:output:index`.
    Attributes:
        count: number of random operations, and of calls of random functions, so far.
    """

    def __init__(
        self,
        owner: _Seeding,
        nodes: Nodes,
        seed: str,
        *,
        in_function: bool,
    ) -> None:
        self.owner = owner
        self.nodes = nodes
        self.seed = seed
        self.in_function = in_function
        self.count = 0

    def run(self) -> None:
        """Rewrites the random operations and the calls of random functions, in the order of the nodes."""
        for node in list(self.nodes):
            if self.owner.is_random(node):
                self.count += 1
                default = _default_seed(node)
                if node.op in _DATASETS:
                    self._seed_dataset(node)
                elif default is None:
                    self._make_stateless(node, self.pair(self._number(node)))
                else:
                    self._fold_keras_seed(node, default)
            elif self.owner.random_functions.intersection(callees(node)):
                self.count += 1
                self._pass_seed(node)

    def _number(self, node: node_def_pb2.NodeDef) -> int:
        """The number to fold: the operation's position, or for a seed of the user one above all positions."""
        if node.attr["seed"].i == _SEEDED_BY_OP:
            return (1 << 40) + node.attr["seed2"].i
        return self.count

    def _output(self, name: str) -> str:
        """The name of the tensor that a node adds to the body, for readers."""
        return f"{name}:output:0" if self.in_function else name

    def _constant(self, number: int) -> str:
        """Adds an int64 constant; returns the name of its tensor."""
        name = f"fedcore_number_{len(self.nodes)}"
        node = self.nodes.add(name=name, op="Const")
        node.attr["dtype"].type = _INT64
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(number, tf.int64))
        return self._output(name)

    def _add_call(self, key: str, fn: Callable, number: int) -> str:
        """Adds a call of fn(seed, number), where `key` stands for fn; returns the name of the result."""
        specs = [tf.TensorSpec([], tf.int64)] * 2
        name = f"fedcore_{key}_{len(self.nodes)}"
        inputs = [self.seed, self._constant(number)]
        node = self.nodes.add(name=name, op="PartitionedCall", input=inputs)
        _as_call(node, self.owner.library_function(key, fn, specs), [_INT64, _INT64], _INT64)
        return self._output(name)

    def fold_seed(self, number: int) -> str:
        """The body's seed folded with a number: an int64 scalar."""
        return self._add_call("folded", _fold, number)

    def pair(self, number: int) -> str:
        """The body's seed folded with a number, as int64 [2]: the form that stateless operations take."""
        return self._add_call("pair", _pair, number)

    def _seed_dataset(self, node: node_def_pb2.NodeDef) -> None:
        """Sets both seeds of a random dataset operation, by numbers that `_number` does not give."""
        del node.attr[_UNSEEDED]
        for i in (0, 1):
            node.input[_DATASETS[node.op] + i] = self.fold_seed((2 << 40) + 2 * self.count + i)

    def _make_stateless(self, node: node_def_pb2.NodeDef, pair: str) -> None:
        """Turns a random operation into a stateless one, or a call of a function, that draws with the seed `pair`."""
        data = [i for i in node.input if not i.startswith("^")]
        control = [i for i in node.input if i.startswith("^")]
        if node.op in _BY_FUNCTION:
            self._make_call(node, data, control, pair)
            return
        op, position, renamed = _DIRECT[node.op]
        attributes = {k: node.attr[k] for k in node.attr if k not in ("seed", "seed2") and not k.startswith("_")}
        attributes = {renamed.get(k, k): _copy(v) for k, v in attributes.items()}
        node.op = op
        node.attr.clear()
        for key, value in attributes.items():
            node.attr[key].CopyFrom(value)
        node.attr["Tseed"].type = _INT64
        data.insert(position, pair)
        _set_inputs(node, [*data, *control])

    def _make_call(self, node: node_def_pb2.NodeDef, data: list[str], control: list[str], pair: str) -> None:
        """Turns an operation of `_BY_FUNCTION` into a call of its function.

        Args:
            data, control: the node's inputs, apart.
        """
        op, fn = node.op, _BY_FUNCTION[node.op]
        result = node.attr[_RESULT_DTYPE[op]].type
        types = [node.attr[a].type for a in _INPUT_DTYPES.get(op, ("T",))]
        dtype = tf.as_dtype(result)
        specs = [tf.TensorSpec([2], tf.int64), *(tf.TensorSpec(None, t) for t in types)]
        if op != "RandomShuffle":
            specs[1] = tf.TensorSpec([None], types[0])
        name = self.owner.library_function(
            f"{op}{types}{result}", lambda seed, *inputs: fn(seed, *inputs, dtype=dtype), specs
        )
        node.op = "PartitionedCall"
        node.attr.clear()
        _as_call(node, name, [_INT64, *types], result)
        _set_inputs(node, [pair, *data, *control])

    def _fold_keras_seed(self, node: node_def_pb2.NodeDef, default: int) -> None:
        """Replaces a constant with a default seed of Keras (`keras_seeds.py`) by the implicit seed folded with it."""
        dtype = tf.as_dtype(node.attr["dtype"].type)

        def state(seed: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
            folded = fold_in(seed, number)
            return tf.stack([folded, tf.constant(0, tf.int64)]) if dtype == tf.int64 else tf.bitcast(folded, dtype)

        control = [i for i in node.input if i.startswith("^")]
        specs = [tf.TensorSpec([], tf.int64)] * 2
        name = self.owner.library_function(f"state{dtype.name}", state, specs)
        node.op = "PartitionedCall"
        node.attr.clear()
        _as_call(node, name, [_INT64, _INT64], dtype.as_datatype_enum)
        _set_inputs(node, [self.seed, self._constant(default), *control])

    def _pass_seed(self, node: node_def_pb2.NodeDef) -> None:
        """Has the node pass a seed to the functions that it calls."""
        data = [i for i in node.input if not i.startswith("^")]
        control = [i for i in node.input if i.startswith("^")]
        seed = self.fold_seed(self.count)
        if node.op in CALLS:
            node.attr["f"].func.name = self.owner.add_seeded_function(node.attr["f"].func.name)
            node.attr["Tin"].list.type.append(_INT64)
        elif node.op in BRANCHES:
            for branch in ("then_branch", "else_branch"):
                node.attr[branch].func.name = self.owner.add_seeded_function(node.attr[branch].func.name)
            node.attr["Tin"].list.type.append(_INT64)
        elif node.op in ("Case", "StatelessCase"):
            for branch in node.attr["branches"].list.func:
                branch.name = self.owner.add_seeded_function(branch.name)
            node.attr["Tin"].list.type.append(_INT64)
        elif node.op in LOOPS:
            node.attr["cond"].func.name = self.owner.add_seeded_function(node.attr["cond"].func.name)
            node.attr["body"].func.name = self.owner.add_seeded_function(node.attr["body"].func.name, loop=True)
            node.attr["T"].list.type.append(_INT64)
            if node.attr["output_shapes"].list.shape:
                node.attr["output_shapes"].list.shape.add()
        else:
            raise TracingError(
                f"{self.owner.describe} draws random numbers in a function of the op {node.op}, which passes no "
                "seed on. Draw outside of it, or use tf.map_fn, tf.while_loop or tf.cond"
            )
        _set_inputs(node, [*data, seed, *control])


def _copy(message: attr_value_pb2.AttrValue) -> attr_value_pb2.AttrValue:
    copied = type(message)()
    copied.CopyFrom(message)
    return copied


def _set_inputs(node: node_def_pb2.NodeDef, inputs: list[str]) -> None:
    del node.input[:]
    node.input.extend(inputs)


def _as_call(node: node_def_pb2.NodeDef, function: str, types: list[int], result: int) -> None:
    """Sets the attributes of a PartitionedCall: the function's name, and the dtypes of operands and result."""
    node.attr["f"].func.name = function
    node.attr["Tin"].list.type.extend(types)
    node.attr["Tout"].list.type.append(result)
