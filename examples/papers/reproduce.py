"""Draws figures of papers again: trains what `figures.py` names, draws it, and prints what was measured.

python examples/papers/reproduce.py [ENTRY …]     such as fed_prox; without names all of them

Runs are in build/papers/ENTRY: a second call leaves those that are finished, and goes on with one that was stopped.
Pictures are in docs/gallery; docs/gallery.md has them beside the papers' claims.
"""

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import figures
import matplotlib as mpl
import pandas as pd

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
STYLE: dict = {
    "figure.facecolor": "white",
    "font.size": 10,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.prop_cycle": "cycler(color=['#4c566a', '#d08770', '#5e81ac', '#8fa876', '#b48ead'])",
    "grid.color": "#e8ebee",
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "legend.frameon": False,
    "legend.fontsize": 9,
}


def train(entry, sweep, out):
    """Runs the combinations of `--set` options that are not yet in a folder; the rows of all with their settings."""
    sets = [word for option in sweep.split() for word in ("--set", option)]
    command = [
        "fedcore",
        "train",
        os.path.relpath(HERE / f"{entry}.toml"),
        *sets,
        "--out",
        os.path.relpath(out),
        "--resume",
    ]
    print("$", shlex.join(command), flush=True)
    printed = subprocess.run(
        [sys.executable, "-m", *command, "--format", "json"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    frames = []
    for run in json.loads(printed)["runs"]:
        settings = {key.rpartition(".")[2]: value for key, value in run["set"].items()}
        frames.append(pd.read_csv(Path(run["directory"]) / "metrics.csv").assign(**settings))
    return pd.concat(frames)


def reproduce(entry, out, picture, own_sweeps=None):
    """Trains and draws an entry; the table of what was measured.

    Args:
        own_sweeps: in place of the entry's.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    sweeps, draw, size = figures.ENTRIES[entry]
    runs = pd.concat([train(entry, sweep, out) for sweep in own_sweeps or sweeps])
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        table = draw(runs, figure)
        picture.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(picture, dpi=100, pil_kwargs={"optimize": True})
    return table


def main(names=()):
    for entry in names or figures.ENTRIES:
        began = time.monotonic()
        picture = ROOT / "docs/gallery" / f"{entry}.png"
        print(reproduce(entry, ROOT / "build/papers" / entry, picture).to_string(index=False))
        print(f"{picture.relative_to(ROOT)} after {time.monotonic() - began:.0f} s\n")


if __name__ == "__main__":
    main(sys.argv[1:])
