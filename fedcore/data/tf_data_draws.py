"""Random numbers and state in real `tf.data` pipelines, by inspection of their graphs.

`why_elements_vary` finds the pipelines whose elements may differ between iterations, which are never materialised.
`restart` copies a pipeline with new state, in which what TensorFlow would draw from the process follows a seed:

- the seeds of shuffles and random datasets without a seed, also in functions, such as those of `interleave`;
- random operations in functions, without a seed. Their kernels go on from one repetition to the next, and start with
  the iteration of the whole pipeline;
- the state of `tf.random.Generator` and of Keras' seed generators, such as those of augmentation layers.

A dataset that the pipeline reads in several places keeps one state, and each call of a function draws for itself.

What the pipeline itself fixes (a shuffle with `reshuffle_each_iteration=False`, everything before a cache, a random
dataset) depends on the data instead, so it is the same in all calls. Python functions and variables are not seeded.

Decisions 0213 and 0214.
"""

import collections
import hashlib
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping

import attrs
import tensorflow as tf
from tensorflow.core.framework import function_pb2, graph_pb2, node_def_pb2

from fedcore.graphs import private_api
from fedcore.graphs.graphdef.analysis.side_effects import is_stateful
from fedcore.graphs.graphdef.form.function_calls import callees, functions_with
from fedcore.seeds import fold_in

_OP_SEED = 87654321
"""TensorFlow's attribute `seed` of an operation for which the user set a seed, and no global one."""

_SEED_OPERANDS = {
    "ShuffleDataset": 2,
    "ShuffleDatasetV3": 2,
    "ShuffleAndRepeatDataset": 2,
    "ShuffleAndRepeatDatasetV2": 2,
    "RandomDataset": 0,
    "RandomDatasetV2": 0,
}
"""Random operation of datasets -> position of the first of its two seed operands."""

_STATE = {
    "ShuffleDatasetV3": (4, "DummySeedGenerator"),
    "ShuffleAndRepeatDatasetV2": (5, "DummySeedGenerator"),
    "RandomDatasetV2": (2, "DummySeedGenerator"),
    "CacheDatasetV2": (2, "DummyMemoryCache"),
}
"""Dataset operation -> position of its state operand, and the operation that creates new state."""

_CACHES = ("CacheDataset", "CacheDatasetV2")

_PYTHON = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc", "GeneratorDataset"})
"""Operations that call Python."""

_FILES = ("TFRecord", "TextLine", "FixedLengthRecord", "CSVDataset", "SqlDataset", "ReadFile", "MatchingFiles", "Load")
"""Beginnings of the names of operations that read files."""

_STATELESS = frozenset(
    {
        *("Print", "PrintV2", "Assert", "DummySeedGenerator", "DummyMemoryCache", "_Retval", "_Arg"),
        *("HashTableV2", "LookupTableImportV2"),
    }
)
"""Stateful operations that give equal results in every iteration."""

_VARIABLES = ("VarHandleOp", "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "RngReadAndSkip")

_reasons: "weakref.WeakKeyDictionary[tf.data.Dataset, str | None]" = weakref.WeakKeyDictionary()
"""Cache of `why_elements_vary`."""


def why_elements_vary(dataset: tf.data.Dataset) -> str | None:
    """Why the elements may differ between iterations of the dataset; None if they cannot. Cached while it lives."""
    if dataset not in _reasons:
        _reasons[dataset] = _why_elements_vary(dataset)
    return _reasons[dataset]


def _why_elements_vary(dataset: tf.data.Dataset) -> str | None:
    graph_def = graph_def_of(dataset)
    if graph_def is None:
        return "TensorFlow cannot describe it"
    reasons = (_why_it_varies(node) for node in _nodes(graph_def))
    return next((reason for reason in reasons if reason), None)


def draws(dataset: tf.data.Dataset) -> bool:
    """Whether the dataset draws random numbers, in a function or with the state of a generator too."""
    graph_def = graph_def_of(dataset)
    if graph_def is None:
        return True
    return any(map(_is_random, _nodes(graph_def))) or any(True for _ in _seed_variables(graph_def))


def _is_random(node: node_def_pb2.NodeDef) -> bool:
    return node.op in _SEED_OPERANDS or _takes_seeds(node)


def _why_it_varies(node: node_def_pb2.NodeDef) -> str | None:
    """Why the results of an operation may differ between iterations; None if they cannot."""
    if node.op in _PYTHON:
        return "it calls Python"
    if node.op.startswith(_FILES):
        return "it reads files"
    if _is_random(node):
        return "it draws random numbers"
    if node.op in _VARIABLES or node.op.startswith("Mutable"):
        return "it reads what may change"
    if is_stateful(node.op) and "Dataset" not in node.op and node.op not in _STATELESS:
        return f"the op {node.op} has state"
    return None


def has_seeds_of_its_own(fn: Callable, element_spec: object) -> bool:
    """Whether a function of an element has random operations for which the user set a seed."""
    with tf.Graph().as_default():  # without the global seed, which hides that of an operation
        variant = tf.compat.v1.placeholder(tf.variant, [])
        try:
            mapped = tf.data.experimental.from_variant(variant, element_spec).map(fn)
        except (TypeError, ValueError, RuntimeError, tf.errors.OpError):  # it needs what stands outside of the graph
            return False
        return any(
            _takes_seeds(node) and node.attr["seed"].i == _OP_SEED
            for graph_def in private_api.dataset_function_graphs(mapped)
            for node in _nodes(graph_def)
        )


def restart(dataset: tf.data.Dataset, seed: int) -> tf.data.Dataset:
    """A copy of the dataset with new state, whose draws follow the seed.

    A cache of Python's values, or of others that no seed decides, shares its memory with that of the dataset: the first
    complete iteration of either fills it. The dataset itself if a function assigns a variable.
    """
    graph_def = graph_def_of(dataset)
    if graph_def is None or _keeps_state(graph_def):
        return dataset
    _Restart(graph_def, seed).run()
    try:
        variant = tf.raw_ops.DatasetFromGraph(graph_def=graph_def.SerializeToString())
    except (tf.errors.OpError, ValueError):
        return dataset
    return tf.data.experimental.from_variant(variant, dataset.element_spec)


def fixed_seeds(shuffled: tf.data.Dataset) -> tuple[int, int] | None:
    """The two seeds that `restart` gives the last step, a shuffle without a seed that has one order."""
    graph_def = graph_def_of(shuffled)
    if graph_def is None:
        return None
    seed = _content_seeds(graph_def)[graph_def.node[-1].input[0]]
    return fold_in(seed, 0), fold_in(seed, 1)


def graph_def_of(dataset: tf.data.Dataset) -> graph_pb2.GraphDef | None:
    """The graph of a dataset, which a `_Retval` returns; None if TensorFlow cannot describe it."""
    try:
        serialized = tf.raw_ops.DatasetToGraphV2(
            input_dataset=tf.data.experimental.to_variant(dataset), external_state_policy=1
        )
        return graph_pb2.GraphDef.FromString(serialized.numpy())
    except (tf.errors.OpError, ValueError, RuntimeError):
        return None


def _nodes(graph_def: graph_pb2.GraphDef) -> Iterator[node_def_pb2.NodeDef]:
    """The nodes of the graph, then those of its functions."""
    yield from graph_def.node
    for function in graph_def.library.function:
        yield from function.node_def


def _takes_seeds(node: node_def_pb2.NodeDef) -> bool:
    """Whether the node is a random operation with seeds in its attributes."""
    return "seed" in node.attr and "seed2" in node.attr and is_stateful(node.op)


def _is_unseeded(node: node_def_pb2.NodeDef) -> bool:
    """Whether the node is a random operation for which the user set no seed."""
    return _takes_seeds(node) and not (node.attr["seed"].i or node.attr["seed2"].i)


def _keeps_state(graph_def: graph_pb2.GraphDef) -> bool:
    """Whether a copy would lose the state of a variable: a function assigns it."""
    reseeded = {seed_variable.variable for seed_variable in _seed_variables(graph_def)}
    functions = {f.signature.name: f for f in graph_def.library.function}
    return any(
        _source(graph_def, variable_input) not in reseeded
        for node in graph_def.node
        for callee in callees(node)
        if callee in functions
        for variable_input in _assigned_inputs(functions[callee], node)
    )


def _shared_caches(graph_def: graph_pb2.GraphDef) -> set[str]:
    """The names of the caches in memory before which something is read that no seed decides."""
    reseeded = {seed_variable.variable for seed_variable in _seed_variables(graph_def)}
    functions = {f.signature.name: f for f in graph_def.library.function}

    def is_read(node: node_def_pb2.NodeDef) -> bool:
        is_variable = node.op == "VarHandleOp" and node.name not in reseeded
        return is_variable or node.op in _PYTHON or node.op.startswith((*_FILES, "Mutable"))

    readers = functions_with(functions.values(), is_read)
    reading = {node.name for node in graph_def.node if is_read(node) or readers.intersection(callees(node))}
    return {node.name for node in graph_def.node if node.op in _CACHES and reading & _before(graph_def, [node])}


@attrs.frozen
class _SeedVariable:
    """A variable with the state of a random generator.

    Args:
        variable: name of its node.
        reader: name of the node whose function reads it.
        size: 2 for Keras' seed generators, 3 for `tf.random.Generator`.
    """

    variable: str
    reader: str
    size: int


def _seed_variables(graph_def: graph_pb2.GraphDef) -> Iterator[_SeedVariable]:
    """The variables of random generators that functions of the graph assign.

    The initial value and the function's operations tell them from others: int64 [2] with stateless random operations is
    of a Keras generator, int64 [3] with RngReadAndSkip of a `tf.random.Generator`.
    """
    functions = {f.signature.name: f for f in graph_def.library.function}
    for node in graph_def.node:
        for function in (functions[c] for c in callees(node) if c in functions):
            ops = {n.op for n in function.node_def}
            for variable_input in _assigned_inputs(function, node):
                variable = _source(graph_def, variable_input)
                constant = _initial_constant(graph_def, variable)
                if constant is None or constant.attr["value"].tensor.dtype != tf.int64.as_datatype_enum:
                    continue
                shape = [dim.size for dim in constant.attr["value"].tensor.tensor_shape.dim]
                if shape == [2] and any(op.startswith("StatelessRandom") for op in ops):
                    yield _SeedVariable(variable, node.name, 2)
                elif shape == [3] and "RngReadAndSkip" in ops:
                    yield _SeedVariable(variable, node.name, 3)


def _assigned_inputs(function: function_pb2.FunctionDef, node: node_def_pb2.NodeDef) -> list[str]:
    """The inputs of a node that its function takes as variables and assigns."""
    arguments = [argument.name for argument in function.signature.input_arg]
    assigned = {n.input[0] for n in function.node_def if n.op.startswith("Assign") or n.op == "RngReadAndSkip"}
    inputs = [i for i in node.input if not i.startswith("^")]
    # What a function captures comes last, among its arguments as among the node's inputs.
    return [inputs[i - len(arguments)] for i, name in enumerate(arguments) if name in assigned]


def _source(graph_def: graph_pb2.GraphDef, name: str) -> str:
    """The name of the node that makes a tensor, behind all Identity nodes."""
    nodes = _nodes_by_name(graph_def)
    node = nodes[name.split(":")[0]]
    while node.op == "Identity":
        node = nodes[node.input[0].split(":")[0]]
    return node.name


def _initial_constant(graph_def: graph_pb2.GraphDef, variable: str) -> node_def_pb2.NodeDef | None:
    """The Const node that the graph first assigns to a variable; None if it assigns nothing, or no constant.

    Args:
        variable: name of its VarHandleOp node.
    """
    nodes = _nodes_by_name(graph_def)
    for node in graph_def.node:
        if node.op == "AssignVariableOp" and node.input[0].split(":")[0] == variable:
            constant = nodes[node.input[1].split(":")[0]]
            return constant if constant.op == "Const" else None
    return None


def _before(graph_def: graph_pb2.GraphDef, caches: Iterable[node_def_pb2.NodeDef]) -> set[str]:
    """The names of the nodes on which the caches depend."""
    nodes = _nodes_by_name(graph_def)
    inputs = [i for node in caches for i in node.input]
    names: set[str] = set()
    while inputs:
        name = inputs.pop().lstrip("^").split(":")[0]
        if name not in names:
            names.add(name)
            inputs.extend(nodes[name].input)
    return names


def _content_seeds(graph_def: graph_pb2.GraphDef) -> dict[str, int]:
    """By node a seed that depends on the constants before it, not on names, variables or what follows."""
    seeds: dict[str, int] = {}
    for node in graph_def.node:  # in topological order
        digest = hashlib.blake2b(node.op.encode(), digest_size=8)
        if node.op == "Const" and node.attr["dtype"].type not in (tf.resource, tf.variant):
            digest.update(node.attr["value"].SerializeToString())
        for name in node.input:
            if not name.startswith("^"):
                digest.update(seeds[name.split(":")[0]].to_bytes(8, "little", signed=True))
        seeds[node.name] = int.from_bytes(digest.digest(), "little", signed=True)
    return seeds


class _Restart:
    """Gives the random operations of a dataset's graph seeds, in place.

    Args:
        seed: of the draws that differ from call to call. The others follow the content of the graph.
    """

    def __init__(self, graph_def: graph_pb2.GraphDef, seed: int) -> None:
        self._graph_def = graph_def
        self._seed = seed
        self._numbers: dict[int, Iterator[int]] = collections.defaultdict(itertools.count)  # by seed, for `_next`

    def run(self) -> None:
        graph_def = self._graph_def
        _merge_readings(graph_def)
        callers = _separate_calls(graph_def)
        content_seeds = _content_seeds(graph_def)
        before_caches = _before(graph_def, [node for node in graph_def.node if node.op in _CACHES])
        seeds = {name: seed if name in before_caches else self._seed for name, seed in content_seeds.items()}
        shared_caches = _shared_caches(graph_def)
        self._reseed_variables(seeds)
        functions = {f.signature.name: f for f in graph_def.library.function}
        for node in list(graph_def.node):
            if node.op == "RandomDataset":  # TensorFlow cannot read what it writes of this operation
                node.op, node.attr["rerandomize_each_iteration"].b = "RandomDatasetV2", False
                node.input.append("")
            if node.op in _SEED_OPERANDS:
                self._seed_dataset(node, content_seeds[node.name] if _has_one_order(node) else seeds[node.name])
            if node.op in _STATE and node.name not in shared_caches:
                position, state_op = _STATE[node.op]
                state_name = f"{node.name}/state"
                graph_def.node.add(name=state_name, op=state_op)
                node.input[position] = state_name
        for function, caller in callers.items():
            self._seed_function(functions[function], seeds[caller])
        random_functions = functions_with(functions.values(), _takes_seeds)
        for node in _nodes(graph_def):
            if node.op == "ParallelMapDatasetV2" and random_functions.intersection(callees(node)):
                _make_sequential(node)

    def _next(self, seed: int) -> int:
        """The next of the numbers that a seed gives."""
        return fold_in(seed, next(self._numbers[seed]))

    def _seed_dataset(self, node: node_def_pb2.NodeDef, seed: int) -> None:
        """Gives a random dataset of the graph new seed operands, unless the user set a seed (one that is not 0)."""
        position = _SEED_OPERANDS[node.op]
        nodes = _nodes_by_name(self._graph_def)
        operands = [nodes[node.input[position + i].split(":")[0]] for i in (0, 1)]
        if any(o.op != "Const" or tf.make_ndarray(o.attr["value"].tensor) for o in operands):
            return
        for i in (0, 1):
            name = f"{node.name}/seed{i}"
            constant = self._graph_def.node.add(name=name, op="Const")
            constant.attr["dtype"].type = tf.int64.as_datatype_enum
            constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(self._next(seed), tf.int64))
            node.input[position + i] = name

    def _seed_function(self, function: function_pb2.FunctionDef, seed: int) -> None:
        """Gives the random operations and random datasets in a function seeds, unless the user set them."""
        nodes = {node.name: node for node in function.node_def}
        for node in list(function.node_def):
            if _is_unseeded(node):
                self._set_seeds(node, seed)
            position = _SEED_OPERANDS.get(node.op)
            if position is None:
                continue
            operands = [nodes.get(node.input[position + i].split(":")[0]) for i in (0, 1)]
            if any(o is None or o.op != "Const" or tf.make_ndarray(o.attr["value"].tensor) for o in operands):
                continue
            for i in (0, 1):  # every call of the function makes a dataset with other seeds
                node.input[position + i] = self._drawn_number(function, f"{node.name}_seed{i}", seed)

    def _drawn_number(self, function: function_pb2.FunctionDef, name: str, seed: int) -> str:
        """Adds an operation that draws an int64 in each call of the function; returns its output."""
        constants = {"shape": tf.constant([], tf.int32), "low": tf.constant(1, tf.int64), "high": tf.int64.max}
        for part, value in constants.items():
            node = function.node_def.add(name=f"{name}_{part}", op="Const")
            dtype = tf.int32 if part == "shape" else tf.int64
            node.attr["dtype"].type = dtype.as_datatype_enum
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, dtype))
        inputs = [f"{name}_{part}:output:0" for part in constants]
        node = function.node_def.add(name=name, op="RandomUniformInt", input=inputs)
        node.attr["T"].type = tf.int32.as_datatype_enum
        node.attr["Tout"].type = tf.int64.as_datatype_enum
        self._set_seeds(node, seed)
        return f"{name}:output:0"

    def _set_seeds(self, node: node_def_pb2.NodeDef, seed: int) -> None:
        node.attr["seed"].i, node.attr["seed2"].i = self._next(seed), self._next(seed)

    def _reseed_variables(self, seeds: Mapping[str, int]) -> None:
        """Starts the random generators that the graph's variables hold at new states, by the seeds of their readers."""
        by_variable = {seed_variable.variable: seed_variable for seed_variable in _seed_variables(self._graph_def)}
        for variable, seed_variable in by_variable.items():
            constant = _initial_constant(self._graph_def, variable)
            assert constant is not None  # `_seed_variables` leaves out variables without
            seed = self._next(seeds[seed_variable.reader]) & 0x7FFFFFFF
            value = [seed, 0] if seed_variable.size == 2 else [0, 0, seed]
            constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, tf.int64))


def _merge_readings(graph_def: graph_pb2.GraphDef) -> None:
    """Merges the nodes of a dataset that the pipeline reads in several places, which share its state."""
    nodes = _nodes_by_name(graph_def)
    names: dict[str, str] = {}  # of a dataset's node -> of the first node of this dataset
    first: dict[str, str] = {}  # of a state -> of the first dataset's node that has it
    for node in graph_def.node:  # in topological order
        node.input[:] = [names.get(i, i) for i in node.input]
        if node.op in _STATE:
            (state,) = nodes[node.input[_STATE[node.op][0]]].attr["value"].tensor.resource_handle_val
            if state.name != "dummy_resource":  # of a cache in a file
                names[node.name] = first.setdefault(state.name, node.name)


def _separate_calls(graph_def: graph_pb2.GraphDef) -> dict[str, str]:
    """Gives each call of a function that draws without a seed a function of its own, so that the calls draw apart.

    Returns:
        Name of each such function -> name of the dataset's node that calls it, in an order that does not depend on
        names.
    """
    functions = {f.signature.name: f for f in graph_def.library.function}
    random = functions_with(functions.values(), lambda n: n.op in _SEED_OPERANDS or _is_unseeded(n))
    callers: dict[str, str] = {}
    for dataset in graph_def.node:
        waiting = [dataset]
        while waiting:
            node = waiting.pop()
            values = [node.attr[key] for key in sorted(node.attr)]
            for call in (f for v in values for f in ([v.func] if v.HasField("func") else v.list.func)):
                if call.name not in random:
                    continue
                if call.name in callers:
                    function = graph_def.library.function.add()
                    function.CopyFrom(functions[call.name])
                    call.name = function.signature.name = f"{call.name}/{len(callers)}"
                    functions[call.name] = function
                    random.add(call.name)
                callers[call.name] = dataset.name
                waiting.extend(functions[call.name].node_def)
    return callers


def _nodes_by_name(graph_def: graph_pb2.GraphDef) -> dict[str, node_def_pb2.NodeDef]:
    return {node.name: node for node in graph_def.node}


def _has_one_order(node: node_def_pb2.NodeDef) -> bool:
    """Whether all iterations of a dataset operation without a seed draw the same numbers."""
    draws_anew = "rerandomize_each_iteration" if node.op.startswith("Random") else "reshuffle_each_iteration"
    return not node.attr[draws_anew].b


def _make_sequential(node: node_def_pb2.NodeDef) -> None:
    """Turns a parallel map into a map: calls at the same time would draw in a random order."""
    node.op = "MapDataset"
    node.input.pop()
    for name in ("deterministic", "use_unbounded_threadpool"):
        node.attr.pop(name, None)
