"""`fedcore site`: a client's own process, and its log."""

import functools
import json
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedcore.cli.exit_codes import WRONG_PROGRAM
from fedcore.cli.loading import quiet_start
from fedcore.deployment.engines import engine_installed
from fedcore.deployment.site_log import SiteLog
from fedcore.deployment.wiped_memory import wipe_memory
from fedcore.errors import FedcoreError, printable
from fedcore.types import SequenceType, to_type

if TYPE_CHECKING:
    from fedcore.deployment.site_settings import SiteSettings


class _SiteGroup(click.Group):
    """A group in which a file in the place of a command runs the site that it describes."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["run", *args]
        return super().resolve_command(ctx, args)


@click.group(cls=_SiteGroup, no_args_is_help=True)
def site() -> None:
    """Runs a site: it answers the server of a network with its own data, by its own policy.

    \b
    Examples:
      fedcore site check site.toml    # data, types, policy, keys, connection; nothing is trained
      fedcore site site.toml          # until Ctrl-C; connects again whenever the server is back
      fedcore site log site.log       # what ran, and what left
    """


@site.command(short_help="Runs the site of a file; `run` may be left out.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE.toml")
@click.option("--while-open", is_flag=True, help="End when standard input is closed, such as by the end of a parent.")
def run(file: Path, while_open: bool) -> None:
    """Runs the site that a file describes, until Ctrl-C or SIGTERM.

    The file names the kit (a folder of `nvflare provision`) or a socket, the policy, the data and the log;
    docs/deployment.md has all settings. A site of which `fedcore site check` finds something wrong does not start,
    whether its server is there or not. What the site accepts, refuses, and fails at is printed, as in its log.
    """
    with quiet_start():
        from fedcore.deployment.site import open_site
        from fedcore.deployment.site_check import check_site, has_passed
        from fedcore.deployment.site_settings import read_settings

        wipe_memory()
        settings = read_settings(file)
        findings = [*check_site(settings, connects=False)]
        if not has_passed(findings):
            wrong = [f"  {f.part}: {f.text.splitlines()[0]}" for f in findings if f.state == "wrong"]
            fix = f"  fix: fedcore site check {file} tells more"  # also texts of cells, which are in no service's log
            raise FedcoreError("\n".join([f"{file}: the site does not start", *wrong, fix]))
        name, serving = _network(settings)
        site = open_site(name, settings)
    site.log.tell = _print_for_owner
    click.echo(f"{name}: answers by {file}; log {settings.log}")
    with serving(site.answer, lambda text: click.echo(f"{name}: {text}")) as ending:
        if while_open:
            threading.Thread(target=lambda: (sys.stdin.read(), ending.come("")), daemon=True).start()
        try:
            ending.wait()
        finally:
            site.stop()
    if ending.reason:
        raise FedcoreError(ending.reason)


@site.command(short_help="Checks a site's data, policy, keys and connection.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE.toml")
@click.option(
    "--element", metavar="TYPE", help='Of an element that the server asks for: "<x=float32[?,4],y=int32[?]>".'
)
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_context
def check(ctx: click.Context, file: Path, element: str | None, format_: str) -> None:
    """Checks what a site has: data, types, policy, keys, log and connection. Nothing is trained, and nothing leaves.

    The exit code is 1 if something is wrong. Values of texts are shown here, and nowhere else.

    \b
    Examples:
      fedcore site check site.toml
      fedcore site check site.toml --element "<x=float32[?,4],y=int32[?]>"
    """
    with quiet_start():
        from fedcore.deployment.site_check import as_json, check_site, has_passed
        from fedcore.deployment.site_settings import read_settings

        type_ = None if element is None else SequenceType(to_type(element))
        findings = [*check_site(read_settings(file), type_)]
    if format_ == "json":
        click.echo(json.dumps(as_json(findings), indent=2))
    else:
        for finding in findings:
            click.echo(f"{finding.part:<11} {finding.state:<6} {printable(finding.text)}")
    if not has_passed(findings):
        ctx.exit(WRONG_PROGRAM)


def _network(settings: "SiteSettings") -> "tuple[str, Callable[..., AbstractContextManager]]":
    """The name of a site, and the `serving` of its network: socket or kit.

    `serving(answer, tell)` is a context in which `answer` is called for each request; it gives the `ending`, for which
    the site waits.
    """
    from fedcore.deployment import site_socket

    if settings.socket is not None:
        return settings.name, functools.partial(site_socket.serving, settings.socket)
    with engine_installed():
        from fedcore.deployment.flare_exchange import Kit, serving

        assert settings.kit is not None  # a site without a socket has a kit
        kit = Kit.read(settings.kit)
    return kit.name, functools.partial(serving, kit)


@site.command(short_help="Prints the log of a site.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE.log")
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
def log(file: Path, format_: str) -> None:
    """Prints what a site has run, what left it, and what it has refused.

    \b
    Examples:
      fedcore site log site.log
    """
    lines = [*SiteLog(file)]
    if format_ == "json":
        click.echo(json.dumps(lines, indent=2))
        return
    for line in lines:
        click.echo(_text_of(line))
    bits = sum(line["bits"] for line in lines if isinstance(line.get("bits"), int))
    runs, refusals = (sum(line.get("what") == what for line in lines) for what in ("ran", "refused"))
    click.echo(f"{runs} runs; {bits} bits have left, {refusals} refusals")


@site.command(short_help="Makes the key of a site, or of a reviewer of plans.")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), metavar="KEY.pem")
def key(file: Path) -> None:
    """Writes a new Ed25519 key, for secure sums or to sign plans; prints the public key.

    The sites tell each other their public keys, beside the server: a file of lines `name = "public key"`, which
    site.toml names as `peers`. KEY.pub gets the public key in PEM, for a policy's `signers`.

    \b
    Examples:
      fedcore site key north.pem
    """
    public = file.with_suffix(".pub")
    if public == file:
        raise click.BadParameter(f"{file} is the name of the public key", param_hint="KEY.pem")
    for path in (file, public):
        if path.exists():
            raise click.BadParameter(f"{path} is there already", param_hint="KEY.pem")
    if not file.parent.is_dir():
        raise click.BadParameter(f"{file.parent} is no folder", param_hint="KEY.pem")
    with quiet_start():
        from fedcore.deployment.site_sums import write_key
    click.echo(write_key(file))


def _print_for_owner(line: dict) -> None:
    """Prints what a site accepts, refuses and fails at; runs are in its log."""
    if line["what"] not in ("started", "ran", "ended", "spent"):
        with suppress(OSError):  # nobody reads the output
            click.echo(_text_of(line))


def _text_of(line: dict) -> str:
    """An entry of a log as one printable line."""
    return printable(_format_line(line)).replace("\n", " ")


def _format_line(line: dict) -> str:
    """An entry of a log by its kind, `what`; an entry may lack fields, as in the log of another version."""
    start = f"{line.get('time')}  {line.get('what')!s:<8} plan {str(line.get('plan', ''))[:12]}"
    match line.get("what"):
        case "ran":
            sent = ", ".join(map(str, line.get("sent", [])))
            policy = f", policy {str(line['policy'])[:12]}" if "policy" in line else ""
            figures = f"{line.get('bits')} bits of {line.get('clients')} clients, {line.get('seconds')} s{policy}"
            return f"{start}  {figures}: {sent}"
        case "policy":
            return f"{line.get('time')}  policy   {line.get('policy')}"
        case "spent":
            bound = line.get("epsilon")
            number = f"{bound:.4g}" if isinstance(bound, int | float) else "without bound"
            return f"{start}  epsilon {number} of the site's records so far, at delta {line.get('delta')}"
        case "refused":
            return f"{start}  rule {line.get('rule')}: {line.get('why')}"
        case "failed":
            return f"{start}  {line.get('error')}"
    return start
