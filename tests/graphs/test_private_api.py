"""Private parts of TensorFlow and Keras: one module uses them, and each has a contract that holds."""

import ast
import pathlib
import re

import pytest

import fedcore
from fedcore.graphs import private_api, private_api_keras, private_api_shapes
from fedcore.graphs.private_api_contracts import CONTRACTS, broken

SOURCES = pathlib.Path(fedcore.__file__).parent
DOOR = {
    "private_api.py",
    "private_api_contracts.py",
    "private_api_keras.py",
    "private_api_operations.py",
    "private_api_shapes.py",
}
PYTHON = {"_fields", "_asdict", "_replace", "_getframe", "_exit"}  # of named tuples, `sys` and `os`


@pytest.mark.parametrize("name", CONTRACTS)
def test_a_contract_holds_with_the_installed_versions(name):
    CONTRACTS[name]()


def test_every_private_part_has_a_contract():
    assert set(CONTRACTS) == set(private_api.PARTS)


def test_every_private_part_says_what_it_relies_on():
    for name in private_api.PARTS:
        assert (getattr(private_api, name, None) or getattr(private_api_keras, name)).__doc__, name


def _is_own(value: ast.expr) -> bool:
    """Whether an expression is `self`, `cls` or `super()`."""
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "super" and not value.args
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def _own_names(tree: ast.Module) -> set[str]:
    """Names that a module of fedcore defines: functions, classes, and attributes of its classes."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_own(node.value):
            found.add(node.attr)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found


def test_names_in_strings_and_attributes_of_other_objects_are_not_own_names():
    assert _own_names(ast.parse("name = '_shape'\ntensor._shape = 1\nself._size = 2")) == {"_size"}


def _private_uses(file: str, tree: ast.Module, own: set[str]) -> list[str]:
    found = []
    for node in ast.walk(tree):
        where = f"{file}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            found += [f"{where} imports {m}" for m in modules if re.match(r"tensorflow\.python|keras\.src", m)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if re.fullmatch(r"(tensorflow\.python|keras\.src)[\w.]*", node.value):
                found.append(f"{where} names {node.value}")
        elif isinstance(node, ast.Attribute) and re.match(r"_(?!_)|__internal__", node.attr):
            of_python = node.attr in PYTHON or node.attr in own
            if not _is_own(node.value) and not of_python:
                found.append(f"{where} reads {ast.unparse(node)}")
    return found


def test_no_other_module_uses_private_parts():
    trees = {path: ast.parse(path.read_text()) for path in SOURCES.rglob("*.py")}
    own = set().union(*map(_own_names, trees.values()))
    found = [
        use
        for path, tree in trees.items()
        if path.name not in DOOR
        for use in _private_uses(str(path.relative_to(SOURCES)), tree, own)
    ]
    assert not found, "\n".join(found)


def test_a_part_that_is_missing_names_the_part_the_versions_and_the_remedy():
    @private_api.part("tensorflow.python.nowhere: nothing")
    def missing():
        from tensorflow.python import nowhere  # noqa: F401

    try:
        with pytest.raises(private_api.UnsupportedVersion) as raised:
            missing()
    finally:
        del private_api.PARTS["missing"]
    text = str(raised.value)
    assert "fedcore relies on tensorflow.python.nowhere: nothing" in text
    assert re.search(r"which tensorflow \d+\.\d+\S*, keras \d+\.\d+\S* does not provide", text)
    assert "install one of these" in text


def test_a_contract_that_is_broken_is_listed_with_the_reason(monkeypatch):
    def gone():
        raise AttributeError("it has gone")

    monkeypatch.setitem(CONTRACTS, "is_eager", gone)
    assert broken() == {"is_eager": "AttributeError: it has gone"}


def test_a_replacement_of_keras_random_that_has_become_inert_says_so(monkeypatch):
    import keras.src.random.seed_generator as module

    monkeypatch.setattr(module, "make_default_seed", lambda: 7)
    monkeypatch.setattr(module, "python_random", module.python_random)
    with pytest.raises(private_api.UnsupportedVersion, match="default seeds are not drawn from"):
        private_api.replace_keras_randint(lambda low, high: low)


def test_a_missing_library_is_an_unsupported_version(monkeypatch, tmp_path):
    monkeypatch.setattr(private_api_shapes.tf, "__file__", str(tmp_path / "__init__.py"))
    monkeypatch.setattr(private_api_shapes, "_library", private_api_shapes._library.__wrapped__)
    with pytest.raises(private_api.UnsupportedVersion, match="has no libtensorflow_cc"):
        private_api.infer_shapes("NoOp", (), [], [])


def test_operations_for_shapes_are_deleted_with_their_object(monkeypatch):
    deleted = []
    library = private_api_shapes._library()
    for name in ("TFE_DeleteOp", "TF_DeleteStatus"):
        delete = getattr(library, name)
        monkeypatch.setattr(
            library, name, lambda pointer, name=name, delete=delete: deleted.append(name) or delete(pointer)
        )
    operation = private_api_shapes._Operation(
        "Identity", [("T", private_api_shapes.encode_attribute("float32", "type"))]
    )
    assert operation.infer([(2, 3)], [None]) == [(2, 3)]
    del operation
    assert sorted(deleted) == ["TFE_DeleteOp", "TF_DeleteStatus"]
