"""Notebooks: objects of fedcore as HTML, and the extension of `%load_ext fedcore` with its magic `dump`."""

import functools
import io
import re
import shlex
from collections.abc import Iterable
from typing import Any

import numpy as np

from fedcore.cli.page.markup import Child, Markup, element, join, recorded_text
from fedcore.cli.page.units import bits, seconds
from fedcore.cli.printing import coloured_console, highlight
from fedcore.computation import Computation
from fedcore.computation.computation import PolymorphicComputation
from fedcore.errors import FedcoreError
from fedcore.ir.module import STAGES, Module
from fedcore.learning.process import LearningAlgorithmState
from fedcore.runtime.reports.report import Report
from fedcore.types import Type

MAX_ROWS = 40
"""Rows of a table; of more rows the number is given."""


def html_of(value: Any) -> str:
    """The HTML of a computation, a module, a type, a report or the state of a learning process."""
    return _markup(value).text


@functools.singledispatch
def _markup(value: Any) -> Markup:
    return element("code", repr(value))


@_markup.register
def _(type_: Type) -> Markup:
    return element("code", str(type_))


@_markup.register
def _(module: Module) -> Markup:
    return _highlight(str(module))


@_markup.register
def _(computation: Computation) -> Markup:
    signature = element("code", f"{computation.__name__} : {computation.type_signature}")
    text = element("details", element("summary", "traced"), _highlight(computation.to_text(computation.module.stage)))
    return element("div", signature, text)


@_markup.register
def _(computation: PolymorphicComputation) -> Markup:
    return element("code", f"{computation.__name__} : traced for the types of each call")


@_markup.register
def _(report: Report) -> Markup:
    calls = ", ".join(f"{number} {kind}" for kind, number in report.graph_calls.items() if number)
    facts = [
        ("clients", report.clients),
        ("dropped", f"{len(report.dropped)}"),
        ("time", seconds(report.seconds)),
        ("graph calls", calls or "0"),
        ("server to clients", bits(report.broadcast_bits)),
        ("clients to server", bits(report.aggregate_bits)),
        ("seed", report.seed),
        ("plan", report.plan[:12]),
    ]
    crossings = [
        ["to the clients" if c.kind == "broadcast" else "to the server", c.tensor, str(c.type), c.clients, bits(c.bits)]
        for c in report.crossings
    ]
    devices = [
        [stage, device, ", ".join(f"{a}–{b}" if b > a else f"{a}" for a, b in ranges)]
        for stage, by_device in report.placements.items()
        for device, ranges in by_device.items()
    ]
    return element(
        "div",
        _table(None, facts),
        _table(["crosses", "tensor", "type", "clients", "all clients"], crossings),
        _table(["stage", "device", "clients"], devices),
        element("ul", [element("li", note) for note in report.notes]) if report.notes else None,
    )


@_markup.register
def _(state: LearningAlgorithmState) -> Markup:
    rows = [
        [f"{part}[{i}]", str(np.asarray(w).dtype), str(list(np.shape(w))), f"{np.size(w):,}", _norm(w)]
        for part in ("trainable", "non_trainable")
        for i, w in enumerate(getattr(state.global_model_weights, part))
    ]
    heading = f"round {int(state.round)}, seed {int(state.seed)}"
    return element(
        "div", element("p", heading), _table(["global_model_weights", "dtype", "shape", "entries", "norm"], rows)
    )


def _norm(weights: object) -> str:
    """The Euclidean norm of weights as text; empty for weights that have none, such as texts."""
    values = np.asarray(weights)
    return f"{np.linalg.norm(values.astype(np.float64)):.4g}" if values.dtype.kind in "fiub" else ""


def _table(header: Iterable[str] | None, rows: list) -> Markup | None:
    """A table of rows of cells; None without rows."""
    if not rows:
        return None
    body_rows: list[Child] = [element("tr", [element("td", cell) for cell in row]) for row in rows[:MAX_ROWS]]
    if len(rows) > MAX_ROWS:
        body_rows.append(element("tr", element("td", f"{len(rows) - MAX_ROWS} more")))
    head = element("tr", [element("th", name) for name in header]) if header else None
    return element("table", head, body_rows)


def _highlight(text: str) -> Markup:
    """`.fed` text in colours."""
    console = coloured_console(file=io.StringIO(), record=True, width=100_000)
    console.print(highlight(text), end="")
    return recorded_text(console)


def load_ipython_extension(shell: Any) -> None:
    """Adds the magic `dump`; IPython calls it for `%load_ext fedcore`.

    `%dump NAME [--stage traced|lowered|planned]` shows a computation. `%%dump [--stage …]` runs the cell and shows
    the computations that the cell defines.
    """
    shell.register_magic_function(functools.partial(_dump, shell), "line_cell", "dump")


def unload_ipython_extension(shell: Any) -> None:
    """Removes the magic again; for `%unload_ext fedcore`."""
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("dump", None)


def _dump(shell: Any, line: str, cell: str | None = None) -> None:
    """The magic `dump`, as `load_ipython_extension` describes it.

    Args:
        line: the words behind `%dump` or `%%dump`.
        cell: the cell below `%%dump`; None for `%dump`.
    """
    from IPython.display import HTML, display

    words, stage = _parse_stage(line)
    if cell is None:
        if len(words) != 1:
            raise FedcoreError("dump: name one computation, as in %dump process.next --stage planned")
        computations = {words[0]: shell.ev(words[0])}
    else:
        if words:
            raise FedcoreError(f"dump: a cell takes --stage only, not {' '.join(words)}")
        computations = _run_cell(shell, cell)
    for name, value in computations.items():
        if not isinstance(value, Computation):
            raise FedcoreError(f"dump: {name} is no computation with types, but {type(value).__name__}")
        title = element("p", element("b", name), f" ({stage}) : {value.type_signature}")
        display(HTML(join(title, _highlight(value.to_text(stage))).text))


def _parse_stage(line: str) -> tuple[list[str], str]:
    """The words of a line without `--stage NAME` or `--stage=NAME`, and that name, `traced` if there is none."""
    words = [part for word in shlex.split(line) for part in re.split("(?<=^--stage)=", word)]
    stage = "traced"
    if "--stage" in words:
        at = words.index("--stage")
        stage = words[at + 1] if at + 1 < len(words) else ""
        del words[at : at + 2]
    if stage not in STAGES:
        raise FedcoreError(f"dump: --stage takes one of {', '.join(STAGES)}")
    return words, stage


def _run_cell(shell: Any, cell: str) -> dict[str, Computation]:
    """Runs a cell; returns the computations that it defines, by name; none if it fails, whose error IPython shows."""
    old_namespace = dict(shell.user_ns)
    if not shell.run_cell(cell).success:
        return {}
    changed = {name: v for name, v in shell.user_ns.items() if old_namespace.get(name) is not v}
    computations = {name: v for name, v in changed.items() if isinstance(v, Computation) and not name.startswith("_")}
    if not computations:
        raise FedcoreError("dump: the cell defines no computation")
    return computations
