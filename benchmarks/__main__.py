"""Runs every workload on fedcore and on its floors in turn, and prints paired ratios with an interval.

python -m benchmarks [--rounds N] [--only NAME …] [--out DIR]
"""

import compileall
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import click

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
CHILD = "FEDCORE_BENCH_CHILD"


@click.command()
@click.option("--rounds", default=9, show_default=True, help="Timed rounds of each, alternating.")
@click.option("--only", multiple=True, help="A workload; may be given several times.")
@click.option("--out", default="bench-out", show_default=True, type=click.Path(path_type=Path))
def main(rounds: int, only: tuple[str, ...], out: Path) -> None:
    from benchmarks.report import write_report
    from benchmarks.workloads import WORKLOADS

    out.mkdir(parents=True, exist_ok=True)
    others = [
        "many",
        "pipelines",
        "calls",
        "files",
        "secure",
        "checkpoints",
        "large",
        "states",
        "private",
        "ragged",
        "streams",
    ]
    names = list(only) or [*WORKLOADS, *others]
    if os.environ.get(CHILD):
        from benchmarks.measure import measure

        (out / f"{names[0]}.json").write_text(json.dumps(measure(names[0], rounds), indent=1))
        return
    found = importlib.util.find_spec("fedcore")
    assert found is not None
    compileall.compile_dir(Path(str(found.origin)).parent, quiet=1)  # first rounds are those of an installed package
    began = time.time()
    for name in names:  # a process each, so that memory, threads and first rounds are its own
        command = [sys.executable, "-m", "benchmarks", "--only", name, "--rounds", str(rounds), "--out", str(out)]
        subprocess.run(command, env={**os.environ, CHILD: "1"}, check=True)
    write_report(out, names, time.time() - began)


if __name__ == "__main__":
    main()
