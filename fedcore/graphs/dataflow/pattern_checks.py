"""Checks of patterns where they are declared: operations, operands, attributes, and the parameters of their rules.

    @pattern(op("Mul", var("x"), const(1)))  # `op`, `var` and `const` make patterns (`rewriting`)
    def multiply_by_one(x): ...              # the rule: its parameters are the names in the patterns

Messages begin with the user's file and line, show both sides, and name a fix.
"""

import difflib
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from fedcore.errors import FedcoreError, TypeMismatch, brief
from fedcore.graphs import private_api
from fedcore.graphs.dataflow.graph import REGIONS
from fedcore.graphs.dataflow.op_signature import Signature, signature
from fedcore.ir.locations import describe, user_location


def check_operation(operation: object, operands: Sequence, attributes: Iterable[str], is_pattern: Callable) -> None:
    """Checks the arguments of `op`.

    Args:
        operation: TensorFlow's name of the operation.
        operands: patterns of the operands.
        attributes: names of the attributes that the pattern asks for.
        is_pattern: whether an object is a `Pattern`, whose module imports this one.
    Raises:
        TypeMismatch: an operand is no pattern, or there are too many or too few.
        FedcoreError: TensorFlow has no such operation, or the operation has no such attribute.
    """
    if not isinstance(operation, str):
        raise TypeMismatch(_add_location(f"op takes the name of an operation first, not {brief(operation)}"))
    for i, operand in enumerate(operands):
        if not is_pattern(operand):
            problem = f"operand {i} of op({operation!r}) is {brief(operand)}, not a pattern"
            raise TypeMismatch(_add_location(f"{problem}{_suggest_pattern(operand)}"))
    if operation in REGIONS or operation == "Const":  # TensorFlow has no definition of the former; `const` is checked
        return
    check_operation_name(operation)
    declared = signature(operation)
    _check_count(operation, declared, operands)
    for name in attributes:
        if name not in declared.kinds:
            raise FedcoreError(
                _add_location(f"{operation} has no attribute {name!r}{_suggest_names(name, declared.kinds)}")
            )


def _check_count(operation: str, declared: Signature, operands: Sequence) -> None:
    """Checks the number of operands of a pattern; without operands it matches any.

    Raises:
        TypeMismatch: there are too many or too few; a list of the definition stands for one or more.
    """
    lists = sum(a.is_list for a in declared.operands)
    least = len(declared.operands)  # a list has one operand at least
    if not operands or len(operands) == least or (lists and len(operands) > least):
        return
    names = ", ".join(f"{a.name}…" if a.is_list else a.name for a in declared.operands)
    takes = f"{least} or more operands" if lists else f"{least} operand{'s' * (least != 1)}"
    fix = f"fix: op({operation!r}) alone matches any operands, var('name') any one"
    raise TypeMismatch(_add_location(f"{operation} has {takes} ({names}), but the pattern has {len(operands)}\n{fix}"))


def check_operation_name(name: str) -> None:
    """Checks the name of an operation of TensorFlow or of a region.

    Raises:
        FedcoreError: there is none; the message has similar names.
    """
    if name not in REGIONS and private_api.op_definition(name) is None:
        similar = _suggest_names(name, [*REGIONS, *(n for n in dir(tf.raw_ops) if n[0].isupper())])
        raise FedcoreError(_add_location(f"TensorFlow has no operation {name!r}{similar}"))


def check_name(name: object, maker: str) -> None:
    """Checks the name of a variable, which is the name of the rule's parameter.

    Args:
        maker: the user's call with the name, for the message, such as `var`.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise TypeMismatch(_add_location(f"{maker} takes the name of the rule's parameter, not {brief(name)}"))


def check_content(content: object) -> None:
    """Checks the content of a constant: a number, or None for any."""
    if content is not None and not isinstance(content, int | float):
        raise TypeMismatch(_add_location(f"const takes a number, or nothing for any constant, not {brief(content)}"))


def check_patterns(patterns: Sequence, is_pattern: Callable) -> None:
    """Checks the arguments of `pattern`: patterns of the results of operations.

    Args:
        is_pattern: whether an object is a `Pattern`, whose module imports this one.
    Raises:
        TypeMismatch: there is no pattern, an argument is none, or it is a variable, which matches any value.
    """
    if not patterns:
        raise TypeMismatch(
            _add_location("a rule without a pattern matches nothing: @pattern(op('AddV2', var('x'), const(0)))")
        )
    for each in patterns:
        if callable(each):
            raise TypeMismatch(
                _add_location(f"@pattern takes patterns: @pattern(op('AddV2', …)) stands before {describe(each)}")
            )
        if not is_pattern(each):
            raise TypeMismatch(_add_location(f"a rule matches patterns, not {brief(each)}{_suggest_pattern(each)}"))
        if each.op is None:
            raise TypeMismatch(
                _add_location(f"a rule matches the results of an operation, but {each} matches any value")
            )


def check_parameters(function: Callable, patterns: Sequence) -> None:
    """Checks that a rule takes what each of its patterns names.

    Raises:
        TypeMismatch: shows both sides.
    """
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    required = [n for n, p in parameters.items() if p.default is p.empty]
    for each in patterns:
        names = list(dict.fromkeys(_names(each)))
        missing = [n for n in names if n not in parameters]
        unmatched = [n for n in required if n not in names]
        if not missing and not unmatched:
            continue
        sides = f"takes ({', '.join(parameters)}), but {each} names ({', '.join(names)})"
        if len(missing) == len(unmatched) == 1:
            fix = f"var({missing[0]!r}) and the parameter {unmatched[0]!r} have one name"
        elif missing:
            fix = f"the rule takes {', '.join(missing)} too"
        else:
            fix = f"the pattern names {', '.join(unmatched)}, such as var({unmatched[0]!r})"
        raise TypeMismatch(f"the rule {describe(function)} {sides}\nfix: {fix}")


def _names(each: Any) -> list[str]:
    """The names of the variables in a pattern and its operands."""
    names = [] if each.name is None else [each.name]
    return names + [n for operand in each.operands or () for n in _names(operand)]


def _suggest_pattern(value: object) -> str:
    """The end of an error: the pattern to write in the place of a value that is none; empty if none is known."""
    if isinstance(value, bool | int | float):
        return f"\nfix: const({value!r})"
    if isinstance(value, str) and value.isidentifier():
        return f"\nfix: var({value!r}), or op({value!r}) for the result of an operation"
    return ""


def _suggest_names(name: str, names: Iterable[str]) -> str:
    """The end of an error, with the names that are close to a wrong one; empty if none is."""
    close = difflib.get_close_matches(name, list(names), 3)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def _add_location(message: str) -> str:
    """The message behind the user's file and line, if these are known."""
    location = user_location()
    return message if location is None else f"{location}: {message}"


__all__ = ["check_content", "check_name", "check_operation", "check_parameters", "check_patterns"]
