"""`fedcore policy`: checks and signs plans offline, for the owners of data and those who review for them."""

from pathlib import Path

import click

from fedcore.cli.exit_codes import WRONG_PROGRAM
from fedcore.cli.isolation import FileCommand
from fedcore.cli.loading import quiet_start, read_target
from fedcore.cli.output_path import write_module
from fedcore.cli.reproducer import Work
from fedcore.compiler import compile_module, pipeline_with
from fedcore.errors import FedcoreError
from fedcore.ir import Module
from fedcore.whole_files import write_whole


@click.group(no_args_is_help=True)
def policy() -> None:
    """Checks and signs the plans that a site of a network may run.

    \b
    Examples:
      fedcore policy check server:build_process.next site.toml
      fedcore policy check plan.fed policy.toml
      fedcore policy sign plan.fed reviewer.pem
    """


_plan = click.argument("plan", metavar="FILE.fed|MODULE:NAME")


@policy.command(cls=FileCommand, short_help="Says what a site with this policy would refuse.")
@_plan
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="SITE.toml|POLICY.toml")
@click.option("--save", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.fed", help="Write the plan.")
@click.pass_context
def check(ctx: click.Context, plan: str, file: Path, save: Path | None) -> None:
    """Checks a plan against the policy of a site, as the site does when the plan arrives.

    A program is compiled as fc.runtime.network compiles it for masked sums. For server:build_process.next, the function
    build_process of the module server is called, and `next` of its result is checked. Each line that the policy is
    against is shown with the rule; the exit code is then 1.

    site.toml says of which columns an element is made. With a policy alone, the names of an element's parts count as
    columns.
    """
    with quiet_start():
        from fedcore.deployment.site_settings import read_rules

        rules, data = read_rules(file)
        module = _read_plan(plan)
        refusals = [*rules.refusals(module, data, _signature(plan))]
    if save is not None:
        write_module(module, save, "--save")
    for refusal in refusals:
        click.echo(f"rule {refusal.rule}: {refusal}")
    if data is None and any(refusal.rule == "columns" for refusal in refusals):
        click.echo("note: the columns of an element stand in site.toml: fedcore policy check PLAN site.toml reads them")
    click.echo(f"plan {module.digest()}: {f'{len(refusals)} refusals' if refusals else 'accepted'}")
    if refusals:
        ctx.exit(WRONG_PROGRAM)


@policy.command(cls=FileCommand, short_help="Signs a plan, for the rule `plans`.")
@_plan
@click.argument("key", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="KEY.pem")
def sign(plan: str, key: Path) -> None:
    """Signs a plan's digest with an Ed25519 key of `fedcore site key`; writes PLAN.sig beside the plan."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    with quiet_start():
        from fedcore.deployment.policy import SIGNED_PREFIX

        digest = _read_plan(plan).digest()
    try:
        private = load_pem_private_key(key.read_bytes(), None)
    except (ValueError, TypeError):  # no PEM, or one with a password
        private = None
    if not isinstance(private, Ed25519PrivateKey):
        raise FedcoreError(f"{key} is no Ed25519 key; `fedcore site key` makes one")
    signature = private.sign(SIGNED_PREFIX + digest.encode())
    write_whole(Path(f"{plan}.sig"), f"{digest} {signature.hex()}\n")
    click.echo(f"{plan}.sig: plan {digest}")


def _signature(plan: str) -> bytes | None:
    """The signature in the file `PLAN.sig` of `fedcore policy sign`; None if there is no such file."""
    file = Path(f"{plan}.sig")
    if not file.is_file():
        return None
    try:
        _, signature = file.read_text().split()
        return bytes.fromhex(signature)
    except ValueError:
        raise FedcoreError(f"{file} is no signature of `fedcore policy sign`") from None


def _read_plan(plan: str) -> Module:
    """The plan of a file, or of a computation that is compiled as for a network."""
    module = read_target(plan, Work())
    return (
        module if module.stage == "planned" else compile_module(module, pipeline_with({"secure": "masked"}, "default"))
    )
