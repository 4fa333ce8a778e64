"""Lines of a program of TFF that need an edit: imports, names that are gone, and what Keras 3 has no more.

A program is read, never run. TFF's names are followed from its imports. Calls of Keras are recognised by their names
alone: another object may have a method of that name.
"""

import ast
from collections.abc import Iterator

import attrs

from fedcore.compat.names import gone
from fedcore.compat.porting import resolves, value_of
from fedcore.errors import ParseError

_PACKAGES = ("tensorflow_federated", "federated_language")


@attrs.frozen(order=True)
class Edit:
    """A line that needs an edit: what it has, and what to write."""

    line: int
    has: str
    write: str


def edits(source: str) -> list[Edit]:
    """The edits that a program needs, in the order of its lines.

    Raises:
        ParseError: it is no Python.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise ParseError(error.msg, source, error.lineno or 1, error.offset or 1) from None
    aliases: dict[str, str] = {}
    needed_edits: set[Edit] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            needed_edits.update(_import_edits(node, aliases))
    for node in ast.walk(tree):
        needed_edits.update(edit for edit in (_name_edit(node, aliases), *_keras_edits(node)) if edit)
    return sorted(needed_edits)


def _import_edits(node: ast.Import | ast.ImportFrom, aliases: dict[str, str]) -> Iterator[Edit]:
    """Yields the edits of an import of TFF.

    Args:
        aliases: gets each name that the import binds -> the path below `fc` that it refers to; "" for `fc` itself.
    """
    if isinstance(node, ast.Import):
        for alias in node.names:
            package, _, inner = alias.name.partition(".")
            if package in _PACKAGES:
                aliases[alias.asname or package] = inner if alias.asname else ""
                yield Edit(node.lineno, f"import {alias.name}", f"import fedcore as {alias.asname or package}")
        return
    package, _, inner = (node.module or "").partition(".")
    if package not in _PACKAGES or node.level:
        return
    if inner.partition(".")[0] == "python":
        write = "TFF's inner modules are not here: import fedcore as tff, and write the public names"
        yield Edit(node.lineno, f"from {node.module} import …", write)
        return
    for alias in node.names:
        name = f"{inner}.{alias.name}".lstrip(".")
        aliases[alias.asname or alias.name] = name
        write = _advice(name) or f"from {f'fedcore.{inner}'.rstrip('.')} import {alias.name}"
        yield Edit(node.lineno, f"from {node.module} import {alias.name}", write)


def _name_edit(node: ast.AST, aliases: dict[str, str]) -> Edit | None:
    """The edit of a name of TFF that fedcore does not have; None for any other node.

    Args:
        aliases: as `_import_edits` fills it.
    """
    if not isinstance(node, ast.Attribute):
        return None
    parts = ast.unparse(node).split(".")
    if parts[0] not in aliases or not all(map(str.isidentifier, parts)):
        return None
    name = ".".join(part for part in (aliases[parts[0]], *parts[1:]) if part)
    parent = name.rpartition(".")[0]
    if resolves(name) or (parent and not resolves(parent)):
        return None  # it is here, or the edit is that of the parent
    if not gone(name) and parent and not hasattr(value_of(parent), "__path__"):
        return None  # an attribute of an object
    return Edit(node.lineno, ".".join(parts), _advice(name) or "neither TFF's last versions nor fedcore have this name")


def _advice(name: str) -> str:
    """The text of the edit of a TFF name that is gone: its replacement and the reason; "" for any other name."""
    replacement = gone(name)
    if replacement is None:
        return ""
    return f"{replacement.use}: {replacement.why}" if replacement.use else f"not planned here: {replacement.why}"


_STEP_WITH_TAPE = "with tf.GradientTape() as tape: …; optimizer.apply(tape.gradient(loss, variables), variables)"
_KERAS_METHODS: dict[str, str] = {
    "minimize": _STEP_WITH_TAPE,
    "read_value": "variable.value",
    "ref": "id(variable), where it is a variable of Keras",
    "reset_states": "reset_state()",
    "variables": "optimizer.variables, which is a list",
}
"""Method that Keras 3 has no more, or takes otherwise -> what to write."""
_KERAS_KEYWORDS: dict[tuple[str, str], str] = {
    ("apply_gradients", "name"): "apply_gradients(pairs), without other arguments",
    ("apply_gradients", "experimental_aggregate_gradients"): "apply_gradients(pairs), without other arguments",
    ("BatchNormalization", "fused"): "BatchNormalization without fused",
    **{
        (layer, "time_major"): f"{layer} without time_major: the batch comes first"
        for layer in ("LSTM", "GRU", "SimpleRNN")
    },
    **{(optimizer, "lr"): "learning_rate=" for optimizer in ("SGD", "Adam", "Adagrad", "RMSprop", "Adadelta")},
}
"""(last name of what is called, keyword that Keras 3 has no more) -> what to write."""
_KERAS_NAMES: dict[str, str] = {
    "keras.layers.experimental": "the layer below keras.layers",
    "keras.experimental": "the name below keras",
}
"""Module that Keras 3 has no more -> where its names are."""
_BATCH_INPUT_SHAPE = "a keras.Input(batch_shape=…) before the layer"


def _keras_edits(node: ast.AST) -> Iterator[Edit]:
    """Yields the edits of a name or a call that Keras 3 does not accept."""
    if isinstance(node, ast.Attribute):
        name = ast.unparse(node).removeprefix("tf.")
        if name in _KERAS_NAMES:
            yield Edit(node.lineno, ast.unparse(node), _KERAS_NAMES[name])
    if not isinstance(node, ast.Call):
        return
    function = node.func
    called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if isinstance(function, ast.Attribute) and called in _KERAS_METHODS and _takes_as_keras_2(called, node):
        yield Edit(node.lineno, f"{ast.unparse(function)}()", _KERAS_METHODS[called])
    for keyword in node.keywords:
        if (called, keyword.arg) in _KERAS_KEYWORDS:
            yield Edit(node.lineno, f"{called}({keyword.arg}=…)", _KERAS_KEYWORDS[called, keyword.arg or ""])
        if keyword.arg == "batch_input_shape":
            yield Edit(node.lineno, f"{called}(batch_input_shape=…)", _BATCH_INPUT_SHAPE)
    if called == "add_weight" and any(map(_is_text, node.args[:1])):
        yield Edit(node.lineno, "add_weight(NAME, …)", "add_weight(name=NAME, …): the first argument is the shape")


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _takes_as_keras_2(method: str, call: ast.Call) -> bool:
    """Whether a call has the arguments that the method takes in Keras 2: `minimize` some, the others none."""
    return bool(call.args or call.keywords) == (method == "minimize")
