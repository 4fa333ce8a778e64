"""Draws the accuracy over the rounds."""

from collections.abc import Sequence
from pathlib import Path

_INK, _SOFT, _TEST, _CLIENTS = "#22262b", "#8a929b", "#0b6e99", "#c9d3da"


def draw_accuracy(
    path: Path,
    clients_curve: Sequence[tuple[int, float]],
    test_curve: Sequence[tuple[int, float]],
    *,
    clients: int,
    clients_per_round: int,
) -> None:
    """Draws (round, accuracy) points, accuracies from 0 to 1, into a PNG of 1600 x 900 pixels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    figure = Figure(figsize=(8, 4.5), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot(*zip(*clients_curve, strict=True), color=_CLIENTS, linewidth=1.6, zorder=2)
    axes.plot(
        *zip(*test_curve, strict=True),
        color=_TEST, linewidth=2.2, marker="o", markersize=5.5, markeredgecolor="white", markeredgewidth=1,
        zorder=3, clip_on=False,
    )  # fmt: skip
    last_round, accuracy = test_curve[-1]
    axes.axhline(accuracy, color=_TEST, linewidth=0.8, linestyle=(0, (4, 4)), alpha=0.6, zorder=1)
    below = min(a for r, a in test_curve if r >= 0.4 * last_round)
    axes.annotate(
        f"global model on the central test data: {accuracy:.1%}",
        (last_round, below), xytext=(0, -12), textcoords="offset points",
        ha="right", va="top", color=_TEST, fontsize=10, fontweight="bold",
    )  # fmt: skip
    axes.annotate(
        "the round's clients, on their own data while they train",
        (last_round, 1), xytext=(0, 6), textcoords="offset points", ha="right", color=_SOFT, fontsize=9,
    )  # fmt: skip
    title = "Federated averaging on handwritten digits"
    axes.set_title(title, loc="left", color=_INK, fontsize=14, fontweight="bold", pad=12)
    axes.set_xlabel(f"round ({clients_per_round} of {clients} clients each)", color=_INK)
    axes.set_ylabel("accuracy (% of examples)", color=_INK)
    axes.set_xlim(0, last_round)
    axes.set_ylim(0, 1.08)
    axes.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.grid(color="#e8ebee", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_SOFT, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#cfd5da")
    figure.savefig(path, dpi=200)
