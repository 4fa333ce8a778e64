"""Compares fedcore with plain Keras and plain tf.data over the zoo of tests/zoo, and prints the table.

python -m benchmarks.zoo [--model GLOB] [--data GLOB] [--training GLOB] [--all]
python -m benchmarks.zoo --random 300 --seed 0
"""

import collections
import fnmatch
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs
import click

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

OUTCOMES = ("equal", "differs", "refused", "not compared")


@click.command()
@click.option("--model", "models", default="*", help="Names of models.")
@click.option("--data", "kinds", default="*", help="Names of kinds of data.")
@click.option("--training", "trainings", default="*", help="Names of trainings.")
@click.option("--all", "everything", is_flag=True, help="Every training on every data; by default SGD only.")
@click.option("--random", "count", default=0, help="So many random programs and pipelines instead.")
@click.option("--seed", default=0, show_default=True, help="Of the first random program.")
@click.option("--target", help="Kind of machine whose plans random programs run. Default: this machine's.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(
    models: str, kinds: str, trainings: str, everything: bool, count: int, seed: int, target: str | None, form: str
) -> None:
    """Exits with 1 if anything differs."""
    if count:
        comparisons = _random(range(seed, seed + count), target)
    else:
        comparisons = _declared(models, kinds, trainings, everything)
    results = []
    for comparison in comparisons:
        results.append(comparison)
        if comparison.outcome == "differs":
            click.echo(str(comparison), err=True)
    if form == "json":
        click.echo(json.dumps([attrs.asdict(c) for c in results], indent=1, ensure_ascii=False))
    else:
        _print(results, by="model" if not count else "data")
    sys.exit(any(c.outcome == "differs" for c in results))


def _declared(models: str, kinds: str, trainings: str, everything: bool) -> Iterator:
    from zoo.families import DATA_KINDS, MODELS, TRAININGS
    from zoo.runner import compare, compare_draws

    data = [kind for name, kind in DATA_KINDS.items() if fnmatch.fnmatchcase(name, kinds)]
    short = [kind for kind in data if kind.name in ("short last batches", "full batches")] or data[:1]
    for model in (m for name, m in MODELS.items() if fnmatch.fnmatchcase(name, models)):
        for training in (t for name, t in TRAININGS.items() if fnmatch.fnmatchcase(name, trainings)):
            yield from compare(model, training, data if everything or training.name == "sgd" else short)
        if model.draws:
            yield compare_draws(model)


def _random(seeds: Iterable[int], target: str | None) -> Iterator:
    from zoo.random_pipelines import random_pipeline
    from zoo.random_programs import minimal, random_program

    for seed in seeds:
        yield random_pipeline(seed).compare()
        program = random_program(seed)
        comparison = program.compare(target)
        yield comparison
        if comparison.outcome == "differs":
            shortest, outcome = minimal(program, comparison, target)
            click.echo(f"\n# {outcome}\n{shortest.text()}", err=True)


def _print(results: list, by: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from zoo.families import NOT_COMPARED

    console = Console()
    table = Table(title=f"{len(results):,} comparisons with plain Keras and tf.data")
    table.add_column(by)
    for outcome in OUTCOMES:
        table.add_column(outcome, justify="right")
    counts: dict = collections.defaultdict(collections.Counter)
    for comparison in results:
        counts[getattr(comparison, by)][comparison.outcome] += 1
    counts["all"] = sum(counts.values(), collections.Counter())
    for name, outcomes in counts.items():
        colour = "red" if outcomes["differs"] else "green"
        table.add_row(f"[{colour}]{name}[/]", *(str(outcomes[o] or "") for o in OUTCOMES))
    console.print(table)
    for outcome in OUTCOMES[1:]:
        reasons = collections.defaultdict(list)
        for c in results:
            if c.outcome == outcome:
                reasons[c.model, c.detail].append(f"{c.data} × {c.training}")
        if reasons:
            details = Table("model", "data × training", "detail", title=outcome)
            for (model, detail), combinations in reasons.items():
                more = f" and {len(combinations) - 1} more" if len(combinations) > 1 else ""
                details.add_row(model, combinations[0] + more, detail)
            console.print(details)
    left_out = Table("left out", "reason", title="what the zoo does not compare")
    for subject, reason in NOT_COMPARED.items():
        left_out.add_row(subject, reason)
    console.print(left_out)


if __name__ == "__main__":
    main()
