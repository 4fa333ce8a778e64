"""Diagrams of histories."""

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcore.errors import InvalidValue, NotFound, brief
from fedcore.learning.programs.history import TIME, measures
from fedcore.program.optional_packages import optional_package
from fedcore.whole_files import write_whole

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from fedcore.learning.programs.history import History

_INK, _SOFT, _CLIENTS, _EVALUATED = "#22262b", "#8a929b", "#9fb3bf", "#0b6e99"
_OVER = {"round": ("round", 1.0, "round"), "time": (TIME, 3600.0, "hours of the clock")}
"""Column, divisor and label of a horizontal axis."""


def plot_histories(
    histories: Mapping[str, "History"],
    path: str | os.PathLike | None = None,
    metrics: Sequence[str] | None = None,
    *,
    over: str = "round",
) -> "Figure":
    """Draws the metrics of several trainings: one diagram for each metric, with a line for each training.

    Types: `histories` is a dict from the names of the legend to `History` objects.

    Args:
        histories: at least one.
        path: a file to write, such as a .png or .pdf. Default: none.
        metrics: names as in the rows, such as `val_accuracy`. Default: the evaluated ones, else those of the training.
        over: `round`, or `time` for the hours of the clock.
    Returns:
        A `matplotlib.figure.Figure`.
    Raises:
        InvalidValue: matplotlib is not installed, or there is no history.
        NotFound: no history has such a metric.
    Example:
        >>> train = fc.learning.programs.train
        >>> histories = {f"{n} clients": train(process, data, 2, clients_per_round=n, seed=0) for n in (1, 2)}
        >>> figure = fc.learning.programs.plot_histories(histories, metrics=["loss"])
        >>> len(figure.axes[0].lines)
        2
    """
    if not histories:
        raise InvalidValue("there are no histories to draw")
    rows = [row for history in histories.values() for row in history]
    if metrics is None:
        evaluated = [f"val_{name}" for name in measures(rows) if any(f"val_{name}" in row for row in rows)]
        metrics = evaluated or measures(rows)
    for name in metrics:
        if not any(name in row for row in rows):
            raise NotFound(f"no history has {name}; they have {', '.join(dict.fromkeys(n for r in rows for n in r))}")
    figure, axes = _figure(len(metrics), "plot_histories")
    for axis, name in zip(axes, metrics, strict=False):
        _prepare(axis, name)
        for label, history in histories.items():
            _draw_line(axis, history, name, over, label=label)
        axis.legend(frameon=False, fontsize=9, labelcolor=_INK)
    return _finish(figure, axes, path, over)


def draw(history: "History", path: str | os.PathLike | None, metrics: Sequence[str] | None, over: str) -> "Figure":
    """See `History.plot`."""
    names = list(metrics) if metrics is not None else measures(history.rows)
    missing = [name for name in names if name not in history.names and f"val_{name}" not in history.names]
    if missing:
        raise NotFound(f"the history has no {missing[0]}; it has {', '.join(history.names) or 'no rows'}")
    figure, axes = _figure(len(names), "History.plot")
    for axis, name in zip(axes, names or [""], strict=True):
        _prepare(axis, name)
        _draw_line(axis, history, name, over, label="clients of the round, while they train", color=_CLIENTS)
        marker = "o" if sum(f"val_{name}" in row for row in history) <= 40 else None
        _draw_line(axis, history, f"val_{name}", over, label="evaluation", color=_EVALUATED, marker=marker)
        if axis.lines:
            axis.legend(frameon=False, fontsize=9, labelcolor=_INK)
    return _finish(figure, axes, path, over)


def _figure(diagrams: int, caller: str) -> tuple["Figure", "NDArray[np.object_]"]:
    """A figure, and its axes, one above the other."""
    optional_package("matplotlib", caller, extra="data")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    diagrams = max(1, diagrams)
    figure = Figure(figsize=(7, 0.6 + 2.9 * diagrams), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(diagrams, 1, squeeze=False)[:, 0]


def _draw_line(axis: "Axes", history: "History", name: str, over: str, **style: Any) -> None:
    """Draws a metric in the rows that have it; nothing if none has."""
    if over not in _OVER:
        raise InvalidValue(f"over is {' or '.join(_OVER)}, not {brief(over)}")
    column, divisor, _ = _OVER[over]
    rows = [row for row in history if name in row]
    if any(column not in row for row in rows):
        raise NotFound(f"the history has no {column}: its training had no clock")
    if rows:
        times = [row[column] / divisor for row in rows]
        axis.plot(times, [row[name] for row in rows], linewidth=1.8, markersize=4, **style)


def _prepare(axis: "Axes", title: str) -> None:
    axis.set_title(title, loc="left", color=_INK, fontsize=12, fontweight="bold")
    axis.grid(color="#e8ebee", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.tick_params(colors=_SOFT, length=0)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.spines["bottom"].set_color("#cfd5da")


def _finish(figure: "Figure", axes: "NDArray[np.object_]", path: str | os.PathLike | None, over: str) -> "Figure":
    """The figure, with its horizontal axis; writes it to the path."""
    from matplotlib.ticker import MaxNLocator

    for axis in axes:
        axis.xaxis.set_major_locator(MaxNLocator(integer=over == "round"))
    axes[-1].set_xlabel(_OVER[over][2], color=_INK)
    if path is not None:
        kind, kinds = Path(path).suffix.lstrip(".") or "png", figure.canvas.get_supported_filetypes()
        if kind not in kinds:
            raise InvalidValue(f"{path}: a diagram is a file of the kind {', '.join(sorted(kinds))}")
        out = io.BytesIO()
        figure.savefig(out, dpi=150, format=kind)
        write_whole(path, out.getvalue())
    return figure
