"""The rules of a valid module: names, types, and what each stage of compilation may hold."""

from fedcore.errors import FedcoreError, VerifyError
from fedcore.ir.module import Function, Graph, Module, Operation, Ref, Symbol
from fedcore.ir.operations import PLACED, PLAN, lookup
from fedcore.ir.values import is_placed
from fedcore.types import FunctionType, Type, contains, fits

_BOOKKEEPING = {"struct", "item"}  # free at top level in every stage: they only name parts


def verify(module: Module) -> Module:
    """Returns the module if every rule holds; else raises `VerifyError` with all that is wrong."""
    problems = list(_problems(module))
    if problems:
        raise VerifyError("the module is not valid:\n" + "\n".join(f"  {p}" for p in problems))
    return module


def _problems(module: Module):
    if not module.functions:
        yield "it holds no function"
    known: dict[str, FunctionType | None] = {}  # None: so broken that it has no type
    nodes: tuple[Graph | Function, ...] = (*module.graphs, *module.functions)
    for node in nodes:
        if node.name in known:
            yield f"@{node.name} is defined twice"
        if isinstance(node, Graph):
            yield from _graph_problems(node)
        else:
            yield from _function_problems(module, node, known)
        known[node.name] = node.type if isinstance(node, Graph) or _distinct(node) else None


def _distinct(function: Function) -> bool:
    return len({p.name for p in function.parameters}) == len(function.parameters)


def _graph_problems(graph: Graph):
    if len(graph.digest) != 64 or set(graph.digest) - set("0123456789abcdef"):
        yield f"graph @{graph.name}: sha256:{graph.digest} is no SHA-256 digest"
    if is_placed(graph.type) or contains(graph.type.result, lambda t: isinstance(t, FunctionType)):
        yield f"graph @{graph.name}: {graph.type} is no type of a local function"


def _function_problems(module: Module, function: Function, symbols: dict[str, FunctionType | None]):
    where = f"@{function.name}"
    bound: dict[str, Type] = {}
    for parameter in function.parameters:
        if parameter.name in bound:
            yield f"{where}: parameter %{parameter.name} is given twice"
        bound[parameter.name] = parameter.type
    is_main = function is module.functions[-1]
    if function.placement is not None and module.stage != "planned":
        yield f"{where}: a stage stands in a {module.stage} module"
    for op in function.operations:
        at = f"{where}: %{op.name}" + (f" ({op.location})" if op.location else "")
        types: list[Type] = []
        for operand in op.operands:
            scope = symbols if isinstance(operand, Symbol) else bound
            if operand.name not in scope:
                what = "a symbol defined before" if isinstance(operand, Symbol) else "bound before"
                yield f"{at}: {operand} is not {what}"
            type_ = scope.get(operand.name)
            if type_ is not None:
                types.append(type_)
        if op.name in bound:
            yield f"{at} is bound twice"
        bound[op.name] = op.type
        if len(types) == len(op.operands):
            yield from _operation_problems(at, module.stage, op, types, is_main=is_main)
    yield from _result_problems(where, function, bound, symbols)


def _result_problems(where, function: Function, bound, symbols):
    scope = bound if isinstance(function.result, Ref) else symbols
    if function.result.name not in scope:
        yield f"{where}: it returns {function.result}, which is not bound"
    elif scope[function.result.name] is not None and not fits(scope[function.result.name], function.result_type):
        yield f"{where}: it returns {scope[function.result.name]}, but declares {function.result_type}"
    if function.placement is not None and _distinct(function) and is_placed(function.type):
        yield f"{where}: a stage computes at one placement, but has the type {function.type}"


def _operation_problems(at: str, stage: str, op: Operation, types: list[Type], *, is_main: bool):
    try:
        declared = lookup(op.kind)
        computed = declared.result_type(types, op.attributes)
    except FedcoreError as error:
        yield f"{at}: {error}"
        return
    except KeyError as error:
        yield f"{at}: {op.kind} lacks the attribute {error.args[0]}"
        return
    if computed is not None and not (fits(computed, op.type) and fits(op.type, computed)):
        yield f"{at}: {op.kind} gives {computed}, but {op.type} is written"
    if stage == "planned" and is_main and declared.level != PLAN and op.kind not in _BOOKKEEPING:
        yield f"{at}: {op.kind} stands at the top level of a plan"
    if stage != "planned" and declared.level == PLAN:
        yield f"{at}: {op.kind} belongs to a plan, but the module is {stage}"
    if stage == "lowered" and declared.lowered_by is not None:
        yield f"{at}: {op.kind} is not lowered"
    if stage == "planned" and not is_main and declared.level in (PLACED, PLAN):
        yield f"{at}: {op.kind} stands inside a stage"
