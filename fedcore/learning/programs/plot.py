"""Diagrams of histories."""

import io
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcore.errors import InvalidValue, NotFound, TypeMismatch, brief
from fedcore.learning.programs.history import TIME, History, measures
from fedcore.program.optional_packages import optional_package
from fedcore.whole_files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

_INK, _SOFT, _CLIENTS, _EVALUATED = "#22262b", "#8a929b", "#9fb3bf", "#0b6e99"
"""Colours of titles, of ticks, of the training's lines, of the evaluation's lines."""

_AXIS_LABELS = {
    "rounds": "round",
    "bits": "sent to and from all clients",
    "seconds": "seconds",
    "time": "hours of the clock",
}
"""By value of the argument `over`: the label of the horizontal axis."""

_QUANTILES = (0.1, 0.5, 0.9)
"""The quantiles of several trainings that are drawn: a line, and a band from the first to the last."""

_INCHES_PER_CHARACTER = 0.068  # width of the legend's text, at its font size of 9
_LEGEND_ROWS = 14  # so many rows are as high as one diagram; more trainings get a further column
_OptionalPath = str | os.PathLike | None
_Points = dict[int, tuple[float, float]]
"""By round: (place on the horizontal axis, value of the metric)."""


def plot_histories(
    histories: Mapping[str, History | Sequence[History]],
    path: str | os.PathLike | None = None,
    metrics: Sequence[str] | None = None,
    *,
    over: str = "rounds",
) -> "Figure":
    """Draws the metrics of several trainings: one diagram for each metric, with a line for each training.

    Types: `histories` is a dict from the names of the legend to `History` objects, or to sequences of them, such as
    those of several seeds: of these the line is the median, in a band from the 10th to the 90th percentile, over the
    rounds that all have.

    Args:
        histories: at least one.
        path: a file to write, such as a .png or .pdf. Default: none.
        metrics: names as in the rows, such as `val_accuracy`. Default: the evaluated ones, else those of the training.
        over: the horizontal axis: `rounds`; `bits` that went to and from all clients so far; `seconds` that the rounds
            took so far, with their evaluations, without compilation; or `time`, the hours of the clock. Of several
            trainings the mean.
    Returns:
        A `matplotlib.figure.Figure`.
    Raises:
        InvalidValue: matplotlib is not installed, there is no history, or `over` is another word.
        NotFound: no history has such a metric, or one has not what `over` asks for.
        TypeMismatch: a history is none, they are no dict, or `metrics` is no list of names.
    Example:
        >>> train = fc.learning.programs.train
        >>> histories = {
        ...     f"{n} clients": [train(process, data, 2, clients_per_round=n, seed=s) for s in (1, 2)] for n in (1, 2)}
        >>> figure = fc.learning.programs.plot_histories(histories, metrics=["loss"])
        >>> len(figure.axes[0].lines)
        2
    """
    x_label = _axis_label(over)
    if not isinstance(histories, Mapping):
        raise TypeMismatch(f"plot_histories draws a dict of histories by name, not {brief(histories)}")
    groups = {str(label): _as_group(entry) for label, entry in histories.items()}
    rows = [row for group in groups.values() for history in group for row in history]
    if not any(groups.values()):
        raise InvalidValue("there are no histories to draw")
    metrics = _metric_names(metrics)
    if metrics is None:
        evaluated = [f"val_{name}" for name in measures(rows) if any(f"val_{name}" in row for row in rows)]
        metrics = evaluated or measures(rows)
    for name in metrics:
        if not any(name in row for row in rows):
            raise NotFound(f"no history has {name}; they have {', '.join(dict.fromkeys(n for r in rows for n in r))}")
    columns = math.ceil(len(groups) / _LEGEND_ROWS)
    legend_inches = columns * (max(map(len, groups)) * _INCHES_PER_CHARACTER + 0.7)  # 0.7: the line beside the text
    figure, axes = _figure(len(metrics), "plot_histories", legend_inches)
    for axis, name in zip(axes, metrics, strict=False):  # without metrics, one empty diagram
        _prepare(axis, name)
        for (label, group), style in zip(groups.items(), _styles(len(groups)), strict=True):
            if any(isinstance(row.get(name), list) for history in group for row in history):
                for history in group:
                    _draw_quantiles(axis, history, name, over, label=label, **style)
            else:
                _draw_group(axis, group, name, over, label=label, **style)
    lines = _legend_lines(axes, groups)
    if lines:
        legend = axes[0].legend(
            lines.values(), map(str, range(len(lines))), frameon=False, fontsize=9, labelcolor=_INK, ncols=columns,
            handlelength=2.6, loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0,
        )  # fmt: skip
        for text, label in zip(legend.get_texts(), lines, strict=True):
            text.set_text(label)  # here, since older versions of matplotlib leave out labels that begin with _
            text.set_parse_math(False)  # a $ is a dollar
    return _finish(figure, axes, path, over, x_label)


def draw_history(history: History, path: _OptionalPath, metrics: Sequence[str] | None, over: str) -> "Figure":
    """Draws one training, as `History.plot` says: a training metric and its evaluation share a diagram."""
    x_label = _axis_label(over)
    metrics = _metric_names(metrics)
    names = measures(history.rows) if metrics is None else metrics
    missing = [name for name in names if name not in history.names and f"val_{name}" not in history.names]
    if missing:
        raise NotFound(f"the history has no {missing[0]}; it has {', '.join(history.names) or 'no rows'}")
    figure, axes = _figure(len(names), "History.plot")
    is_evaluated = any(name.startswith("val_") for name in history.names)
    for axis, name in zip(axes, names or [""], strict=True):
        _prepare(axis, name)
        if is_evaluated and f"val_{name}" not in history.names:  # a callback's, such as epsilon
            _draw_group(axis, [history], name, over, color=_INK)
            continue
        _draw_group(axis, [history], name, over, label="clients of the round, while they train", color=_CLIENTS)
        marker = "o" if sum(f"val_{name}" in row for row in history) <= 40 else None
        _draw_group(axis, [history], f"val_{name}", over, label="evaluation", color=_EVALUATED, marker=marker)
        quantiles = f"val_per_client/{name}"
        _draw_quantiles(axis, history, quantiles, over, label="quantiles over the clients", color=_EVALUATED)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(frameon=False, fontsize=9, labelcolor=_INK)
    return _finish(figure, axes, path, over, x_label)


def _metric_names(metrics: Any) -> list[str] | None:
    """The user's argument `metrics` as a list; None stays.

    Raises:
        TypeMismatch: it is no list of names.
    """
    if metrics is None:
        return None
    if isinstance(metrics, str):
        raise TypeMismatch(f'metrics is a list of names, not a text\n  fix: metrics=["{metrics}"]')
    names: list[Any] = list(metrics) if isinstance(metrics, Iterable) else [None]
    if not all(isinstance(name, str) for name in names):
        raise TypeMismatch(f"metrics is a list of names, not {brief(metrics)}")
    return names


def _as_group(entry: Any) -> list[History]:
    """The histories of one entry of the legend: the list or tuple, or the single `History`, as a list."""
    group = [entry] if isinstance(entry, History) else entry
    if not isinstance(group, list | tuple) or not all(isinstance(history, History) for history in group):
        raise TypeMismatch(f"plot_histories draws a History, or a list of them, by name, not {brief(entry)}")
    return list(group)


def _styles(count: int) -> list[dict[str, str]]:
    """A colour and a kind of line for each training: ten colours of solid lines, then of dashed ones, and so on."""
    from cycler import cycler
    from matplotlib import colormaps

    colours = [tuple(colour) for colour in colormaps["tab10"].colors]  # type: ignore[attr-defined]
    cycle = (cycler(linestyle=["-", "--", ":", "-."]) * cycler(color=colours))()
    return [next(cycle) for _ in range(count)]


def _figure(diagrams: int, caller: str, legend_inches: float = 0.0) -> tuple["Figure", "NDArray[np.object_]"]:
    """(A figure, its axes from top to bottom, [diagrams]); one axis where there is nothing to draw.

    Args:
        caller: the user's function, for the message where matplotlib is not installed.
        legend_inches: room for a legend to the right of the diagrams.
    """
    optional_package("matplotlib", caller, extra="data")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    diagrams = max(1, diagrams)
    figure = Figure(figsize=(7 + legend_inches, 0.6 + 2.9 * diagrams), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(diagrams, 1, squeeze=False)[:, 0]


def _axis_label(over: str) -> str:
    """The label of the horizontal axis; raises InvalidValue for a word that is no axis."""
    if over not in _AXIS_LABELS:
        *names, last = _AXIS_LABELS
        raise InvalidValue(f"over is {', '.join(names)} or {last}, not {brief(over)}")
    return _AXIS_LABELS[over]


def _axis_positions(history: History, over: str) -> list[float]:
    """The place of each row on the horizontal axis.

    Raises:
        NotFound: the history has no seconds, or a row lacks a column that `over` needs.
    """
    rows = history.rows
    if over == "seconds":
        if len(history.seconds) != len(rows):
            raise NotFound("the history has no seconds of its rounds")
        return np.cumsum(history.seconds).tolist()
    columns = {"rounds": ["round"], "bits": ["broadcast_bits", "aggregate_bits"], "time": [TIME]}[over]
    missing = [column for column in columns if any(column not in row for row in rows)]
    if missing:
        why = ": its training had no clock" if over == "time" else ""
        raise NotFound(f"the history has no {missing[0]}{why}")
    sums = [sum(row[column] for column in columns) for row in rows]
    return {"rounds": sums, "bits": np.cumsum(sums).tolist(), "time": [s / 3600 for s in sums]}[over]


def _points(history: History, name: str, over: str) -> _Points:
    """The points of a metric in the rows that have it."""
    if not any(name in row for row in history):
        return {}
    places = zip(history, _axis_positions(history, over), strict=True)
    return {row["round"]: (place, row[name]) for row, place in places if name in row}


def _draw_group(axis: "Axes", group: Sequence[History], name: str, over: str, **style: Any) -> None:
    """Draws a metric of one training as a line, of several as median and band; nothing where no training has it.

    Args:
        style: as for `Axes.plot`.
    """
    curves = [points for history in group if (points := _points(history, name, over))]
    if not curves:
        return
    rounds = [number for number in curves[0] if all(number in points for points in curves)]
    # [training, round, 2]: the last axis is (place on the horizontal axis, value).
    points_of_all = np.array([[points[number] for number in rounds] for points in curves]).reshape(len(curves), -1, 2)
    values = points_of_all[:, :, 1]
    low, middle, high = np.quantile(values, _QUANTILES, axis=0) if len(curves) > 1 else [values[0]] * 3
    x = points_of_all[:, :, 0].mean(0)
    (line,) = axis.plot(x, middle, linewidth=1.8, markersize=4, **_marker(len(x)) | style)
    if len(curves) > 1:
        axis.fill_between(x, low, high, color=line.get_color(), alpha=0.15, linewidth=0)


def _marker(points: int) -> dict[str, str]:
    """A marker for a line of a single point, which cannot be seen without one."""
    return {"marker": "o"} if points == 1 else {}


def _draw_quantiles(
    axis: "Axes", history: History, name: str, over: str, *, label: str, color: str, **style: Any
) -> None:
    """Draws the quantiles over the clients that an evaluation has measured; nothing where it has none."""
    points = _points(history, name, over).values()
    if not points:
        return
    x = [place for place, _ in points]
    quantiles = np.array([np.atleast_1d(values) for _, values in points])
    lines = axis.plot(x, quantiles, linewidth=0.8, markersize=4, color=color, alpha=0.7, **_marker(len(x)) | style)
    lines[0].set_label(label)
    axis.fill_between(x, quantiles.min(1), quantiles.max(1), color=color, alpha=0.12, linewidth=0)


def _legend_lines(axes: "NDArray[np.object_]", labels: Iterable[str]) -> dict[str, Any]:
    """The line of the legend for each label that has one: that of the first diagram."""
    lines = {line.get_label(): line for axis in reversed(axes) for line in reversed(axis.lines)}
    return {label: lines[label] for label in labels if label in lines}


def _prepare(axis: "Axes", title: str) -> None:
    """Sets the title of a diagram, its grid, and one visible axis line at the bottom."""
    axis.set_title(title, loc="left", color=_INK, fontsize=12, fontweight="bold")
    axis.grid(color="#e8ebee", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.tick_params(colors=_SOFT, length=0)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.spines["bottom"].set_color("#cfd5da")


def _finish(figure: "Figure", axes: "NDArray[np.object_]", path: _OptionalPath, over: str, x_label: str) -> "Figure":
    """Formats the horizontal axes, labels the lowest one, and writes the figure to the path, if there is one.

    Raises:
        InvalidValue: matplotlib writes no files of the path's kind.
    """
    from matplotlib.ticker import EngFormatter, MaxNLocator

    for axis in axes:
        axis.xaxis.set_major_locator(MaxNLocator(integer=over == "rounds"))
        if over == "bits":
            axis.xaxis.set_major_formatter(EngFormatter("bit"))
    axes[-1].set_xlabel(x_label, color=_INK)
    if path is not None:
        kind, kinds = Path(path).suffix.lstrip(".") or "png", figure.canvas.get_supported_filetypes()
        if kind not in kinds:
            raise InvalidValue(f"{path}: a diagram is a file of the kind {', '.join(sorted(kinds))}")
        out = io.BytesIO()
        figure.savefig(out, dpi=150, format=kind)
        write_whole(path, out.getvalue())
    return figure
