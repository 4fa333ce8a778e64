"""`fedcore run`: calls a computation with arguments from the command line and from files."""

import json

import click

from fedcore.cli.isolation import FileCommand
from fedcore.cli.json_values import as_json, bind_arguments, read_argument
from fedcore.cli.loading import import_extensions, load_option, quiet_start, read_target, trusted_option
from fedcore.cli.reproducer import Work


@click.command(cls=FileCommand)
@click.argument("target", metavar="FILE.fed|MODULE:NAME")
@click.option("--arg", "arguments", multiple=True, metavar="[NAME=]VALUE",
              help="JSON, or @FILE of JSON, .npy or .npz; once a parameter. Clients are a JSON list.")  # fmt: skip
@click.option("--seed", type=int, help="Seed of the call. Default: drawn; --format json prints it.")
@click.option("--format", "format_", type=click.Choice(["value", "json"]), default="value", show_default=True,
              help="json adds the report: plan, clients, graph calls, bits, seconds, seed, dropped.")  # fmt: skip
@load_option
@trusted_option
@click.pass_obj
def run(
    work: Work,
    target: str,
    arguments: tuple[str, ...],
    seed: int | None,
    format_: str,
    extensions: tuple[str, ...],
    trusted: bool,
) -> None:
    """Calls a computation of any stage and prints its result as JSON. A plan is not compiled again.

    Structs are JSON objects or lists, client values and sequences are lists, strings are bytes in UTF-8. For a client
    value the first axis of an .npy file is the clients. An .npz file is a struct of its arrays.

    \b
    Examples:
      fedcore run mean.fed --arg '[20.5, 19.0, 22.5]'
      fedcore run round.fed --arg w=@weights.npz --arg xs=@clients.json --seed 7
      echo '[1, 2, 3]' | fedcore run total.fed --arg @-
    """
    import_extensions(extensions, work)
    module = read_target(target, work, trusted=trusted)
    for graph in module.graphs:
        module.blob(graph.digest)  # raises where a text names a graph, before TensorFlow is imported
    argument_values = bind_arguments([read_argument(text) for text in arguments], module.main.parameters)
    with quiet_start():
        from fedcore import context

        result = context.invoke(module, argument_values, seed=seed)
    value = as_json(result)
    if format_ == "value":
        click.echo(json.dumps(value))
        return
    report = context.last_report()
    assert report is not None
    figures = {
        name: getattr(report, name)
        for name in ("seed", "plan", "clients", "graph_calls", "broadcast_bits", "aggregate_bits", "seconds", "notes")
    }
    if report.dropped:
        figures["dropped"] = {str(index): report.dropped[index] for index in sorted(report.dropped)}
    click.echo(json.dumps({"result": value, "report": figures}, indent=2))
