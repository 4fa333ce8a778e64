"""`fedcore dump`: a computation at each stage of compilation."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click

from fedcore.cli.dump_regions import print_regions
from fedcore.cli.formats import as_dot, as_graphml, as_json
from fedcore.cli.isolation import FileCommand
from fedcore.cli.loading import (
    import_extensions,
    load_option,
    parsed_pipeline,
    passes_option,
    quiet_start,
    read_target,
    target_option,
    trusted_option,
    with_target,
)
from fedcore.cli.page import page
from fedcore.cli.printing import heading, show, write_bytes
from fedcore.cli.recorded import Recorded, computation_of
from fedcore.cli.reproducer import Work
from fedcore.cli.sizes import print_sizes
from fedcore.compiler import LOWERING, compile_module, parse_pipeline, pipeline_with, run_passes
from fedcore.ir import Module

STAGES = ("traced", "lowered", "planned")
BATCHED = "batched"
GRAPH_FORMATS = ("graphml", "model-explorer", "pb", "tensorboard")  # of one module
FORMATS = ("text", "json", "dot", *GRAPH_FORMATS, "html")


@click.command(cls=FileCommand)
@click.argument("target", metavar="MODULE:NAME|FILE.fed")
@click.option("--stage", type=click.Choice([*STAGES, BATCHED]), help="Print this stage only.")
@click.option(
    "--after", metavar="PASS", help="Print the module after this pass of the pipeline; of several, the first."
)
@passes_option
@target_option
@click.option("--format", "format_", type=click.Choice(FORMATS), default="text", show_default=True)
@click.option("--graphs", is_flag=True, help="Print the operations of each graph behind its module.")
@click.option(
    "--operations", type=click.IntRange(1), help="Operations of each graph that --graphs prints. Default: 100."
)
@click.option(
    "--sizes", "shows_sizes", is_flag=True, help="Print the bytes of state, client and crossings of the plan."
)
@click.option("--clients", type=click.IntRange(1), help="Clients that --stage batched assumes. Default: 8.")
@click.option("--batches", type=click.IntRange(1), help="Their batches. Default: 3.")
@click.option("--rows", type=click.IntRange(1), help="The rows of a batch. Default: 20.")
@click.option("--print-after-change", is_flag=True, help="Print regions after passes that change them, on stderr.")
@load_option
@trusted_option
@click.pass_obj
def dump(
    work: Work,
    target: str,
    stage: str | None,
    after: str | None,
    pipeline: str,
    machine: str | None,
    format_: str,
    extensions: tuple[str, ...],
    trusted: bool,
    graphs: bool,
    operations: int | None,
    shows_sizes: bool,
    print_after_change: bool,
    **assumed: int | None,
) -> None:
    """Prints the traced, the lowered and the planned module of a computation.

    The stage `batched` is what each vectorised client stage becomes for a call of assumed clients: a region, the
    operations for a group of clients side by side. In a file it is a .region text, on which `fedcore opt` runs stage
    passes.

    A module names its TensorFlow graphs with their digests; --graphs prints what they compute, in the notation of the
    stage `batched`. Such a text is for reading: it is no file for other commands.

    TARGET is a file, or a name in a Python module that can be imported from the current directory. In a pipe the text
    of a single stage is a .fed file.

    \b
    Examples:
      fedcore dump my_module:next_round
      fedcore dump my_module:process.next --stage planned
      fedcore dump my_module:process.next --stage batched --clients 100 --rows 32
      fedcore dump my_module:process.next --stage planned --graphs --operations 1000
      fedcore dump my_module:process.next --stage planned --sizes
      fedcore dump round.fed --after fuse
      fedcore dump round.fed -p lowering,mine,planning --load my_passes --after mine
      fedcore dump round.fed --stage planned --format dot | dot -Tsvg > round.svg
      fedcore dump round.fed --stage planned --format graphml > round.graphml   # for networkx, yEd, Gephi
      fedcore dump round.fed --stage planned --format model-explorer > round.json    # for Model Explorer
      fedcore dump round.fed --stage planned --format pb > round.pb                  # its graphs, for Netron
      fedcore dump round.fed --stage planned --format tensorboard > logs/events.out.tfevents.1
      fedcore dump round.fed --format html > round.html     # all passes, side by side
    """
    if stage and after:
        raise click.UsageError("--stage and --after exclude each other")
    if format_ == "html" and (stage or after):
        raise click.UsageError("--format html shows all stages and passes: --stage and --after exclude it")
    if stage != BATCHED and (print_after_change or any(value is not None for value in assumed.values())):
        raise click.UsageError("--clients, --batches, --rows and --print-after-change belong to --stage batched")
    if stage == BATCHED and format_ != "text":
        raise click.UsageError("--stage batched is printed as text")
    if graphs and (stage == BATCHED or format_ != "text"):
        raise click.UsageError("--graphs belongs to modules as text: --stage batched and --format exclude it")
    if operations and not graphs:
        raise click.UsageError("--operations belongs to --graphs")
    if shows_sizes and (stage != "planned" or format_ != "text"):
        raise click.UsageError("--sizes belongs to --stage planned as text")
    if format_ in GRAPH_FORMATS and not (stage or after):
        raise click.UsageError(f"--format {format_} holds one module: choose a --stage, or --after a pass")

    import_extensions(extensions, work)
    pipeline = with_target(pipeline, machine)
    parsed_pipeline(pipeline)
    module = read_target(target, work, trusted=trusted)
    if format_ == "html":
        _print_page(module, pipeline, target)
        return
    if stage == BATCHED:
        chosen = {key: value for key, value in assumed.items() if value is not None}
        print_regions(work, module, pipeline, chosen, print_after_change=print_after_change)
        return
    if stage and STAGES.index(stage) < STAGES.index(module.stage):
        raise click.BadParameter(f"{target} is {module.stage}: it holds no {stage} module", param_hint="--stage")
    if after and module.stage == "planned":
        raise click.BadParameter(f"{target} is planned: no pass is left to run", param_hint="--after")
    stages = [stage] if stage else STAGES
    modules = [_after(work, module, pipeline, after)] if after else _stages(work, module, pipeline, stages)
    modules = list(modules) if shows_sizes else modules
    _print(modules, format_, with_headings=not (stage or after), graphs=graphs, operations=operations)
    if shows_sizes:
        _print_sizes(*modules)


def _stages(work: Work, module: Module, pipeline: str, stages: Sequence[str]) -> Iterator[Module]:
    """Yields the module at each of the stages; of several stages, those before its own are left out.

    Raises:
        click.BadParameter: the pipeline does not lead to the only stage.
    """
    pipelines = {"traced": "", "lowered": LOWERING, "planned": pipeline}
    for stage in stages[STAGES.index(module.stage) :] if len(stages) > 1 else stages:
        if stage == module.stage:
            yield module
            continue
        work.pipeline = pipelines[stage]
        with quiet_start():
            compiled = compile_module(module, pipelines[stage])
        if compiled.stage != stage and len(stages) == 1:
            raise click.BadParameter(f"{pipeline!r} leaves a {compiled.stage} module, no {stage} one", param_hint="-p")
        yield compiled


def _after(work: Work, module: Module, pipeline: str, name: str) -> Module:
    """The module after the first pass of this name in the pipeline.

    Raises:
        click.BadParameter: the pipeline has no such pass.
    """
    if name not in [pass_.name for pass_, _ in parse_pipeline(pipeline)]:
        raise click.BadParameter(f"{name!r} is no pass of {pipeline_with({}, pipeline)}", param_hint="--after")
    work.pipeline = pipeline
    with quiet_start():
        return next(result for pass_, result in run_passes(module, pipeline) if pass_.name == name)


def _print(
    modules: Iterable[Module], format_: str, *, with_headings: bool, graphs: bool, operations: int | None
) -> None:
    """Prints modules in a format.

    Args:
        graphs: whether the first `operations` operations of each graph follow its module, in the format text.
    """
    if format_ != "text":
        write_bytes(_convert(list(modules), format_))
        return
    for i, module in enumerate(modules):
        if with_headings:
            show(("\n" if i else "") + heading(module.stage, module))
        show(str(module))
        if graphs:
            _print_graphs(module, operations)


def _convert(modules: list[Module], format_: str) -> bytes:
    """The bytes of a file of a format other than text and html."""
    texts = {"json": as_json, "dot": as_dot, "graphml": as_graphml}
    if format_ in texts:
        return texts[format_](modules).encode()
    with quiet_start():
        from fedcore.cli.graph_def import as_events, as_pb
        from fedcore.cli.model_explorer import as_model_explorer

        if format_ == "model-explorer":
            return as_model_explorer(modules).encode()
        return {"pb": as_pb, "tensorboard": as_events}[format_](modules)


def _print_graphs(module: Module, operations: int | None) -> None:
    """Prints the first operations of each graph of a module."""
    with quiet_start():
        from fedcore.graphs.graphdef.graph_text import MOST_PRINTED, print_graph

        most = operations or MOST_PRINTED
        texts = [print_graph(module, graph, most_operations=most) for graph in module.graphs]
    for text in texts:
        show("\n" + text)


def _print_sizes(plan: Module) -> None:
    show("\n" + print_sizes(plan))


def _print_page(module: Module, pipeline: str, target: str) -> None:
    """Prints an HTML page of all stages and passes, in the form of `fedcore report`."""
    passes = run_passes(module, pipeline) if module.stage != "planned" else iter(())
    with quiet_start():
        computation = computation_of(module, ((p.name, result) for p, result in passes))
    write_bytes(page(Recorded(Path(target), [computation], [], [])).encode())
