"""Diagrams of a history."""

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedcore.errors import NotFound
from fedcore.learning.programs.history import measures
from fedcore.program.optional_packages import optional_package
from fedcore.whole_files import write_whole

if TYPE_CHECKING:
    from fedcore.learning.programs.history import History

_INK, _SOFT, _CLIENTS, _EVALUATED = "#22262b", "#8a929b", "#9fb3bf", "#0b6e99"


def draw(history: "History", path: str | os.PathLike | None, metrics: Sequence[str] | None):
    """See `History.plot`."""
    optional_package("matplotlib", "History.plot", extra="data")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = list(metrics) if metrics is not None else measures(history.rows)
    missing = [name for name in shown if name not in history.names and f"val_{name}" not in history.names]
    if missing:
        raise NotFound(f"the history has no {missing[0]}; it has {', '.join(history.names) or 'no rows'}")
    figure = Figure(figsize=(7, 0.6 + 2.9 * max(1, len(shown))), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots(max(1, len(shown)), 1, squeeze=False)[:, 0]
    for axis, name in zip(axes, shown or [""], strict=True):
        _draw_metric(axis, history, name)
    axes[-1].set_xlabel("round", color=_INK)
    if path is not None:
        out = io.BytesIO()
        figure.savefig(out, dpi=150, format=Path(path).suffix.lstrip(".") or "png")
        write_whole(path, out.getvalue())
    return figure


def _draw_metric(axis, history: "History", name: str) -> None:
    from matplotlib.ticker import MaxNLocator

    lines = ((name, "clients of the round, while they train", _CLIENTS), (f"val_{name}", "evaluation", _EVALUATED))
    for key, label, colour in lines:
        points = [(row["round"], row[key]) for row in history if key in row]
        if points:
            marker = "o" if len(points) <= 40 and key.startswith("val_") else None
            axis.plot(*zip(*points, strict=True), color=colour, linewidth=1.8, marker=marker, markersize=4, label=label)
    axis.set_title(name, loc="left", color=_INK, fontsize=12, fontweight="bold")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.grid(color="#e8ebee", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.tick_params(colors=_SOFT, length=0)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.spines["bottom"].set_color("#cfd5da")
    if axis.lines:
        axis.legend(frameon=False, fontsize=9, labelcolor=_INK)
