"""Makes inputs that are nearly valid: changes of bytes, of words, and of fields."""

import random
import re

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


_CHANGES = [flip, cut, double, splice, stop, swap_words, replace_word, replace_word, blow_up_number, shuffle_lines]


def mutated_graph(graph_def, rng: random.Random):
    """A GraphDef with one to three fields changed; the message itself is changed."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        functions = graph_def.library.function
        bodies = [graph_def.node, *(f.node_def for f in functions)]
        nodes = rng.choice(bodies)
        if not nodes:
            continue
        node, other = rng.choice(nodes), rng.choice(nodes)
        anywhere = rng.choice(rng.choice([b for b in bodies if b]))
        change = rng.randrange(12)
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
    return graph_def


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
