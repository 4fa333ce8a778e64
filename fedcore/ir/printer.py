"""Printer: module to text. `parser.py` holds the grammar."""

import json
import re
from collections.abc import Iterator

import numpy as np

from fedcore.errors import Location, brief
from fedcore.ir.module import TEXT_VERSION, Attributes, Blob, Constant, Function, Graph, Module, Operand, Operation, Ref
from fedcore.ir.type_names import TypeNames
from fedcore.types import Type
from fedcore.types.dtypes import as_dtype

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_RESERVED = {"true", "false", "inf", "nan"}
DIGEST = re.compile(r"[0-9a-f]{64}")
_BARE = re.compile(r"[A-Za-z0-9_]+\Z")


def print_module(module: Module, *, locations: bool = True, type_names: dict[Type, str] | None = None) -> str:
    """The text of the module.

    Args:
        locations: the lines of the user are in the text.
        type_names: names of types, which get their names in the text; the names of other types are added. So texts of a
            module before and after a pass have equal names.
    """
    names = TypeNames(_types(module), type_names or {})
    if type_names is not None:
        type_names.update(names.names)
    parts = [f"fedcore {TEXT_VERSION} {module.stage}"]
    if names.definitions:
        parts.append("\n".join(f"type {name} = {text}" for name, text in names.definitions))
    if module.graphs:
        parts.append("\n".join(_graph(g, names) for g in module.graphs))
    parts.extend(_function(f, names, locations) for f in module.functions)
    return "\n\n".join(parts) + "\n"


def print_operation(op: Operation) -> str:
    """The line of an operation, with its types in full."""
    return _operation(op, TypeNames(()), locations=True).strip()


def _types(module: Module) -> Iterator[Type]:
    """The types that the text writes, each as often as it writes it."""
    for graph in module.graphs:
        yield graph.type
    for function in module.functions:
        yield from (p.type for p in function.parameters)
        yield from (op.type for op in function.operations)
        yield function.result_type


def _graph(graph: Graph, names: TypeNames) -> str:
    return (
        f"graph {symbol(graph.name)} : {names.write(graph.type)}  sha256:{graph.digest}{_attributes(graph.attributes)}"
    )


def _function(function: Function, names: TypeNames, locations: bool) -> str:
    """The text of a function, or of a stage; with `locations`, operations have the lines of the user."""
    word = "fn" if function.placement is None else "stage"
    parameters = ", ".join(f"{reference(p.name)}: {names.write(p.type)}" for p in function.parameters)
    head = f"{word} {symbol(function.name)}({parameters}) -> {names.write(function.result_type)}"
    if function.placement is not None:
        head += f" at {function.placement}"
    lines = [f"{head}{_attributes(function.attributes)} {{{_location(function, locations)}"]
    lines.extend(_operation(op, names, locations) for op in function.operations)
    lines.append(f"  return {_operand(function.result)}")
    lines.append("}")
    return "\n".join(lines)


def _operation(op: Operation, names: TypeNames, locations: bool) -> str:
    operands = ", ".join(map(_operand, op.operands))
    text = f"  {reference(op.name)} = {op.kind}({operands}) : {names.write(op.type)}{_attributes(op.attributes)}"
    return text + _location(op, locations)


def _location(node: Function | Operation, locations: bool) -> str:
    """The `loc(…)` at the end of a line; empty for a node without a location, and without `locations`."""
    if not locations or node.location is None:
        return ""
    library = node.location.library
    return f"   loc({_line(node.location)}{'' if library is None else f' in {_line(library)}'})"


def _line(location: Location) -> str:
    file = json.dumps(location.file, ensure_ascii=False)
    # A path may hold undecodable bytes as surrogates, which UTF-8 cannot encode.
    return f"{file.encode(errors='replace').decode()}:{location.line}"


def _name(sigil: str, name: str) -> str:
    """A name behind its sigil, `%` or `@`; in quotes if it has other signs than letters, digits and underscores."""
    return sigil + (name if _BARE.match(name) else json.dumps(name, ensure_ascii=False))


def reference(name: str) -> str:
    return _name("%", name)


def symbol(name: str) -> str:
    return _name("@", name)


def _operand(operand: Operand) -> str:
    return _name("%" if type(operand) is Ref else "@", operand.name)


def _attributes(attributes: Attributes) -> str:
    if not attributes:
        return ""
    return " {" + ", ".join(f"{key}={print_value(value)}" for key, value in attributes.items()) + "}"


def is_writable(value: object) -> bool:
    """Whether a text can hold the value of an attribute."""
    if isinstance(value, tuple):
        return all(map(is_writable, value))
    if isinstance(value, Blob):
        return DIGEST.fullmatch(value.digest) is not None
    if isinstance(value, float):
        return value == value
    return isinstance(value, bool | int | str | bytes | Constant)


def print_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, bytes):
        return _bytes(value)
    if isinstance(value, str):
        return value if _WORD.match(value) and value not in _RESERVED else json.dumps(value, ensure_ascii=False)
    if isinstance(value, Blob):
        return str(value)
    if isinstance(value, Constant):
        return print_constant(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(map(print_value, value)) + "]"
    raise TypeError(f"an attribute cannot hold {brief(value)}")


def print_constant(constant: Constant) -> str:
    if isinstance(constant.data, tuple):
        scalars = [_bytes(x) for x in constant.data]
    elif (dtype := as_dtype(constant.dtype).numpy).kind == "c":
        parts = np.frombuffer(constant.data, f"f{dtype.itemsize // 2}").reshape(-1, 2)
        scalars = [f"[{_number(re)}, {_number(im)}]" for re, im in parts]
    else:
        scalars = [_number(x) for x in np.frombuffer(constant.data, dtype)]
    return scalars[0] if constant.shape == () else "[" + ", ".join(scalars) + "]"


def _bytes(data: bytes) -> str:
    """Bytes in the notation: `b"…"`, with bytes that are not printable ASCII as `\\x0a`."""
    out = "".join(chr(c) if 32 <= c < 127 and c not in b'"\\' else f"\\x{c:02x}" for c in data)
    return f'b"{out}"'


def _number(x: np.generic) -> str:
    """Shortest decimal that parses to the same bits; a NaN with a payload other than numpy's in hex."""
    if x.dtype == np.bool_:
        return "true" if x else "false"
    if x.dtype.kind in "iu":
        return str(int(x))
    if x == x:
        text = str(x) if x.dtype.kind == "f" else str(np.float32(x))
        return text if any(c in text for c in ".einf") else text + ".0"
    bits = int(x.view(f"u{x.dtype.itemsize}"))
    usual = int(np.array(np.nan, x.dtype).view(f"u{x.dtype.itemsize}"))
    return "nan" if bits == usual else f"nan(0x{bits:x})"
