"""Changes one thing in a random function, runs the tests of its folder, and lists the changes that no test notices.

    python scripts/mutate.py --room compiler --room aggregators --count 20 --seed 1

A mutant has one operator turned round, one number off by one, one statement left out or two arguments exchanged. It
stands in a copy of the repository, where tests run until one fails: first the few files that share the rarest names
with its module, then the others of `tests/<room>`. `--near` runs no others, and begins with the tests that share the
rarest words with the changed function: quick, but lists more survivors than there are. Equal seeds draw equal mutants.
"""

import ast
import contextlib
import copy
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import attrs
import click
import pytest
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
COPIED = (
    "fedcore",
    "tests",
    "examples",
    "docs",
    "scripts",
    "benchmarks",
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
)
LIMIT_S = 900
"""A mutant whose tests take longer is noticed."""
NEAR_FILES, NEAR_LIMIT_CPU_S = 5, 30
"""With `--near`, a mutant whose tests take more processor time survives."""
NEAR_OPTIONS = ("-m", "not slow and not soak", "-o", "timeout=120")

_WARM = multiprocessing.get_context("forkserver")
_WARM.set_forkserver_preload(["tensorflow"])
os.environ.update(PYTHONDONTWRITEBYTECODE="1", TF_CPP_MIN_LOG_LEVEL="3")

_PASSED = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)

Node = ast.expr | ast.stmt

_OTHERS: dict[type, type] = {
    **{
        ast.Eq: ast.NotEq,
        ast.NotEq: ast.Eq,
        ast.Is: ast.IsNot,
        ast.IsNot: ast.Is,
        ast.In: ast.NotIn,
        ast.NotIn: ast.In,
    },
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.BitAnd: ast.BitOr},
}


@attrs.frozen
class Mutant:
    """A changed file.

    Args:
        path: of the file, from the root.
        line: of the change.
        kind: of change.
        before, after: the changed part of the source.
        source: of the whole file, changed.
    """

    path: str
    line: int
    kind: str
    before: str
    after: str
    source: str


def mutants_of(path: str, source: str) -> list[Mutant]:
    """All mutants of the functions of a file, in the order of their lines."""
    found = []
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef):
            for statement in function.body[1:] if ast.get_docstring(function) else function.body:
                for node in ast.walk(statement):
                    if isinstance(node, ast.expr | ast.stmt) and not _is_docstring(node):
                        found += [_mutant(path, source, node, *change) for change in _changes(node)]
    unique = {(m.line, m.before, m.after, m.source): m for m in found}
    return sorted(unique.values(), key=lambda m: (m.line, m.kind, m.after))


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _changes(node: Node) -> Iterator[tuple[str, Node]]:
    """The kinds of change of a node, and what stands in its place."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _OTHERS:
        yield "operator", _with(node, ops=[_OTHERS[type(node.ops[0])](), *node.ops[1:]])
    elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in _OTHERS:
        yield "operator", _with(node, op=_OTHERS[type(node.op)]())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "operator", node.operand
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield "off by one", ast.Constant(node.value + 1)
    elif isinstance(node, ast.Call) and len(node.args) > 1 and ast.unparse(node.func) != "isinstance":
        yield "exchanged arguments", _with(node, args=[node.args[1], node.args[0], *node.args[2:]])
    elif isinstance(node, ast.Expr | ast.Assign | ast.AugAssign | ast.Raise):
        yield "left out", ast.Pass()


def _with(node: Node, **changes: object) -> Node:
    """A copy of a node with other fields."""
    changed = copy.copy(node)
    for name, value in changes.items():
        setattr(changed, name, value)
    return changed


def _mutant(path: str, source: str, node: Node, kind: str, other: Node) -> Mutant:
    lines = source.encode().splitlines(keepends=True)
    start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: (node.end_lineno or 1) - 1])) + (node.end_col_offset or 0)
    text = ast.unparse(other)
    after = text if isinstance(node, ast.stmt) else f"({text})"
    changed = (source.encode()[:start] + after.encode() + source.encode()[end:]).decode()
    return Mutant(path, node.lineno, kind, source.encode()[start:end].decode(), after, changed)


def draw(rooms: tuple[str, ...], count: int, seed: int) -> Iterator[Mutant]:
    """Different mutants of some rooms; each kind of change is as likely as the others."""
    files = sorted(p for room in rooms for p in (ROOT / "fedcore" / room).rglob("*.py"))
    mutants = [m for file in files for m in mutants_of(str(file.relative_to(ROOT)), file.read_text(encoding="utf-8"))]
    rng = random.Random(seed)
    rng.shuffle(mutants)
    kinds = {kind: [m for m in mutants if m.kind == kind] for kind in sorted({m.kind for m in mutants})}
    for _ in range(count):
        remaining = [kind for kind, each in kinds.items() if each]
        if remaining:
            yield kinds[rng.choice(remaining)].pop()


def tests_of(path: str, folder: Path) -> tuple[list[str], list[str]]:
    """The test files nearest to a module, and the other files of its room.

    A name of the module, or of one that imports it, counts more the fewer test files hold it and the more often.
    """
    words = {f: _words(f) for f in sorted((folder / "tests").rglob("test_*.py"))}
    modules = {f: f.read_text(encoding="utf-8") for f in sorted((folder / "fedcore").rglob("*.py"))}
    module = folder / path
    imported = re.compile(
        rf"^ *(from [\w.]*\b{module.stem} import|from [\w.]+ import .*\b{module.stem}\b)", re.MULTILINE
    )
    weights = Counter[str]()
    for file, source in modules.items():
        if file == module or (module.parent.name in source and imported.search(source)):
            for name in {file.stem, *_names(source)}:
                weights[name] = max(weights[name], 100 if file == module else 10)
    holders = Counter(word for each in words.values() for word in each)
    room = folder / "tests" / path.split("/")[1]
    scores = {
        f: sum(weight * min(each[name], 10) / holders[name] for name, weight in weights.items() if name in each)
        * (4 if f.is_relative_to(room) else 1)
        + 100 * (f.stem == f"test_{module.stem}" or (_folder(f) / f"{module.stem}.fed").exists())
        for f, each in words.items()
    }
    ranked = sorted((f for f in words if scores[f] > 0), key=lambda f: -scores[f])
    near = ranked[:NEAR_FILES]
    return [*map(str, near)], [str(f) for f in words if f.is_relative_to(room) and f not in near]


def _words(test: Path) -> Counter[str]:
    """How often each name stands in a test file and in the file names of its folder."""
    names = [test.name, *(file.name for file in _folder(test).rglob("*"))]
    return Counter(_words_in("\n".join([*names, test.read_text("utf-8")])))


def _nearest_first(files: list[str], source: str, mutant: Mutant) -> list[str]:
    """The tests of some files, first those that share the rarest words with the changed line and its function."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    changed = [node for node in functions if node.lineno <= mutant.line <= (node.end_lineno or 0)][-1]
    weights = dict.fromkeys(_words_in(ast.unparse(changed)), 1) | dict.fromkeys(_words_in(mutant.before), 10)
    words = {
        f"{file}::{node.name}": {*_words_in(ast.unparse(node))}
        for file in files
        for node in ast.parse(Path(file).read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name.startswith(("test", "Test"))
    }
    holders = Counter(word for each in words.values() for word in each)
    return sorted(words, key=lambda test: -sum(weights.get(word, 0) / holders[word] for word in words[test]))


def _words_in(text: str) -> list[str]:
    """The words of a text; `client-loop` is `client_loop`."""
    return re.findall(r"\w+", re.sub(r"(?<=\w)-(?=\w)", "_", text))


def _folder(test: Path) -> Path:
    """The folder with the inputs of a test file."""
    return test.with_name(test.stem.removeprefix("test_"))


def _names(source: str) -> Iterator[str]:
    """Names of the functions and classes of a module, and of their public methods."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            yield from (m.name for m in node.body if isinstance(m, ast.FunctionDef) and not m.name.startswith("_"))


def is_noticed(mutant: Mutant, folder: Path, *, near: bool = False) -> bool:
    """Whether a test of the mutant's room fails with it, in a copy of the repository.

    Args:
        near: run only the nearest files, with `NEAR_OPTIONS`, for at most `NEAR_LIMIT_CPU_S`.
    """
    file = folder / mutant.path
    original = file.read_text(encoding="utf-8")
    file.write_text(mutant.source, encoding="utf-8")
    nearest, others = tests_of(mutant.path, folder)
    try:
        if near:
            tests = _nearest_first(nearest or others, original, mutant)
            code = _exit_code(folder, [*NEAR_OPTIONS, *tests], cpu_s=NEAR_LIMIT_CPU_S)
            return code not in {*_PASSED, -signal.SIGXCPU}
        return any(_exit_code(folder, tests) not in _PASSED for tests in (nearest, others) if tests)
    finally:
        file.write_text(original, encoding="utf-8")


def _exit_code(folder: Path, arguments: list[str], cpu_s: int = LIMIT_S) -> int | None:
    """That of pytest, in a process that is forked from one with TensorFlow imported; None past `LIMIT_S`."""
    process = _WARM.Process(target=_run, args=(folder, arguments, cpu_s))
    process.start()
    process.join(LIMIT_S)
    code = process.exitcode
    assert process.pid is not None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.join()
    return code


def _run(folder: Path, arguments: list[str], cpu_s: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, resource.RLIM_INFINITY))
    os.setsid()
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    os.chdir(folder)
    os.environ["PYTHONPATH"] = str(folder)
    sys.path.insert(0, str(folder))
    os._exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *arguments]))


@click.command()
@click.option("--room", "rooms", multiple=True, required=True, help="Folder of fedcore/, with tests in tests/.")
@click.option("--count", default=10, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--near", is_flag=True, help="Run only the test files that share the most names with the module.")
def main(rooms: tuple[str, ...], count: int, seed: int, near: bool) -> None:
    console, survivors, drawn = Console(), [], Counter[str]()
    with tempfile.TemporaryDirectory() as temporary:
        for name in COPIED:
            copying = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copying(ROOT / name, Path(temporary) / name)
        for mutant in draw(rooms, count, seed):
            start = time.monotonic()
            noticed = is_noticed(mutant, Path(temporary), near=near)
            drawn[mutant.path.split("/")[1]] += 1
            survivors += [] if noticed else [mutant]
            outcome = "noticed " if noticed else "survived"
            console.print(
                f"{outcome} {time.monotonic() - start:4.0f} s {mutant.path}:{mutant.line} {mutant.kind}: "
                f"{mutant.before} => {mutant.after}",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
    table = Table("room", "line", "kind", "before", "after", title=f"{len(survivors)} of {drawn.total()} survived")
    for m in survivors:
        table.add_row(m.path.split("/")[1], f"{m.path}:{m.line}", m.kind, m.before, m.after)
    console.print(table)


if __name__ == "__main__":
    main()
