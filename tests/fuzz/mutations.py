"""Makes inputs that are nearly valid: changes of bytes, of words, and of fields."""

import random
import re
from collections.abc import Sequence

_WORDS = re.compile(rb"[A-Za-z0-9_.]+|->|\s+|.", re.DOTALL)
_NUMBERS = [b"0", b"-1", b"1", b"2", b"255", b"256", b"2147483648", b"9223372036854775808", b"9" * 40, b"9" * 5000]
_STRANGE = [b'"', b"\\", b"{", b"}", b"<" * 50, b"[" * 300, b"*" * 250, b"\x00", b"\xff", "é".encode(), b"//", b"nan"]
_STRANGE += [
    b"T",
    b"int32",
    b"@CLIENTS",
    b"(-> int32)",
    b"1e999",
    b"nan(0xffffffffffffffffff)",
    b"\\ud800",
    b"%0",
    b"@f",
]


def mutated(source: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """The source with one to four changes; `others` is what it may be spliced with."""
    data = source
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        data = rng.choice(_CHANGES)(data, others, rng)
    return data


def flip(data: bytes, others, rng) -> bytes:
    changed = bytearray(data or b"\x00")
    for _ in range(rng.choice((1, 1, 2, 8))):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def cut(data: bytes, others, rng) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + data[start + rng.choice((1, 2, 5, 30)) :]


def double(data: bytes, others, rng) -> bytes:
    start = rng.randrange(len(data) + 1)
    end = start + rng.choice((1, 5, 30, 100))
    return data[:end] + data[start:end] * rng.choice((1, 1, 1, 50)) + data[end:]


def splice(data: bytes, others, rng) -> bytes:
    other = rng.choice(others)
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def stop(data: bytes, others, rng) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _words(data: bytes) -> list[bytes]:
    return _WORDS.findall(data) or [b" "]


def swap_words(data: bytes, others, rng) -> bytes:
    words = _words(data)
    i, j = rng.randrange(len(words)), rng.randrange(len(words))
    words[i], words[j] = words[j], words[i]
    return b"".join(words)


def replace_word(data: bytes, others, rng) -> bytes:
    words = _words(data)
    words[rng.randrange(len(words))] = rng.choice([*_STRANGE, *_NUMBERS, rng.choice(_words(rng.choice(others)))])
    return b"".join(words)


def blow_up_number(data: bytes, others, rng) -> bytes:
    numbers = list(re.finditer(rb"[0-9]+", data))
    if not numbers:
        return data
    match = rng.choice(numbers)
    return data[: match.start()] + rng.choice(_NUMBERS) + data[match.end() :]


def shuffle_lines(data: bytes, others, rng) -> bytes:
    lines = data.split(b"\n")
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[i], lines[j] = lines[j], lines[i]
    return b"\n".join(lines)


FILES = [
    b"/dev/zero",
    b"/etc/passwd",
    b"/proc/self/mem",
    b"worker.py",
    b"../fuzz/worker.py",
    __file__.encode(),
    b"fifo",
    b"",
]
"""Names of files that are there, some of which never end or never begin; the worker makes the FIFO."""


def name_file(data: bytes, others, rng) -> bytes:
    """The locations of a line, or of all lines, name a file that is there."""
    file = rng.choice(FILES)
    found = list(re.finditer(rb'loc\("([^"\n]*)"', data))
    if not found:
        lines = data.split(b"\n")
        lines[rng.randrange(len(lines))] += b'   loc("%s":%d)' % (file, rng.choice((0, 1, 10**9)))
        return b"\n".join(lines)
    match = rng.choice(found)
    if rng.random() < 0.5:
        return data[: match.start(1)] + file + data[match.end(1) :]
    return re.sub(rb'loc\("[^"\n]*"', b'loc("%s"' % file, data)


_CHANGES = [
    name_file,
    flip,
    cut,
    double,
    splice,
    stop,
    swap_words,
    replace_word,
    replace_word,
    blow_up_number,
    shuffle_lines,
]


def mutated_graph(graph_def, rng: random.Random, names: Sequence[str] = ()):
    """A GraphDef with one to three fields changed; the message itself is changed.

    Args:
        names: functions that the process has, or will have.
    """
    for _ in range(rng.choice((1, 1, 2, 3))):
        functions = graph_def.library.function
        bodies = [graph_def.node, *(f.node_def for f in functions)]
        nodes = rng.choice(bodies)
        if not nodes:
            continue
        node, other = rng.choice(nodes), rng.choice(nodes)
        anywhere = rng.choice(rng.choice([b for b in bodies if b]))
        change = rng.randrange(17 if names else 12)
        if change == 0:
            node.input[:] = rng.sample([*node.input, *other.input], len(node.input))
        elif change == 1 and node.input:
            named = [other.name, "^" + other.name, other.name + ":1", other.name + ":y:0", "", ":", "a:b:c:d", "x:-1"]
            node.input[rng.randrange(len(node.input))] = rng.choice(named)
        elif change == 2:
            node.op = rng.choice(
                [anywhere.op, "While", "If", "Const", "NoSuchOp", "", *(f.signature.name for f in functions)]
            )
        elif change == 3:
            nodes.remove(node)
        elif change == 4:
            nodes.add().CopyFrom(anywhere)
        elif change == 5:
            node.name = rng.choice([other.name, "", "^", "a/b", "é", "x" * 1000])
        elif change == 6 and node.attr:
            key = rng.choice(sorted(node.attr))
            if anywhere.attr:
                node.attr[key].CopyFrom(anywhere.attr[rng.choice(sorted(anywhere.attr))])
        elif change == 7 and node.attr:
            del node.attr[rng.choice(sorted(node.attr))]
        elif change == 8 and node.attr:
            _change_value(node.attr[rng.choice(sorted(node.attr))], functions, rng)
        elif change == 9 and functions:
            function = rng.choice(functions)
            rng.choice([function.signature.input_arg, function.signature.output_arg]).add(
                name="z", type=rng.randrange(25)
            )
        elif change == 10 and functions:
            function = rng.choice(functions)
            for key in list(function.ret):
                function.ret[key] = rng.choice(["", "n0", "n0:y:0", "n0:z:7", "a0", function.ret[key] + ":1"])
        elif change == 11 and functions:
            copied = rng.choice(functions)
            functions.add().CopyFrom(copied)
            functions[-1].signature.name = rng.choice([copied.signature.name, "Add", "g", ""])
        elif change >= 12:
            _name_others(graph_def, node, change, names, rng)
    return graph_def


def _name_others(graph_def, node, change: int, names: Sequence[str], rng: random.Random) -> None:
    """Names what belongs to the process: a function, a gradient, a variable."""
    functions, name = graph_def.library.function, rng.choice(names)
    funcs = [f for value in node.attr.values() for f in ([value.func] if value.HasField("func") else value.list.func)]
    if change == 12 and functions:  # the file defines it
        _rename(graph_def, rng.choice(functions).signature.name, name)
    elif change == 13 and funcs:  # the file calls it
        rng.choice(funcs).name = name
    elif change == 14:
        node.op = name
    elif change == 15:
        key = rng.choice(["_gradient_op_type", "_forward_func_name", "_XlaMustCompile", "_class", "_kernel", "_other"])
        value = rng.choice([node.attr, *(f.attr for f in functions), *(f.attr for f in funcs)])[key]
        rng.choice(
            [
                lambda: setattr(value, "s", name.encode()),
                lambda: setattr(value.func, "name", name),
                lambda: value.list.s.append(name.encode()),
                lambda: setattr(value, "placeholder", name),
            ]
        )()
    else:
        variables = [n for body in (graph_def.node, *(f.node_def for f in functions)) for n in body if "Handle" in n.op]
        for variable in variables:
            variable.attr["shared_name"].s = rng.choice([b"", name.encode(), b"n0"])
            variable.attr["container"].s = rng.choice([b"", b"localhost"])


def _rename(graph_def, old: str, new: str) -> None:
    for function in graph_def.library.function:
        if function.signature.name == old:
            function.signature.name = new
    for node in [*graph_def.node, *(n for f in graph_def.library.function for n in f.node_def)]:
        if node.op == old:
            node.op = new
        for value in node.attr.values():
            for func in [value.func] if value.HasField("func") else value.list.func:
                if func.name == old:
                    func.name = new


_INTEGERS = [-(2**63), -1, 0, 1, 255, 2**31, 2**40, 2**63 - 1]


def _change_value(value, functions, rng: random.Random) -> None:
    which = value.WhichOneof("value")
    if which == "func" and functions:
        value.func.name = rng.choice(functions).signature.name
    elif which == "type":
        value.type = rng.choice([*range(24), 101, 500])
    elif which == "i":
        value.i = rng.choice(_INTEGERS)
    elif which == "shape":
        value.shape.dim.add(size=rng.choice(_INTEGERS))
    elif which == "list":
        value.list.type.append(rng.randrange(25))
        if rng.random() < 0.3:
            value.list.i.append(rng.choice(_INTEGERS))
    elif which == "tensor":
        tensor = value.tensor
        choice = rng.randrange(4)
        if choice == 0:
            tensor.tensor_shape.dim.add(size=rng.choice(_INTEGERS))
        elif choice == 1:
            tensor.tensor_content = rng.randbytes(rng.choice((0, 1, 4, 8, 100)))
        elif choice == 2:
            tensor.dtype = rng.randrange(25)
        else:
            tensor.float_val.append(1.0)
    else:
        value.s = rng.choice([b"", b"\xff", b"VALID", b"NHWC", b"x" * 1000])
