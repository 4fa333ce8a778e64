"""Whether a client stage is batched, the clients of a group and of a call: by types, operations and the target.

In:  a client stage of a plan. Out: a `BatchingPolicy`, or the `NoBatchingRule` that says why clients run one by one.

Names of a stage's operations fall into values that all clients share, computed of broadcasts only, and *batched* ones,
which differ between clients. An operation on batched values needs a batching rule; in a graph, each of its operations
does. Kernels of dense layers may be kept low-rank in training (`low_rank_policy`); that decides the width of a group.

Decision 0005.
"""

import math
from collections.abc import Sequence
from typing import TypeAlias

import attrs
import numpy as np
import tensorflow as tf

from fedcore.graphs.batched.appended_rows import is_static, without_appends
from fedcore.graphs.batched.batched_call import why_not_batchable
from fedcore.graphs.batched.batched_interpreter import BATCHABLE
from fedcore.graphs.batched.batched_value import NoBatchingRule, batching_rules
from fedcore.graphs.batched.batching_rewrites import DATA_PRODUCTS, KNOWN_INPUTS, ONE_STEP_FACTORS
from fedcore.graphs.batched.changed_rows import tables_of_step
from fedcore.graphs.batched.client_lane import CONTROL_FLOW, is_straight
from fedcore.graphs.batched.cost_model import LARGE_STATE_BYTES, PARALLEL, clients_at_once, start_rows, why_loop
from fedcore.graphs.batched.low_rank_policy import ONE_STEP, LowRankKernels, low_rank_kernels
from fedcore.graphs.batched.own_rows import EACH, JOINED, TILES
from fedcore.graphs.batched.schedule import ScheduleRules
from fedcore.graphs.batched.stage_parts import StageParts
from fedcore.graphs.dataflow.graph import Region
from fedcore.graphs.graphdef.form.captured_graph import CapturedGraph, captured_graph
from fedcore.graphs.graphdef.form.operations import has_loops, operations_of, operations_of_graphs
from fedcore.graphs.stages.client_stage import ClientStage
from fedcore.ir.module import Function, Graph, Module, Operation, Parameter, Ref, Symbol
from fedcore.ir.purity import seeded_symbols
from fedcore.ir.reachable import named_by
from fedcore.ir.target import Target, parse_target
from fedcore.lru_cache import LruCache
from fedcore.types import SequenceType, TensorType, Type, leaves, tensor_leaves

WORKING_SET_BYTES = 5 << 20  # of the clients of a group; about a core's cache
ASSUMED_ROWS = 32  # of a batch, whose size is not known before the data is
MAX_WIDTH = 32
GROUPS_PER_CALL = 8  # enough to put clients with similar numbers of steps together
GROUPS_PER_CALL_SMALL = 16  # for small clients, where the overhead of a call shows
ISAS_OF_EQUAL_ROWS = ("avx512",)
"""Instruction sets on which a row of a product has the same bits beside any number of other rows, zeros included; in
products of `TYPES_OF_EQUAL_ROWS`, which are oneDNN's."""

TYPES_OF_EQUAL_ROWS = frozenset({tf.float32, tf.bfloat16})

ISAS_OF_EQUAL_TILES = ("avx2",)
"""Instruction sets with such rows only in products of few rows, whose number is a multiple of `own_rows.TILE_ROWS`."""

_PRODUCTS = ("MatMul", "Einsum", "Conv")
"""Parts of the names of the operations that are products or convolutions."""

MAX_ONE_STEP_WIDTH = 128  # a quarter of a call of small clients: as many groups as run at once
ONE_STEP_BYTES = 16 << 20
"""Bytes of a group's batches, at most, if clients take one step with low-rank kernels: they have no own state."""

MAX_BLOCKS_OF_TABLES = 8
"""Blocks of a call of clients whose changed rows of tables are kept."""

STORED_BYTES = 64 << 20
"""Bytes of all other weights of the clients of such a call."""

MAX_WIDTH_IMAGES = 4  # the activations of a convolution are far larger than its batch

_NOISY_GRADIENTS = "PreventGradient"
"""Marks noise on the gradients of examples, see `fedcore.learning.models.example_gradients`."""

_CONVOLUTIONS = ("Conv2D", "DepthwiseConv2dNative")

AS_FAST_ALONE = "a kernel per client is as fast one client after the other"

DRAWS_ALONE = "random numbers for each weight are as fast one client after the other"

MIN_DRAWN = 1 << 12
"""Normal numbers of a step from which clients run one by one: lanes that are idle would draw as many each."""

_NORMALS = ("StatelessRandomNormal", "StatelessRandomNormalV2")


class FastAlone(NoBatchingRule):
    """A stage has rules, but is as fast one client after the other."""


@attrs.frozen
class BatchingPolicy:
    """Sizes for a batched stage.

    Args:
        width: clients of a group; 1 for a loop over clients, since an operation is as fast alone.
        call: clients of a call.
        low_rank: rank from which kernels of dense layers are kept low-rank in local training; 0 if none is kept, 1 for
            clients of one step only.
        why_loop: the reason why a loop over clients is cheaper than groups with dense kernels; None if it is not.
        products: which rows products have, see `own_rows`.
        parallel: clients that a loop computes at once.
        table_rows: rows of the smallest table whose changed rows a loop keeps; 0 if it keeps none.
        one_step_width: clients of a group where all clients of a call take one step; 0 for no other than `width`.
    """

    width: int
    call: int
    low_rank: int = 0
    why_loop: str | None = None
    products: str = JOINED
    one_step_width: int = 0
    parallel: int = PARALLEL
    table_rows: int = 0


def batching_policy(
    stage: ClientStage,
    block: int,
    target: Target,
    requested_width: int | None = None,
    *,
    low_rank: bool = True,
) -> BatchingPolicy | NoBatchingRule:
    """The batching policy of a stage, or the reason why it cannot be batched.

    Of width 1 where an operation is fast alone; with `table_rows` where a large model keeps changed rows of tables;
    with `why_loop` where a loop is cheaper than groups; else of groups of `width` clients. A missing batching rule is
    the reason for none, unless the stage is so large that it loops anyway.

    Args:
        block: clients of a block.
        target: the kind of machine.
        requested_width: the width that the user asks for. Default: by the sizes of types.
        low_rank: keep kernels low-rank where that is faster.
    """
    module, function = stage.module, stage.function
    batched = {p.name for p in stage.client_parameters}
    try:
        parts = StageParts.from_stage(stage)
        _check_types(parts)
        # Without building graphs, which takes long: large stages run in a loop, without rules.
        _check_operations(module, function, parts.own_operations, batched, builds_graphs=False)
    except FastAlone as error:
        rank = _rank_for_single_clients(parts) if low_rank else 0
        return BatchingPolicy(1, block, rank, f"{error.op}: {error.why}")
    except NoBatchingRule as error:
        return error
    step = _training_step(module, function, parts.own_operations, batched) if low_rank else None
    kernels = LowRankKernels() if step is None else low_rank_kernels(*step)
    rank, all_bytes = kernels.rank, state_bytes(function)
    width = requested_width or _width(stage, keeps_low_rank=rank > ONE_STEP)
    dense_bytes = all_bytes - (kernels.size_bytes if rank > ONE_STEP else 0)
    reason = None
    if not requested_width:
        reason = why_loop(target, all_bytes, dense_bytes, width, has_loops=has_loops(module))
    is_large = reason is not None and dense_bytes >= LARGE_STATE_BYTES
    if step is not None and is_large:
        policy = _policy_of_tables(parts, step, dense_bytes, block, reason)
        if policy is not None:
            return policy
    missing_rule = None if is_large else _missing_rule(parts)
    if missing_rule is not None:
        return missing_rule
    one_step_width = 0
    if rank == ONE_STEP and requested_width is None:
        one_step_width = _one_step_width(stage.client_parameters, width)
    groups = GROUPS_PER_CALL if width < MAX_WIDTH else GROUPS_PER_CALL_SMALL
    blocks = -(-width * groups // block)
    call = block << (blocks - 1).bit_length()  # a power of two of blocks
    products = _rows_of_products(stage, target)
    return BatchingPolicy(width, call, rank, reason, products, one_step_width, clients_at_once(dense_bytes))


def _rows_of_products(stage: ClientStage, target: Target) -> str:
    """Which rows products have (`JOINED`, `EACH` or `TILES`), so that other clients decide no bits of a client's."""
    batches = any(_has_batches(p.type) for p in stage.client_parameters)
    if target.isa not in ISAS_OF_EQUAL_ROWS and (batches or _any_graph_has(stage.module, "MatMul")):
        return TILES if target.isa in ISAS_OF_EQUAL_TILES else EACH
    return EACH if _has_products_of_unequal_rows(stage.module, stage.function) else JOINED


def _policy_of_tables(
    parts: StageParts, step: "TrainingStep", dense_bytes: int, block: int, why_loop: str | None
) -> BatchingPolicy | None:
    """The policy of a stage that keeps the changed rows of tables; None if it keeps none.

    A call stores all other weights of each client, so there may be few of them; it has one dense sum of the tables.

    Args:
        dense_bytes: of a client's state with dense tables.
        block: clients of a block.
        why_loop: the reason why clients run one after another.
    """
    tables = tables_of_step(*step[:3])
    other_bytes = dense_bytes - sum(4 * math.prod(shape) for shape in tables.values())
    if not tables or other_bytes >= LARGE_STATE_BYTES or parts.stage.join is None:
        return None
    # Graphs without control flow need no rules for a client alone, see `client_lane`.
    runs_alone = _runs_by_lane(parts.stage.module, parts.stage.function) and _missing_fold_rule(parts) is None
    if not runs_alone and _missing_rule(parts) is not None:
        return None
    blocks = min(MAX_BLOCKS_OF_TABLES, max(1, STORED_BYTES // max(1, other_bytes * block)))
    call = block << (blocks.bit_length() - 1)  # a power of two of blocks
    table_rows = min(rows for rows, _ in tables.values())
    # With `why_loop` no groups are made; the width says only that no operation is as fast alone.
    return BatchingPolicy(2, call, why_loop=why_loop, parallel=clients_at_once(other_bytes), table_rows=table_rows)


def _missing_rule(parts: StageParts) -> NoBatchingRule | None:
    """The reason why an operation of a stage has no batching rule; None if all have one.

    Client operations are tested for values that differ between clients, those of the fold and the merge for partials,
    which differ between blocks. Only client operations may draw random numbers.
    """
    stage = parts.stage
    try:
        _check_operations(stage.module, stage.function, parts.own_operations, {p.name for p in stage.client_parameters})
    except NoBatchingRule as error:
        return error
    return _missing_fold_rule(parts)


def _missing_fold_rule(parts: StageParts) -> NoBatchingRule | None:
    """The reason why an operation of the fold or the merge has no batching rule; None if all have one."""
    stage, module, function = parts.stage, parts.stage.module, parts.stage.function
    if stage.zero is None or stage.join is None:
        return None
    try:
        joined, zeros = module.function(stage.join), module.function(stage.zero)
        client_names = {function.parameters[0].name, *(op.name for op in parts.own_operations)}
        _check_no_random_numbers(module, [*parts.fold_operations, *joined.operations, *zeros.operations])
        _check_operations(module, function, parts.fold_operations, client_names)
        _check_operations(module, joined, without_appends(joined.operations), {p.name for p in joined.parameters})
        _check_operations(module, zeros, list(zeros.operations), set())
    except NoBatchingRule as error:
        return error
    return None


def _has_batches(type_: Type) -> bool:
    """Whether a value has sequences whose elements are batches, of any number of rows."""
    sequences = [leaf for _, leaf in leaves(type_) if isinstance(leaf, SequenceType)]
    return any(t.shape and t.sizes[0] is None for s in sequences for t in tensor_leaves(s.element))


def _loops_over_sequence(module: Module, name: str) -> bool:
    """Whether a function, or one that it names, reduces a sequence."""
    functions = (f for f in map(module.__getitem__, named_by(module, name)) if isinstance(f, Function))
    return any(op.kind == "sequence_reduce" for f in functions for op in f.operations)


def _has_products_of_unequal_rows(module: Module, stage: Function) -> bool:
    """Whether a stage has products that round, of other types than `TYPES_OF_EQUAL_ROWS`."""
    graphs = (g for g in map(module.__getitem__, named_by(module, stage.name)) if isinstance(g, Graph))
    nodes = (n for g in graphs for n in captured_graph(g, module.blob(g.digest)).nodes())
    types = {n["T"] for n in nodes if any(kind in n.op for kind in _PRODUCTS) and "T" in n.attributes}
    return any(not t.is_integer and t not in TYPES_OF_EQUAL_ROWS for t in types)


def _rank_for_single_clients(parts: StageParts) -> int:
    """The rank from which kernels are kept low-rank where clients run one by one.

    0 if the stage cannot run for one client in a lane, or if only training of one step would gain.
    """
    stage, module, function = parts.stage, parts.stage.module, parts.stage.function
    if not _runs_by_lane(module, function):
        return 0
    batched = {*(p.name for p in stage.client_parameters), *(op.name for op in parts.client_operations)}
    step = _training_step(module, function, parts.own_operations, batched)
    rank = 0 if step is None else low_rank_kernels(*step).rank
    return rank if rank > ONE_STEP else 0


def _runs_by_lane(module: Module, stage: Function) -> bool:
    """Whether a stage can run for one client in a lane of its own, see `client_lane`.

    Its operations have to be `BATCHABLE` with static results, and its graphs without control flow.
    """
    for callee in map(module.__getitem__, named_by(module, stage.name)):
        if isinstance(callee, Graph):
            runs = is_straight(operations_of(callee.digest, module.blob(callee.digest)))
        else:
            runs = all(op.kind in BATCHABLE and _has_static_result(op) for op in callee.operations)
        if not runs:
            return False
    return True


TrainingStep: TypeAlias = tuple[Region, Type, int, Sequence[int]]
"""(graph of a training step, type of its carry, position of the carry's first leaf among the graph's arguments,
positions of arguments that all clients share)."""


def _training_step(
    module: Module, stage: Function, operations: list[Operation], batched: set[str]
) -> TrainingStep | None:
    """The step of the stage's first loop over batches that starts from values that all clients share.

    The step of the loop is a graph, or a function that calls one, maybe with captured values (`bind`). None if there is
    no such loop.

    Args:
        operations: client operations of the stage.
        batched: names of values that differ between clients.
    """
    types, bound = stage.types(), {op.name: op for op in operations if op.kind == "bind"}
    for op in operations:
        if op.kind != "sequence_reduce" or op.operands[1].name in batched:
            continue
        function = op.operands[2]
        captured_shared: list[bool] = []  # for each captured value whether all clients share it
        if isinstance(function, Ref) and function.name in bound:
            function, *captured_values = bound[function.name].operands
            captured_shared = [o.name not in batched for o in captured_values]
        step = module[function.name] if isinstance(function, Symbol) else None
        if isinstance(step, Function):
            return _step_of_function(module, step, [*captured_shared, False, False], types[op.name])
        if isinstance(step, Graph):
            return captured_graph(step, module.blob(step.digest)).main, types[op.name], 0, ()
    return None


def _step_of_function(module: Module, step: Function, shared: list[bool], carry: Type) -> TrainingStep | None:
    """The step that a function is, if it only calls one graph; None for other functions.

    The graph's arguments are the leaves of the operands of that call.

    Args:
        step: its last two parameters are the carry and the element.
        shared: for each parameter whether all clients share it.
        carry: type of the loop variables.
    """
    if len(step.operations) != 1 or step.operations[0].kind != "call" or len(shared) != len(step.parameters):
        return None
    (call,) = step.operations
    graph, *arguments = call.operands
    callee = module[graph.name]
    if not isinstance(callee, Graph) or step.result.name != call.name:
        return None
    graph_arguments: dict[str, range] = {}  # operand of the call -> numbers of the arguments that are its leaves
    count = 0
    for operand in arguments:
        leaf_count = len(leaves(step.types()[operand.name]))
        graph_arguments[operand.name] = range(count, count + leaf_count)
        count += leaf_count
    carry_name = step.parameters[-2].name
    if carry_name not in graph_arguments:
        return None
    shared_names = [p.name for p, is_shared in zip(step.parameters, shared, strict=True) if is_shared]
    shared_arguments = [i for name in shared_names for i in graph_arguments.get(name, ())]
    region = captured_graph(callee, module.blob(callee.digest)).main
    return region, carry, graph_arguments[carry_name].start, shared_arguments


def _check_types(parts: StageParts) -> None:
    """Raises `NoBatchingRule` if values of clients cannot be stacked, but for the axis of the batch.

    Tests the parameters with values of clients, the value that is kept of a client, and the results of operations.
    """
    stage = parts.stage
    for parameter in stage.client_parameters:
        for _, leaf in leaves(parameter.type):
            if isinstance(leaf, TensorType) and not is_static(leaf):
                raise NoBatchingRule("stack", f"%{parameter.name} holds {leaf}, whose size can differ between clients")
            if isinstance(leaf, SequenceType):
                _check_element(parameter.name, leaf)
    kept_type = stage.kept_type
    if kept_type is not None and any(isinstance(leaf, SequenceType) for _, leaf in leaves(kept_type)):
        raise NoBatchingRule("struct", "it keeps sequences of clients")
    for op in parts.own_operations:
        for _, leaf in leaves(op.type):
            if isinstance(leaf, TensorType) and not is_static(leaf):
                raise NoBatchingRule(op.kind, f"its result holds {leaf}, whose size can differ between clients")


def _has_static_result(op: Operation) -> bool:
    return all(is_static(leaf) for _, leaf in leaves(op.type) if isinstance(leaf, TensorType))


def _check_element(name: str, sequence: SequenceType) -> None:
    """Raises `NoBatchingRule` if elements of a sequence cannot be stacked.

    That is if they hold texts, if an axis behind the batch has no static size, or if only some tensors have a batch.
    """
    tensors = tensor_leaves(sequence.element)
    if any(t.dtype.name == "str" or t.shape is None or None in t.shape[1:] for t in tensors):
        raise NoBatchingRule("stack", f"%{name} holds elements {sequence.element}, of unknown sizes beyond their batch")
    has_batch_axis = {bool(t.shape) and t.sizes[0] is None for t in tensors}
    if len(has_batch_axis) > 1:
        raise NoBatchingRule("stack", f"%{name} holds elements {sequence.element}, of which only a part is batched")


def _check_no_random_numbers(module: Module, operations: list[Operation]) -> None:
    """Raises if a fold, a merge or an initial partial is random: only the work of one client has a seed here."""
    seeded = seeded_symbols(module)
    for op in operations:
        for operand in op.operands:
            if isinstance(operand, Symbol) and operand.name in seeded:
                raise NoBatchingRule(operand.name, "it draws where clients' values are joined")


def _check_operations(
    module: Module,
    function: Function,
    operations: list[Operation],
    batched: set[str],
    *,
    builds_graphs: bool = True,
) -> None:
    """Raises if an operation, or an operation of a graph that it calls, cannot be computed for several clients at once.

    Args:
        function: holds the operations, which are some of its own.
        batched: names of values that differ between clients; the names of results that do are added to it.
        builds_graphs: see `_check_graph`.
    """
    types = function.types()
    # Name of a bound function -> (the function's name, for each captured value whether it differs, and its type).
    bound: dict[str, tuple[str, list[bool], list[Type]]] = {}
    seeded = seeded_symbols(module)
    for op in operations:
        if op.kind not in BATCHABLE:
            raise NoBatchingRule(op.kind, "the operation stands outside of graphs")
        operands = [o for o in op.operands if not isinstance(o, Symbol)]
        differ, operand_types = [o.name in batched for o in operands], [types[o.name] for o in operands]
        callee = next((o.name for o in op.operands if isinstance(o, Symbol)), None)
        if op.kind == "bind" and callee is not None:
            bound[op.name] = (callee, differ, operand_types)
        elif op.kind == "call" and callee is not None:
            _check_callee(module, callee, differ, operand_types, builds_graphs=builds_graphs)
        elif op.kind in ("sequence_reduce", "sequence_map"):  # calls a symbol, or a bound function
            no_function: tuple[str, list[bool], list[Type]] = ("", [], [])
            functions = (bound[o.name] for o in operands if o.name in bound)
            bound_callee, captured_differ, captured_types = next(functions, no_function)
            sequence = next(t for t in operand_types if isinstance(t, SequenceType))
            if _has_batches(sequence) and _loops_over_sequence(module, callee or bound_callee):
                # A padded value does not say of which loop's batch it is, and their sizes differ.
                raise NoBatchingRule(op.kind, "its step over a batch loops over another sequence")
            arguments = [op.type, sequence.element] if op.kind == "sequence_reduce" else [sequence.element]
            call_differ, call_types = [*captured_differ, *([True] * len(arguments))], [*captured_types, *arguments]
            _check_callee(module, callee or bound_callee, call_differ, call_types, builds_graphs=builds_graphs)
            differ.append(True)  # its loop runs for a group of clients, so its result has a client axis in any case
        if any(differ) or callee in seeded:
            batched.add(op.name)


def _check_callee(module: Module, name: str, differ: list[bool], types: list[Type], *, builds_graphs: bool) -> None:
    """Raises if a graph or function cannot be called for several clients at once.

    A call whose arguments all clients share is made once for all of them, unless it draws random numbers.

    Args:
        differ: for each argument whether it differs between clients.
        types: of the arguments.
    """
    if not any(differ) and name not in seeded_symbols(module):
        return
    callee = module[name]
    if isinstance(callee, Function):
        has_other_parameters = len(differ) != len(callee.parameters)  # then all of them may differ
        batched = {p.name for i, p in enumerate(callee.parameters) if has_other_parameters or differ[i]}
        _check_operations(module, callee, list(callee.operations), batched, builds_graphs=builds_graphs)
        return
    if any(isinstance(leaf, SequenceType) for t in types for _, leaf in leaves(t)):
        raise NoBatchingRule(name, "the graph loops over a sequence itself")
    flat = [(leaf, differs) for t, differs in zip(types, differ, strict=True) for leaf in tensor_leaves(t)]
    batched_arguments = {i for i, (_, differs) in enumerate(flat) if differs}
    padded_axes = {i: 0 for i, (t, differs) in enumerate(flat) if differs and t.shape and t.sizes[0] is None}
    _check_graph(module, callee, batched_arguments, padded_axes, builds_graphs=builds_graphs)


_reasons: LruCache[tuple, tuple[str, str] | None] = LruCache(1024)
"""(graph, arguments, rules) -> (the operation without a batching rule, why); None if the graph can be batched."""


def _check_graph(
    module: Module, graph: Graph, batched_arguments: set[int], padded_axes: dict[int, int], *, builds_graphs: bool
) -> None:
    """Raises `NoBatchingRule` if a graph cannot be computed for several clients, `FastAlone` if that is no faster.

    Args:
        batched_arguments: numbers of the graph's arguments that differ between clients.
        padded_axes: number of an argument that is a batch -> its axis.
        builds_graphs: whether the graph is built for two clients, to find operations without a rule; the answer is
            cached by graph, arguments and rules.
    """

    def find_reason() -> tuple[str, str] | None:
        """(operation without a rule, why) for two clients; None if there is none."""
        error = why_not_batchable(graph, module.blob(graph.digest), batched_arguments, padded_axes)
        return None if error is None else (error.op, error.why)  # without its traceback, which holds the scratch graph

    operations = operations_of(graph.digest, module.blob(graph.digest))
    captured = captured_graph(graph, module.blob(graph.digest))
    if padded_axes and _trains_convolutions(operations, captured, batched_arguments):
        raise FastAlone("Conv2D", AS_FAST_ALONE)
    if padded_axes and _drawn_numbers(captured.main) >= MIN_DRAWN:
        raise FastAlone(_NORMALS[0], DRAWS_ALONE)
    if not builds_graphs:
        return
    rules = frozenset((op, batching_rules.get(op)) for op in operations)  # one may be registered anew
    key = (graph.digest, graph.type, frozenset(batched_arguments), tuple(padded_axes.items()), rules)
    refusal = _reasons.get(key, find_reason)
    if refusal is not None:
        raise NoBatchingRule(*refusal)


def _trains_convolutions(operations: frozenset[str], captured: CapturedGraph, batched_arguments: set[int]) -> bool:
    """Whether a graph computes gradients of kernels that differ between clients; in FedSGD all clients share them.

    `differing` holds the values that depend on an argument that differs. A loop or a branch that reads one counts as
    such a gradient, since its inside is not searched.

    Args:
        operations: types of the graph's operations.
        batched_arguments: numbers of the arguments that differ between clients.
    """
    gradients = ("Conv2DBackpropFilter", "DepthwiseConv2dNativeBackpropFilter", _NOISY_GRADIENTS)
    if not any(op.startswith(gradients) for op in operations):
        return False
    arguments = captured.main.arguments
    differing = {arguments[i] for i in batched_arguments} | ({arguments[-1]} if captured.seeded else set())
    for node in captured.main.nodes:
        if not differing.isdisjoint(node.reads):
            differing.update(node.outputs)
            is_control_flow = node.regions or node.op in CONTROL_FLOW
            if is_control_flow or (node.op in _CONVOLUTIONS and node.inputs[1] in differing):
                return True
    return False


def _drawn_numbers(region: Region) -> int:
    """How many normal numbers a graph draws in constant shapes, such as noise for each weight."""
    shapes = [node.inputs[0].node for node in region.nodes if node.op in _NORMALS]
    constants = [node["value"] for node in shapes if node is not None and node.op == "Const"]
    return sum(int(np.prod(shape)) for shape in constants)


def _width(stage: ClientStage, *, keeps_low_rank: bool) -> int:
    """Clients of a group: the largest power of two whose state and batches fit `WORKING_SET_BYTES`.

    At least 2 and at most `MAX_WIDTH`, or `MAX_WIDTH_IMAGES` with convolutions.
    """
    module, state = stage.module, state_bytes(stage.function)
    if has_loops(module):
        state *= 2  # each iteration of a loop within a step adds to the gradients of the weights that it reads
    if keeps_low_rank:
        state //= 2  # factors grow to the size of the kernels, so half of it on average
    batch = sum(_size_bytes(p.type) for p in stage.client_parameters)
    fitting = WORKING_SET_BYTES // max(1, state + batch)
    width = min(MAX_WIDTH, max(2, 1 << (max(1, fitting).bit_length() - 1)))
    return min(width, MAX_WIDTH_IMAGES) if _any_graph_has(module, "Conv2D") else width


def _one_step_width(parameters: Sequence[Parameter], width: int) -> int:
    """The largest power of two whose clients' batches fit `ONE_STEP_BYTES`; 0 if it is not larger than the width."""
    fitting = ONE_STEP_BYTES // max(1, sum(_size_bytes(p.type) for p in parameters))
    wide = min(MAX_ONE_STEP_WIDTH, 1 << (max(1, fitting).bit_length() - 1))
    return wide if wide > width else 0


def schedule_rules(stage: ClientStage) -> ScheduleRules:
    """The rules by which the calls of a stage are scheduled, from the attributes that planning gave its function."""
    plan = stage.function.attributes
    left_out = set(plan.get("without", ()))  # names of `BATCHING_REWRITES`, and of stage passes
    return ScheduleRules(
        int(plan.get("width", 1)),
        one_step_width=int(plan.get("one_step_width", 0)),
        low_rank=int(plan.get("low_rank", 0)),
        products=str(plan.get("products", JOINED)),
        half_steps=has_loops(stage.module),
        block=int(plan.get("block", 1)),
        takes_products=left_out.isdisjoint((KNOWN_INPUTS, DATA_PRODUCTS)),
        keeps_one_step=ONE_STEP_FACTORS not in left_out,
        start_rows=_rows_while_starting(stage),
    )


def _rows_while_starting(stage: ClientStage) -> float:
    """The rows of a batch that a step of a stage computes while it starts its operations, by `cost_model.start_rows`.

    0 if the plan names no target.
    """
    target = stage.module.main.attributes.get("target")
    if not isinstance(target, str):
        return 0.0
    sequences = [leaf for leaf in stage.client_leaves if isinstance(leaf, SequenceType)]
    elements = [t for s in sequences for t in tensor_leaves(s.element)]
    positions = max((_positions(t) for t in elements if t.shape), default=1)
    state = state_bytes(stage.function)
    return start_rows(parse_target(target), state, positions, has_loops=has_loops(stage.module))


def _positions(type_: TensorType) -> int:
    """How often a model multiplies with its weights for one row: for each token, or for each vector of features."""
    sizes = type_.sizes[1:-1] if type_.dtype.is_inexact else type_.sizes[1:]
    return math.prod(size or 1 for size in sizes)


def state_bytes(function: Function) -> int:
    """Bytes of the largest value of a client, such as the weights that it computes with, frozen ones too."""
    return max((_size_bytes(op.type) for op in function.operations), default=0)


def _any_graph_has(module: Module, kind: str) -> bool:
    """Whether a graph has an operation whose name contains `kind`."""
    return any(kind in op for op in operations_of_graphs(module))


def _size_bytes(type_: Type) -> int:
    """Bytes of a value; unknown sizes count as `ASSUMED_ROWS`, a sequence as one element, a text as 8 bytes."""
    total = 0
    for _, leaf in leaves(type_):
        for t in tensor_leaves(leaf.element) if isinstance(leaf, SequenceType) else [leaf]:
            if isinstance(t, TensorType) and t.shape is not None:
                total += math.prod(ASSUMED_ROWS if s is None else s for s in t.shape) * (t.dtype.bits or 64) // 8
    return total
