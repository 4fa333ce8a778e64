"""The pass `plan`: the strategy of each client stage, and the size of each crossing."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import attrs

from fedcore.compiler.bfloat16_stages import with_bfloat16_stages
from fedcore.compiler.host_target import default_target
from fedcore.compiler.pipeline import compiler_pass
from fedcore.errors import FedcoreError, brief, shorten
from fedcore.intrinsics.planned import fold_of, split_operands
from fedcore.intrinsics.secure_ranges import OPEN
from fedcore.intrinsics.sent_values import sent_bits, sent_by
from fedcore.ir import Module, Operation, Ref
from fedcore.ir.limits import MAX_DIGITS, MAX_WHY
from fedcore.ir.reachable import reachable
from fedcore.ir.target import Target, parse_target
from fedcore.types import Type, leaves, member_of

if TYPE_CHECKING:
    from fedcore.graphs.batched.batching_policy import BatchingPolicy


@compiler_pass("plan")
def plan(
    module: Module,
    *,
    vectorize: str = "auto",
    block_size: str = "auto",
    xla: str = "auto",
    low_rank: str = "auto",
    compute_dtype: str = "float32",
    secure: str = "plain",
    target: str = "host",
    without: str = "",
) -> Module:
    """Writes the strategy of each client stage and the size of each crossing into the plan, by shape rules only.

    Strategy `vectorised`: a graph call computes `call` clients in groups of `width`, batched along the client axis;
    the fold runs in blocks of 8. It needs batching rules for all operations of the stage. Groups have `one_step_width`
    clients where all clients of a call take one step. Strategy `loop`: a graph call computes one client; `why` holds
    the reason. The workers run such calls in parallel. A loop with larger blocks computes a block in one graph call
    where it can, which loops over its clients, `parallel` (4) at once; unless it keeps kernels low-rank, its bits are
    those of a call for each client. With `table_rows`, a loop keeps the rows that clients change of tables of so many
    rows and more, such as embeddings, and a call has `call` clients. On AVX2, `kernels=onednn` gives stages oneDNN's
    kernels, which TensorFlow leaves out there.

    Args:
        vectorize: `auto`, `false`, or the width. Stages without batching rules loop for every width.
        block_size: `auto`, or the clients of a block.
        xla: `true` compiles with XLA each stage whose graphs all allow it; `auto` and `false` compile none, since XLA
            was no faster on CPUs.
        low_rank: `auto` keeps the kernels of large dense layers as factors of low rank while a vectorised stage, or
            a loop that trains convolutions, trains them by gradient descent; `false` keeps none. The attribute
            `low_rank` is the rank from which they are kept: a client's factors are added up when their rank reaches it.
            With 1, they are kept for clients of one step only, also those of smaller layers. `false` keeps no changed
            rows of tables either.
        compute_dtype: `bfloat16` computes float32 products in bfloat16 where client stages compute on clients' data
            sets; such stages have the attribute `compute_dtype` and are not compiled with XLA, which may leave the
            rounding out. `float32` rounds nothing.
        secure: `masked` loops stages with secure sums in blocks of one client, since the protocol masks the partial of
            each client; `plain` treats secure sums as other sums.
        target: the kind of machine whose shape rules hold, such as `avx2/small-l2/slow-memory/no-gpu`; `host` is that
            of the variable FEDCORE_TARGET, else that of this machine. A plan with client stages holds it.
        without: names of stage passes and of rewrites of batching, joined by `+`, that vectorised stages run without;
            `fedcore opt --list` has them.
    """
    if secure not in ("plain", "masked"):
        raise FedcoreError(f"the option secure of plan is plain or masked, not {secure!r}")
    if xla not in ("auto", "true", "false"):
        raise FedcoreError(f"the option xla of plan is auto, true or false, not {xla!r}")
    if low_rank not in ("auto", "false"):
        raise FedcoreError(f"the option low_rank of plan is auto or false, not {low_rank!r}")
    if compute_dtype not in ("float32", "bfloat16"):
        raise FedcoreError(f"the option compute_dtype of plan is float32 or bfloat16, not {compute_dtype!r}")
    kind = default_target() if target == "host" else parse_target(target)
    width, block = _parse_number("vectorize", vectorize, 2, "false"), _parse_number("block_size", block_size, 1)
    left_out = _parse_rewrites(without)
    if module.stage != "planned":
        return module
    rounded: set[str] = set()  # names of the client stages that compute in bfloat16
    if compute_dtype == "bfloat16":
        undecided, unrounded = _undecided_stages(module), module
        module = with_bfloat16_stages(module, undecided)
        rounded = {name for name in undecided if module[name] != unrounded[name]}
    main = module.main
    merges = _merges_by_fold(module)
    attributes = {  # by client stage
        _stage_of(op): _strategy(
            module,
            op,
            merges.get(op.name),
            kind,
            width,
            block,
            xla=xla == "true",
            low_rank=low_rank == "auto",
            masked=secure == "masked",
            rounded=_stage_of(op) in rounded,
        )
        for op in main.operations
        if op.kind in ("fold", "collect")
    }
    for stage_attributes in attributes.values():
        if left_out and stage_attributes["strategy"] == "vectorised":
            _leave_out(stage_attributes, left_out)
    functions = [
        attrs.evolve(f, attributes=attributes[f.name]) if f.name in attributes and "strategy" not in f.attributes else f
        for f in module.functions[:-1]
    ]
    by_name = {op.name: op for op in main.operations}
    operations = tuple(_with_bits(module, op, by_name) for op in main.operations)
    plan_attributes = {"target": str(kind), **main.attributes} if attributes else main.attributes
    main = attrs.evolve(main, operations=operations, attributes=plan_attributes)
    planned = attrs.evolve(module, functions=(*functions, main))
    return module if planned == module else planned


BLOCK = 8
"""Clients of a block of a vectorised stage or a parallel loop; it fixes the order of the sums, and so the bits."""

LOW_RANK_BLOCK = 4
"""Clients of a block of a loop that keeps kernels low-rank, and multiplies the factors of a block at once."""


def _parse_number(option: str, text: str, least: int, *words: str) -> int | None:
    """The number that an option of the pass gives; None for `auto`, 0 for one of `words`.

    Raises:
        FedcoreError: the text is none of them, or a number below `least`.
    """
    if text in ("auto", *words):
        return None if text == "auto" else 0
    if not text.isdecimal() or len(text) > MAX_DIGITS or int(text) < least:
        words_ = ", ".join(("auto", *words))
        raise FedcoreError(f"the option {option} of plan is {words_} or a number, {least} or more, not {brief(text)}")
    return int(text)


# By rewrite that runs before this pass, which cannot leave it out, the way to do so.
_BEFORE_PLAN = {
    "hoist-relu-gradients": "leave the pass out of the pipeline",
    "round-products": "use compute_dtype=float32",
}


def _parse_rewrites(text: str) -> tuple[str, ...]:
    """The names of stage passes and rewrites of batching in the option `without`.

    Raises:
        FedcoreError: there is no rewrite of a name, or it runs before this pass.
    """
    if not text:
        return ()
    from fedcore.graphs.batched.batching_rewrites import BATCHING_REWRITES
    from fedcore.graphs.dataflow.stage_passes import get_stage_pass

    names = [name.strip() for name in text.split("+")]
    for name in names:
        if name in _BEFORE_PLAN:
            raise FedcoreError(f"without={name} has no effect in plan, before which it runs: {_BEFORE_PLAN[name]}")
    return tuple(name if name in BATCHING_REWRITES else get_stage_pass(name).name for name in names)


def _leave_out(attributes: dict[str, object], names: tuple[str, ...]) -> None:
    """Writes the names of rewrites into a stage's attributes.

    A rank that holds for clients of one step only goes with the rewrite that uses it.
    """
    from fedcore.graphs.batched.batching_rewrites import ONE_STEP_FACTORS
    from fedcore.graphs.batched.low_rank_policy import ONE_STEP

    attributes["without"] = names
    if ONE_STEP_FACTORS in names and attributes.get("low_rank") == ONE_STEP:
        del attributes["low_rank"]
        attributes.pop("one_step_width", None)


def _stage_of(op: Operation) -> str:
    """The client stage of a fold or a collect."""
    return op.operands[0 if op.kind == "collect" else 1].name


def _undecided_stages(module: Module) -> set[str]:
    """The client stages that have no strategy yet."""
    stages = {_stage_of(op) for op in module.main.operations if op.kind in ("fold", "collect")}
    return {s for s in stages if "strategy" not in module[s].attributes}


def _merges_by_fold(module: Module) -> dict[str, Operation]:
    """By name of a fold its merge."""
    by_name = {op.name: op for op in module.main.operations}
    return {fold_of(op, by_name).name: op for op in module.main.operations if op.kind == "merge"}


def _strategy(
    module: Module,
    op: Operation,
    merge: Operation | None,
    target: Target,
    width: int | None,
    block: int | None,
    *,
    xla: bool,
    low_rank: bool,
    masked: bool,
    rounded: bool,
) -> dict[str, object]:
    """The attributes of the stage of a fold or a collect.

    Args:
        merge: that of the fold; None if nothing merges its partials.
        width, block: the options `vectorize` and `block_size`, as numbers of clients; None for `auto`.
        xla, low_rank, masked: the options of these names, `masked` being `secure=masked`.
        rounded: the stage computes products in bfloat16.
    """
    compiled = {"xla": True} if xla and not rounded and _is_for_xla(module, op) else {}
    dtype = {"compute_dtype": "bfloat16"} if rounded else {}
    kernels = {} if compiled else _kernels(module, op, target)
    if masked and merge is not None and "secure" in merge.attributes:
        why = "secure sums mask the partial of each client"
        return {"strategy": "loop", "block": 1, **kernels, **dtype, **compiled, "why": why}
    policy = _batching(module, op, merge, target, width, block, low_rank=low_rank and not compiled and not rounded)
    if isinstance(policy, str):
        return {"strategy": "loop", "block": block or 1, **kernels, **dtype, **compiled, "why": _in_text(policy)}
    rank = {"low_rank": policy.low_rank} if policy.low_rank else {}
    from fedcore.graphs.batched.cost_model import PARALLEL

    if policy.width == 1:
        loop_block = block or (LOW_RANK_BLOCK if rank else 1)
        at_once = {"parallel": min(PARALLEL, loop_block)} if rank and loop_block > 1 else {}
        loop = {"strategy": "loop", "block": loop_block, **at_once, **rank, **kernels, **dtype, **compiled}
        return {**loop, "why": _in_text(policy.why_loop or "")}
    if policy.why_loop is not None and not compiled:
        loop_block = block or (1 if merge is None else BLOCK)
        tables = {"call": policy.call, "table_rows": policy.table_rows} if policy.table_rows else {}
        loop = {"strategy": "loop", "block": loop_block, "parallel": policy.parallel, **tables, **kernels, **dtype}
        return {**loop, "why": policy.why_loop}
    return {
        "strategy": "vectorised",
        "width": policy.width,
        **({"one_step_width": policy.one_step_width} if policy.one_step_width else {}),
        "block": block or BLOCK,
        "call": policy.call,
        **({"products": policy.products} if policy.products else {}),
        **rank,
        **kernels,
        **dtype,
        **compiled,
    }


def _kernels(module: Module, op: Operation, target: Target) -> dict[str, object]:
    """The attribute `kernels` of a stage where its operations have faster kernels of oneDNN on the target."""
    from fedcore.graphs.graphdef.form.operations import operations_of
    from fedcore.graphs.stages.onednn import ONEDNN, chooses_onednn

    digests = [g.digest for g in _stage_module(module, op).graphs if g.digest in module.blobs]
    operations = {o for digest in digests for o in operations_of(digest, module.blobs[digest])}
    return {"kernels": ONEDNN} if chooses_onednn(operations, target) else {}


def _is_for_xla(module: Module, op: Operation) -> bool:
    """Whether XLA can compile all graphs of a stage."""
    from fedcore.graphs.stages.xla import can_compile

    graphs = _stage_module(module, op).graphs
    return bool(graphs) and all(can_compile(g, module.blob(g.digest)) for g in graphs)


def _stage_module(module: Module, op: Operation) -> Module:
    """The functions and graphs that the stage of a fold or a collect calls."""
    names = [f.name for f in module.functions]
    return reachable(module, module.functions[: names.index(_stage_of(op)) + 1])


def _in_text(reason: str) -> str:
    """A reason as one line of bounded length, which every text can hold."""
    line = " ".join(reason.split())
    return shorten("".join(c if c.isprintable() else "?" for c in line), MAX_WHY)


def _batching(
    module: Module,
    op: Operation,
    merge: Operation | None,
    target: Target,
    width: int | None,
    block: int | None,
    *,
    low_rank: bool,
) -> "BatchingPolicy | str":
    """The batching policy of a fold or a collect, or the reason why its clients run one after another.

    Args:
        merge, width, block, low_rank: as of `_strategy`; the width 0 batches nothing.
    """
    if width == 0:
        return "the option vectorize is false"
    if op.kind == "fold" and merge is None:
        return "its partials are not merged"
    if not leaves(member_of(op.type)):
        return "its result holds no tensors"
    types = module.fact("types of main", _types_of_main)
    operand_types = [types[o.name] for o in op.operands if isinstance(o, Ref)]
    broadcasts = split_operands(operand_types)
    if broadcasts == len(operand_types):
        return "it takes no value of a client's own"
    from fedcore.graphs.batched.batching_policy import BatchingPolicy, batching_policy
    from fedcore.graphs.stages.client_stage import ClientStage

    stage = ClientStage.from_operation(module, op, merge, broadcasts)
    policy = batching_policy(stage, block or BLOCK, target, width, low_rank=low_rank)
    return policy if isinstance(policy, BatchingPolicy) else f"{policy.op}: {policy.why}"


def _types_of_main(module: Module) -> dict[str, Type]:
    return module.main.types()


def _with_bits(module: Module, op: Operation, by_name: dict[str, Operation]) -> Operation:
    """The operation with its `crossing_bits` as an attribute; see there."""
    if op.kind == "broadcast" and op.attributes.get("bits") == 0:
        return op  # a constant
    bits = crossing_bits(module, op, by_name)
    return op if bits is None else attrs.evolve(op, attributes={**op.attributes, "bits": bits})


def crossing_bits(module: Module, op: Operation, by_name: dict[str, Operation]) -> int | None:
    """The bits of one client in an operation of a plan; None if it does not cross, or if types leave them open.

    Args:
        by_name: the operations of main.
    """
    if op.kind == "broadcast":
        return _sum_or_none(sent_bits(leaf, OPEN) for _, leaf in leaves(member_of(op.type)))
    if op.kind != "merge":
        return None
    sent = sent_by(module, fold_of(op, by_name)).values()
    return _sum_or_none(sent_bits(leaf, s.secure) for s in sent for _, leaf in leaves(s.type))


def _sum_or_none(sizes: Iterable[int | None]) -> int | None:
    """The sum of sizes; None if a size is not known."""
    bits = list(sizes)
    return None if None in bits else sum(size for size in bits if size is not None)
