"""Prints the ten longest source files and the ten longest functions, in lines."""

import ast
from pathlib import Path


def functions(path: Path, source: str):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1, f"{path}:{node.lineno} {node.name}"


def ten_longest(title: str, rows: list[tuple[int, str]]) -> None:
    print(f"{title}:")
    for length, name in sorted(rows, reverse=True)[:10]:
        print(f"  {length:5d}  {name}")


sources = {path: path.read_text(encoding="utf-8") for path in sorted(Path("fedcore").rglob("*.py"))}
ten_longest("files", [(text.count("\n"), str(path)) for path, text in sources.items()])
ten_longest("functions", [row for path, text in sources.items() for row in functions(path, text)])
