"""Changes one thing in a random function, runs the tests of its folder, and lists the changes that no test notices.

    python scripts/mutate.py --room compiler --room aggregators --count 20 --seed 1

A mutant has one operator turned round, one number off by one, one statement left out or two arguments exchanged. It
stands in a copy of the repository, where the tests of `tests/<room>` run until one fails, first those of files that
name the module; `--near` runs no others, which is quick and lists more survivors than there are. Equal seeds draw equal
mutants.
"""

import ast
import contextlib
import copy
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
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

_WARM = multiprocessing.get_context("forkserver")
_WARM.set_forkserver_preload(["tensorflow"])
os.environ.update(PYTHONDONTWRITEBYTECODE="1", TF_CPP_MIN_LOG_LEVEL="3")

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
                    if isinstance(node, ast.expr | ast.stmt):
                        found += [_mutant(path, source, node, *change) for change in _changes(node)]
    unique = {(m.line, m.before, m.after, m.source): m for m in found}
    return sorted(unique.values(), key=lambda m: (m.line, m.kind, m.after))


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
    """The test files of a module's room: those that name the module, and the others."""
    files = sorted((folder / "tests" / path.split("/")[1]).rglob("test_*.py"))
    near = [f for f in files if Path(path).stem in f.name or f".{Path(path).stem} " in f.read_text(encoding="utf-8")]
    return [*map(str, near)], [str(f) for f in files if f not in near]


def is_noticed(mutant: Mutant, folder: Path, *, near: bool = False) -> bool:
    """Whether a test of the mutant's room fails with it, in a copy of the repository.

    Args:
        near: run only the files that name the module, if there are any.
    """
    file = folder / mutant.path
    original = file.read_text(encoding="utf-8")
    file.write_text(mutant.source, encoding="utf-8")
    parts = [part for part in tests_of(mutant.path, folder) if part]
    try:
        return any(not _passes(folder, part) for part in (parts[:1] if near else parts))
    finally:
        file.write_text(original, encoding="utf-8")


def _passes(folder: Path, tests: list[str]) -> bool:
    """Whether tests pass within the limit, in a process that is forked from one with TensorFlow imported."""
    process = _WARM.Process(target=_run, args=(folder, tests))
    process.start()
    process.join(LIMIT_S)
    assert process.pid is not None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.join()
    return process.exitcode in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


def _run(folder: Path, tests: list[str]) -> None:
    os.setsid()
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    os.chdir(folder)
    os.environ["PYTHONPATH"] = str(folder)
    sys.path.insert(0, str(folder))
    os._exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *tests]))


@click.command()
@click.option("--room", "rooms", multiple=True, required=True, help="Folder of fedcore/, with tests in tests/.")
@click.option("--count", default=10, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--near", is_flag=True, help="Run only the test files that name the mutant's module.")
def main(rooms: tuple[str, ...], count: int, seed: int, near: bool) -> None:
    console, survivors, drawn = Console(), [], Counter[str]()
    with tempfile.TemporaryDirectory() as temporary:
        for name in COPIED:
            copying = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copying(ROOT / name, Path(temporary) / name)
        for mutant in draw(rooms, count, seed):
            noticed = is_noticed(mutant, Path(temporary), near=near)
            drawn[mutant.path.split("/")[1]] += 1
            survivors += [] if noticed else [mutant]
            outcome = "noticed " if noticed else "survived"
            console.print(f"{outcome} {mutant.path}:{mutant.line} {mutant.kind}", highlight=False, markup=False)
    table = Table("room", "line", "kind", "before", "after", title=f"{len(survivors)} of {drawn.total()} survived")
    for m in survivors:
        table.add_row(m.path.split("/")[1], f"{m.path}:{m.line}", m.kind, m.before, m.after)
    console.print(table)


if __name__ == "__main__":
    main()
