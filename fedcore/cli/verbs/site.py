"""`fedcore site`: a client's own process, and its log."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedcore.cli.loading import quiet_start

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


@click.group(cls=_SiteGroup, short_help="Runs a site of a network, with its own data and policy.", no_args_is_help=True)
def site() -> None:
    """Runs a site: it answers the server of a network with its own data, by its own policy.

    \b
    Examples:
      fedcore site site.toml          # until Ctrl-C; connects again whenever the server is back
      fedcore site log site.log       # what ran, and what left
    """


@site.command(short_help="Runs the site of a file; `run` may be left out.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE.toml")
@click.option("--while-open", is_flag=True, help="End when standard input is closed, such as by the end of a parent.")
def run(file: Path, while_open: bool) -> None:
    """Runs the site that a file describes, until Ctrl-C or SIGTERM.

    The file names the kit (a folder of `nvflare provision`) or a socket, the policy, the data and the log;
    docs/deployment.md has all settings.
    """
    import sys
    import threading

    with quiet_start():
        from fedcore.deployment.site import open_site
        from fedcore.deployment.site_settings import read_settings

        settings = read_settings(file)
        name, serving = _network(settings)
        answers = open_site(name, settings)
    with serving(answers.answer):
        click.echo(f"{name}: answers by {file}; log {settings.log}")
        if while_open:
            sys.stdin.read()
        else:
            threading.Event().wait()


def _network(settings: "SiteSettings") -> "tuple[str, Callable[..., AbstractContextManager]]":
    """The name of a site, and the context in which a function answers the requests of its network."""
    import functools

    from fedcore.deployment import site_socket
    from fedcore.deployment.engines import engine_installed

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
    import json

    from fedcore.deployment.site_log import SiteLog

    lines = [*SiteLog(file)]
    if format_ == "json":
        click.echo(json.dumps(lines, indent=2))
        return
    for line in lines:
        click.echo(_format_line(line))
    bits = sum(line.get("bits", 0) for line in lines)
    runs = sum(line["what"] == "ran" for line in lines)
    click.echo(f"{runs} runs; {bits} bits have left, {sum(line['what'] == 'refused' for line in lines)} refusals")


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
    if file.exists():
        raise click.BadParameter(f"{file} is there already", param_hint="KEY.pem")
    with quiet_start():
        from fedcore.deployment.site_sums import write_key
    click.echo(write_key(file))


def _format_line(line: dict) -> str:
    start = f"{line['time']}  {line['what']:<8} plan {str(line.get('plan', ''))[:12]}"
    match line["what"]:
        case "ran":
            sent = ", ".join(line.get("sent", []))
            return f"{start}  {line['bits']} bits of {line['clients']} clients, {line['seconds']} s: {sent}"
        case "spent":
            number = "without bound" if line["epsilon"] is None else f"{line['epsilon']:.4g}"
            return f"{start}  epsilon {number} of the site's records so far, at delta {line['delta']:g}"
        case "refused":
            return f"{start}  rule {line['rule']}: {line['why']}"
        case "failed":
            return f"{start}  {line['error']}"
    return start
