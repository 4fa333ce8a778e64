"""The verifier: rules for the names, types, attributes and operations of a module at each stage of compilation."""

import functools
import inspect
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import cast

import attrs

from fedcore.errors import FedcoreError, VerifyError, brief
from fedcore.ir import limits
from fedcore.ir.module import Blob, Constant, Function, Graph, Module, Operand, Operation, Ref, Symbol, Verified
from fedcore.ir.operations import PLACED, PLAN, Intrinsic, lookup
from fedcore.ir.printer import DIGEST, is_writable, print_value
from fedcore.ir.registry import declarations
from fedcore.ir.target import FORM, is_target
from fedcore.ir.values import is_placed
from fedcore.types import (
    CLIENTS,
    SERVER,
    AbstractType,
    FederatedType,
    FunctionType,
    PlacementType,
    SequenceType,
    TensorType,
    Type,
    contains,
    fits,
    is_static,
    leaves,
    placement_names,
)
from fedcore.types.dtypes import DTYPES
from fedcore.types.placements import PlacementVariable
from fedcore.types.types import MAX_PARTS

_BOOKKEEPING = {"struct", "item"}  # allowed in main at every stage: they compute nothing
_STRATEGIES = ("loop", "vectorised")
# By the kind of an operation of a plan: the placements of the stages that are its first operands.
_STAGE_PLACEMENTS = {"run": (SERVER,), "fold": (CLIENTS, CLIENTS), "merge": (CLIENTS,), "collect": (CLIENTS,)}
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SALT = re.compile(r"[0-9]+(:[0-9]+)?(\.[0-9]+(:[0-9]+)?)*")


def _int_from(least: int, most: int) -> Callable[[object], bool]:
    """A predicate for ints from `least` to `most`."""
    return lambda x: type(x) is int and least <= x <= most


_PASS = re.compile(r"[A-Za-z0-9_\-]{1,100}")
_SOME_CLIENTS = _int_from(1, limits.MAX_CLIENTS_AT_ONCE), f"a number of clients, 1 to {limits.MAX_CLIENTS_AT_ONCE}"
_CLIENTS = _int_from(2, limits.MAX_CLIENTS_AT_ONCE), f"a number of clients, 2 to {limits.MAX_CLIENTS_AT_ONCE}"

_BOOL = (lambda x: type(x) is bool), "true or false"

# By attribute: a predicate for valid values, and their description.
_ATTRIBUTE_VALUES = {
    "bits": (_int_from(0, limits.MAX_BITS), f"a number of bits, at most {limits.MAX_BITS}"),
    "block": _SOME_CLIENTS,
    "call": _SOME_CLIENTS,
    "compute_dtype": (lambda x: isinstance(x, str) and x == "bfloat16", "bfloat16"),
    "effects": _BOOL,
    "index": (_int_from(0, MAX_PARTS), "the position of an element"),
    "keeps": _BOOL,
    "kernels": (lambda x: isinstance(x, str) and x == "onednn", "onednn"),
    "low_rank": (_int_from(1, limits.MAX_RANK), "the rank from which factors of kernels are kept, 1 or more"),
    "once": _BOOL,
    "one_step_width": _CLIENTS,
    "parallel": _SOME_CLIENTS,
    "placement": (lambda x: isinstance(x, str) and x in placement_names(), "a placement"),
    "salt": (lambda x: isinstance(x, str) and len(x) < 1000 and _SALT.fullmatch(x), "a path such as 3.0.2"),
    "products": (lambda x: isinstance(x, str) and x in ("each", "tiles"), "each or tiles"),
    "program": (lambda x: isinstance(x, str) and DIGEST.fullmatch(x) is not None, "the digest of a program"),
    "seeded": _BOOL,
    "stateful": _BOOL,
    "strategy": (lambda x: isinstance(x, str) and x in _STRATEGIES, f"one of {', '.join(_STRATEGIES)}"),
    "table_rows": (_int_from(1, limits.MAX_BITS), "the rows of a table from which changed rows are kept, 1 or more"),
    "target": (is_target, f"a target, {FORM}"),
    "why": (
        lambda x: isinstance(x, str) and 0 < len(x) <= limits.MAX_WHY and x.isprintable(),
        f"a line of at most {limits.MAX_WHY} characters",
    ),
    "width": _CLIENTS,
    "without": (
        lambda x: isinstance(x, tuple) and all(isinstance(n, str) and _PASS.fullmatch(n) for n in x),
        "names of passes of client stages and rewrites of batching",
    ),
    "xla": _BOOL,
}
# The attributes that each part of a module may have; `_form` gives those of operations.
_OF_GRAPHS = frozenset({"effects", "seeded", "stateful"})
_OF_STAGES = frozenset(
    {
        *("strategy", "width", "one_step_width", "block", "call", "parallel", "products", "low_rank", "table_rows"),
        *("kernels", "compute_dtype", "xla", "why", "without"),
    }
)
_OF_PLANS = frozenset({"program", "target"})
_OF_CROSSINGS = frozenset({"bits"})
# Keyword-only parameters of meanings that are no attributes.
_GIVEN_BY_THE_RUNTIME = frozenset({"result_type", "operand_types", "clients", "block_size", "seed"})


def verify(module: Module, known: Verified | None = None) -> Module:
    """Returns the module if it is valid; else raises `VerifyError` with the first `MAX_PROBLEMS` problems.

    The size of the text and `MAX_TYPE_WORK` bound its time.

    Args:
        known: symbols of a traced module that come unchanged from verified modules; they are not verified again.
    """
    if known is None or known.declarations != declarations():
        known = Verified({}, 0, 0)
    verifier = _Verifier(module, known)
    messages = itertools.islice(verifier.problems(), limits.MAX_PROBLEMS + 1)
    problems = [p if len(p) <= limits.MAX_PROBLEM else f"{p[: limits.MAX_PROBLEM]} …" for p in messages]
    if len(problems) > limits.MAX_PROBLEMS:
        problems[limits.MAX_PROBLEMS :] = ["and more"]
    if problems:
        raise VerifyError("the module is not valid:\n" + "\n".join(f"  {p}" for p in problems))
    module.fact("verified", lambda _: verifier.result())
    return module


class _Verifier:
    """The checks of one module, which yield a message for each problem.

    Attributes:
        nodes: the symbols that were checked so far, by name: an operation may name these only.
        types: their types, and those of the symbols that need no check.
    """

    def __init__(self, module: Module, previous: Verified) -> None:
        self.module = module
        self.nodes: dict[str, Function | Graph] = {}
        self.types: dict[str, FunctionType | None] = {**previous.types}  # None: duplicate parameters, so no type
        self._known = previous.types
        self._problem_by_type: dict[Type, str | None] = {}  # results of `_type_problem`
        self._type_work = previous.type_work

    def result(self) -> Verified:
        """The result if there is no problem: then each symbol has a type."""
        return Verified(cast(dict[str, FunctionType], self.types), self._type_work, declarations())

    def problems(self) -> Iterator[str]:
        """The message of each problem; to be read to the end before `result`."""
        if not self.module.functions:
            yield "it holds no function"
        elif self.module.main.placement is not None:
            yield f"@{self.module.main.name}: the last function is the main function, but this is a stage"
        nodes: tuple[Graph | Function, ...] = (*self.module.graphs, *self.module.functions)
        for node in nodes:
            if node.name in self._known:
                continue
            if node.name in self.types:
                yield f"@{node.name} is defined twice"
            yield from self._graph_problems(node) if isinstance(node, Graph) else self._function_problems(node)
            self.nodes[node.name] = node
            self.types[node.name] = node.type if isinstance(node, Graph) or _has_distinct_parameters(node) else None

    def _count_type_work(self, types: Iterable[Type]) -> None:
        """Adds to the type parts that are compared; raises beyond `MAX_TYPE_WORK`, which is seconds of work."""
        self._type_work += sum(t.size for t in types)
        if self._type_work > limits.MAX_TYPE_WORK:
            raise VerifyError(
                f"the operations of the module have types of more than {limits.MAX_TYPE_WORK} parts together, which is "
                "more than is checked"
            )

    def _graph_problems(self, graph: Graph) -> Iterator[str]:
        """Checks a graph's digest, type and attributes; the bytes are checked elsewhere, with TensorFlow."""
        where = f"graph @{graph.name}"
        if not DIGEST.fullmatch(graph.digest):
            yield f"{where}: sha256:{graph.digest} is no SHA-256 digest"
        operand_leaves = [] if graph.type.parameter is None else [leaf for _, leaf in leaves(graph.type.parameter)]
        tensors = [t.element if isinstance(t, SequenceType) else t for t in operand_leaves] + [graph.type.result]
        if not all(isinstance(leaf, TensorType) for t in tensors for _, leaf in leaves(t)) or is_placed(graph.type):
            yield f"{where}: {graph.type} is no type of a local function over tensors and sequences of them"
        yield from _attribute_problems(where, "a graph", graph.attributes, _OF_GRAPHS)

    def _function_problems(self, function: Function) -> Iterator[str]:
        """Checks a function's attributes, parameters, operations and result, in this order."""
        where = f"@{function.name}"
        is_main = function is self.module.main
        yield from self._function_attribute_problems(where, function, is_main=is_main)
        bound: dict[str, Type] = {}
        for parameter in function.parameters:
            if parameter.name in bound:
                yield f"{where}: parameter %{parameter.name} is given twice"
            bound[parameter.name] = parameter.type
            self._count_type_work([parameter.type])
            yield from self._type_problems(f"{where}: %{parameter.name}", parameter.type)
            if self.module.stage == "planned" and contains(parameter.type, _is_function):
                yield f"{where}: %{parameter.name} is a function, which no plan takes"
        made_by: dict[str, Operation] = {}
        for op in function.operations:
            at = f"{where}: %{op.name}" + (f" ({op.location})" if op.location else "")
            yield from self._operation_problems(at, op, bound, made_by, is_main=is_main)
            if op.name in bound:
                yield f"{at} is bound twice"
            bound[op.name] = op.type
            made_by[op.name] = op
        yield from self._result_problems(where, function, bound)

    def _function_attribute_problems(self, where: str, function: Function, *, is_main: bool) -> Iterator[str]:
        if function.placement is not None:
            if self.module.stage != "planned":
                yield f"{where}: a stage stands in a {self.module.stage} module"
            yield from _attribute_problems(where, "a stage", function.attributes, _OF_STAGES)
            yield from _strategy_problems(where, function.attributes)
        else:
            allowed = _OF_PLANS if is_main and self.module.stage == "planned" else frozenset()
            yield from _attribute_problems(where, "a function", function.attributes, allowed)

    def _type_problems(self, at: str, type_: Type) -> Iterator[str]:
        problem = _type_problem(type_, self._problem_by_type)
        if problem is not None:
            yield f"{at}: {problem}"

    def _result_problems(self, where: str, function: Function, bound: Mapping[str, Type]) -> Iterator[str]:
        """Checks a function's result; `bound` has the type of each parameter and binding."""
        scope: Mapping[str, Type | None] = bound if isinstance(function.result, Ref) else self.types
        yield from self._type_problems(where, function.result_type)
        if function.result.name not in scope:
            yield f"{where}: it returns {function.result}, which is not bound"
            return
        have = scope[function.result.name]
        if have is not None and not fits(have, function.result_type):
            yield f"{where}: it returns {have}, but declares {function.result_type}"
        if function.placement is not None and _has_distinct_parameters(function) and is_placed(function.type):
            yield f"{where}: a stage computes at one placement, but has the type {function.type}"

    def _operation_problems(
        self, at: str, op: Operation, bound: Mapping[str, Type], made_by: Mapping[str, Operation], *, is_main: bool
    ) -> Iterator[str]:
        """Checks an operation; ends after a problem from which others would follow.

        Args:
            at: place of the operation, for messages.
            bound: the types of the parameters, and of the bindings before it.
            made_by: the operations of the bindings before it.
        """
        types: list[Type] = []
        for operand in op.operands:
            scope = self.types if isinstance(operand, Symbol) else bound
            if operand.name not in scope:
                what = "a symbol defined before" if isinstance(operand, Symbol) else "bound before"
                yield f"{at}: {operand} is not {what}"
            elif (type_ := scope[operand.name]) is not None:
                types.append(type_)
        try:
            declared = lookup(op.kind)
        except FedcoreError as error:
            yield f"{at}: {error}"
            return
        self._count_type_work([op.type] if op.kind in _BOOKKEEPING else [op.type, *types])
        yield from _level_problems(at, self.module.stage, op, declared, is_main=is_main)
        yield from self._type_problems(at, op.type)
        if len(types) < len(op.operands):
            return
        problems = list(_form_problems(at, op, declared))
        yield from problems
        if problems:
            return
        if self.module.stage == "planned" and declared.level == PLAN:
            problems = list(self._stage_problems(at, op))
            if op.kind == "merge" and not problems and not _is_of_fold(op.operands[1], made_by):
                problems.append(f"{at}: merge joins the partials of a fold, but {op.operands[1]} is not from a fold")
            yield from problems
            if problems:
                return
        yield from _typing_problems(at, op, declared, types)

    def _stage_problems(self, at: str, op: Operation) -> Iterator[str]:
        """Checks that the first operands of an operation of a plan are stages at the right placements."""
        for operand, place in zip(op.operands, _STAGE_PLACEMENTS.get(op.kind, ()), strict=False):
            node = self.nodes.get(operand.name) if isinstance(operand, Symbol) else None
            if not isinstance(node, Function) or node.placement is None:
                yield f"{at}: {op.kind} runs a stage, but {operand} is not a stage"
            elif node.placement != place:
                yield f"{at}: {op.kind} runs a stage at {place}, but {operand} is at {node.placement}"


def _has_distinct_parameters(function: Function) -> bool:
    return len({p.name for p in function.parameters}) == len(function.parameters)


def _is_function(type_: Type) -> bool:
    return isinstance(type_, FunctionType)


def _type_problem(type_: Type, cache: dict[Type, str | None]) -> str | None:
    """Why no value has the type; None for a valid type. `cache` holds the results by type, and gets new ones."""
    if type_ not in cache:
        problem = None
        for _, child in type_.children():
            problem = problem or _type_problem(child, cache)
        cache[type_] = problem or _own_problem(type_)
    return cache[type_]


def _own_problem(type_: Type) -> str | None:
    """`_type_problem` of a type whose parts are valid."""
    if isinstance(type_, AbstractType):
        return f"{type_} has a type variable, which stands in signatures only"
    if isinstance(type_, PlacementType):
        return f"{type_} is the type of no value"
    if not isinstance(type_, FederatedType):
        return None
    if isinstance(type_.placement, PlacementVariable):
        return f"{type_} has a type variable, which stands in signatures only"
    if contains(type_.member, _is_placed_or_function):
        return f"in {type_} a member is itself placed, or a function"
    return None


def _is_placed_or_function(type_: Type) -> bool:
    return isinstance(type_, FederatedType | FunctionType)


def _is_of_fold(operand: Operand, made_by: Mapping[str, Operation]) -> bool:
    """Whether an operand is the result of a fold, or the first element of one, the partials beside kept values.

    Args:
        made_by: the operation of each binding.
    """
    op = made_by.get(operand.name)
    if op is not None and op.kind == "item" and op.attributes.get("index") == 0:
        op = made_by.get(op.operands[0].name)
    return op is not None and op.kind == "fold"


def _level_problems(at: str, stage: str, op: Operation, declared: Intrinsic, *, is_main: bool) -> Iterator[str]:
    """Checks that a module of a stage may have an operation of this level in its main, or in another function."""
    if stage == "planned" and is_main and declared.level != PLAN and op.kind not in _BOOKKEEPING:
        yield f"{at}: {op.kind} stands in the main function of a plan"
    if stage != "planned" and declared.level == PLAN:
        yield f"{at}: {op.kind} belongs to a plan, but the module is {stage}"
    if stage == "lowered" and declared.lowered_by is not None:
        yield f"{at}: {op.kind} is not lowered"
    if stage == "planned" and not is_main and declared.level in (PLACED, PLAN):
        yield f"{at}: {op.kind} stands inside a stage"


def _attribute_problems(at: str, what: str, attributes: Mapping, allowed: frozenset[str]) -> Iterator[str]:
    """Checks names and values of attributes.

    Args:
        at, what: place and owner of the attributes, for messages.
    """
    for key, value in attributes.items():
        if key not in allowed:
            yield f"{at}: {what} has no attribute {key}"
        elif key in _ATTRIBUTE_VALUES and not _ATTRIBUTE_VALUES[key][0](value):
            yield f"{at}: the attribute {key} is {_ATTRIBUTE_VALUES[key][1]}, not {_display(value)}"
        elif not is_writable(value):
            yield f"{at}: no text can hold the attribute {key}, {brief(value)}"


def _strategy_problems(where: str, attributes: Mapping) -> Iterator[str]:
    """Checks the attributes of a client stage that the pass `plan` writes, against each other."""
    block, call = attributes.get("block", 1), attributes.get("call")
    if attributes.get("strategy") == "vectorised" and "width" not in attributes:
        yield f"{where}: a vectorised stage has a width"
    for key in ("products", "one_step_width"):
        if key in attributes and attributes.get("strategy") != "vectorised":
            yield f"{where}: {key} belongs to the strategy vectorised"
    if "parallel" in attributes and attributes.get("strategy") != "loop":
        yield f"{where}: parallel belongs to the strategy loop"
    if type(block) is not int or type(call) is not int:
        return
    blocks = call // block if block > 0 else 0
    if blocks < 1 or call % block or blocks & (blocks - 1):  # a call computes a subtree of the merge tree
        yield f"{where}: a call is 1, 2, 4, 8 … blocks of {block}, not {call} clients"


def _display(value: object) -> str:
    """A value in the notation of modules, if it has one."""
    try:
        return print_value(value)
    except (TypeError, ValueError):
        return repr(value)


@attrs.frozen
class _Form:
    """Syntax of an operation: its attributes, and the number of operands of an operation without a signature.

    Args:
        attributes: all that it may have.
        required: attributes that it must have.
        operands: the number of operands; with `open_ended`, the least number.
    """

    attributes: frozenset[str]
    required: tuple[str, ...]
    operands: int
    open_ended: bool


@functools.lru_cache(maxsize=1024)
def _form(declared: Intrinsic) -> _Form:
    """The syntax of an intrinsic, from the parameters of its `meaning`.

    Attributes are the parameters that it declares as such, and keyword-only ones. Left out are those that the runtime
    gives, and the type variables of the signature. All other parameters are operands. Any operation may also have a
    salt, or, at the level of plans, `bits`.
    """
    parameters = inspect.signature(declared.meaning).parameters.values()
    variables = {v for a in (declared.signature.alternatives if declared.signature else ()) for v in a.variables}
    attributes = [
        p
        for p in parameters
        if p.name in declared.attributes
        or (p.kind is p.KEYWORD_ONLY and p.name not in _GIVEN_BY_THE_RUNTIME and p.name not in variables)
    ]
    attribute_names = {
        *declared.attributes,
        *(p.name for p in attributes),
        *(_OF_CROSSINGS if declared.level == PLAN else ("salt",)),
    }
    operands = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD and p.name not in declared.attributes]
    return _Form(
        frozenset(attribute_names),
        tuple(p.name for p in attributes if p.default is p.empty),
        len(operands),
        any(p.kind is p.VAR_POSITIONAL for p in parameters),
    )


def _form_problems(at: str, op: Operation, declared: Intrinsic) -> Iterator[str]:
    """Checks an operation against the syntax of its intrinsic (`_form`)."""
    form = _form(declared)
    if op.attributes:
        yield from _attribute_problems(at, op.kind, op.attributes, form.attributes)
    for name in form.required:
        if name not in op.attributes:
            yield f"{at}: {op.kind} lacks the attribute {name}"
    if declared.draws and "salt" not in op.attributes:
        yield f'{at}: {op.kind} draws random numbers, so it has a salt that tells it from others, such as {{salt="0"}}'
    if op.kind == "literal" and "value" in op.attributes:
        yield from _literal_problems(at, op.attributes["value"])
    count = len(op.operands)
    if declared.signature is not None:
        return  # matching the signature checks the number of operands
    if form.open_ended and count < form.operands:
        yield f"{at}: {op.kind} takes {form.operands} operands or more, not {count}"
    if not form.open_ended and count != form.operands:
        yield f"{at}: {op.kind} takes {form.operands} operand{'' if form.operands == 1 else 's'}, not {count}"


def _literal_problems(at: str, value: object) -> Iterator[str]:
    if isinstance(value, Blob):
        yield f"{at}: the bytes of {value} are not there; load the bundle, not the text"
    elif not isinstance(value, Constant):
        yield f"{at}: the value of a literal is a constant of its type, not {_display(value)}"
    elif value.dtype not in DTYPES or not value.is_whole():
        yield f"{at}: the literal's bytes are not those of a {value.dtype} of shape {list(value.shape)}"


def _typing_problems(at: str, op: Operation, declared: Intrinsic, types: list[Type]) -> Iterator[str]:
    """Checks that the written result type is the one that the intrinsic computes for operands of some types."""
    try:
        computed = cast(Type | None, declared.result_type(types, op.attributes))
    except FedcoreError as error:
        yield f"{at}: {error}"
        return
    except Exception as error:  # a third party's typing function may fail on unexpected operands
        yield f"{at}: {op.kind} does not take {', '.join(map(str, types)) or 'no operand'} ({error!r})"
        return
    if computed is None:  # the declared type decides, as for generic_zero
        are_numbers = all(
            isinstance(t, TensorType) and t.dtype.is_numeric and is_static(t.shape) for _, t in leaves(op.type)
        )
        if not are_numbers or is_placed(op.type):
            yield f"{at}: {op.kind} gives numbers of known shapes, but {op.type} is written"
    elif computed != op.type and not (fits(computed, op.type) and fits(op.type, computed)):
        yield f"{at}: {op.kind} gives {computed}, but {op.type} is written"
