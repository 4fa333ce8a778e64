"""A plot of a partition: how many examples of which label each client has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from fedcore.errors import FedcoreError, InvalidValue, TypeMismatch, brief

if TYPE_CHECKING:
    from fedcore.simulation.partition import Parts

_MANY_CLIENTS = 40  # beyond, their numbers are not all written
_MANY_LABELS = 20  # beyond, a color bar stands for a legend
_MANY_BARS = 200  # beyond, bars touch, and one patch draws those of a label


def plot(labels: ArrayLike, parts: Parts, *, title: str = "", axes: Any = None) -> Any:
    """Plots a stacked bar for each client: its examples, colored by label.

    Args:
        labels: the examples' labels, `[n]`.
        parts: for each client the indices of its examples, as a partitioner returns them.
        title: above the plot. Default: the number of clients and of examples.
        axes: matplotlib's axes to plot on; a figure without a layout engine gets the constrained one, which makes
            room for the legend. Default: those of a new figure, which no window shows.
    Returns:
        The axes; `plot(...).figure.savefig("parts.png")` writes the picture.
    Raises:
        FedcoreError: matplotlib is not installed, or there are no clients.
        TypeMismatch: `parts` holds no indices; the labels come first.
    Example:
        >>> labels = np.repeat(np.arange(10), 60)
        >>> axes = plot(labels, dirichlet(labels, 20, alpha=0.3))
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ModuleNotFoundError as missing:
        raise FedcoreError(
            "partition.plot needs matplotlib, which is not installed; fix: pip install 'fedcore[data]'"
        ) from missing
    if not len(parts):
        raise InvalidValue("partition.plot: there are no clients")
    if np.ndim(parts[0]) != 1:
        raise TypeMismatch(
            f"partition.plot(labels, parts): parts holds for each client the indices of its examples, and begins with "
            f"{brief(parts[0])}"
        )

    names, label_index = np.unique(np.asarray(labels), return_inverse=True)
    counts_by_client = [np.bincount(label_index[part], minlength=len(names)) for part in parts]
    if axes is None:
        width = min(14.0, 4.0 + 0.16 * len(parts))
        axes = Figure(figsize=(width, 3.6), layout="constrained").add_subplot()
    elif axes.figure.get_layout_engine() is None:
        axes.figure.set_layout_engine("constrained")
    colors = matplotlib.colormaps["tab10" if len(names) <= 10 else "tab20" if len(names) <= _MANY_LABELS else "viridis"]
    shades = [colors(i if len(names) <= _MANY_LABELS else i / (len(names) - 1)) for i in range(len(names))]
    clients = np.arange(len(parts))
    bottom = np.zeros(len(parts))
    handles: list[Any] = []
    for name, shade, height in zip(names, shades, np.transpose(counts_by_client), strict=True):
        top = bottom + height
        if len(parts) <= _MANY_BARS:
            handles.append(axes.bar(clients, height, 0.9, bottom=bottom, color=shade, label=str(name)))
        else:
            edges = np.arange(len(parts) + 1) - 0.5
            handles.append(axes.stairs(top, edges, baseline=bottom, fill=True, color=shade, label=str(name)))
        bottom = top

    axes.set_xlim(-0.6, len(parts) - 0.4)
    axes.set_ylim(0, bottom.max() * 1.05)
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_major_locator().set_params(integer=True)
    if len(parts) <= _MANY_CLIENTS:
        axes.set_xticks(clients, [str(i) for i in clients], fontsize=8)
    axes.set_xlabel("client")
    axes.set_ylabel("examples")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title or f"{bottom.sum():,.0f} examples at {len(parts):,} clients", fontsize=10, loc="left")
    if len(names) <= _MANY_LABELS:
        columns = 1 if len(names) <= 10 else 2
        legend = axes.legend(  # from the top, as the bars are stacked
            handles[::-1],
            [*map(str, range(len(handles)))],
            title="label",
            ncols=columns,
            fontsize=8,
            frameon=False,
            loc="upper left",
            bbox_to_anchor=(1.0, 1.0),
        )
        for text, name in zip(legend.get_texts(), names[::-1], strict=True):
            text.set_text(str(name))  # here, since older versions of matplotlib leave out labels that begin with _
            text.set_parse_math(False)  # a $ is a dollar
    else:
        mappable = matplotlib.cm.ScalarMappable(matplotlib.colors.Normalize(0, len(names) - 1), colors)
        bar = axes.figure.colorbar(mappable, ax=axes, label="label")
        places = np.linspace(0, len(names) - 1, 6).round()
        bar.set_ticks(places, labels=[str(names[int(i)]) for i in places])
    return axes
