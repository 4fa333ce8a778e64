"""The `fedcore` command."""

import click

from fedcore import __version__
from fedcore.cli.exit_codes import EXIT_CODES, GuardedGroup

EPILOG = "\b\nExit codes:\n" + "\n".join(f"  {code:<4}{meaning}" for code, meaning in EXIT_CODES.items())


@click.group(cls=GuardedGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, package_name="fedcore", message="%(package)s %(version)s")
def main() -> None:
    """Runs, compiles, inspects and tunes federated computations. Trains models.

    \b
    Examples:
      fedcore dump my_module:next_round --stage planned   # the plan: stages, placements, crossings
      fedcore opt round.fed -p 'inline,lower-intrinsics' --print-after-change   # the result of each pass
      FEDCORE_TRACE=trace python train.py   # records the calls of a program
      fedcore report trace                  # writes a page about the recorded calls
      fedcore new digits && cd digits       # a small project
      fedcore train train.toml              # trains it
    \b
    Environment variables:
      FEDCORE_TRACE   directory in which calls are recorded
      FEDCORE_TRACE_CLIENTS   clients whose intermediate values are recorded too, such as 0,3
      FEDCORE_CACHE   directory that caches compiled plans between processes
      FEDCORE_PLANS   a pinned plan, or a directory of pinned plans (see fedcore tune)
      FEDCORE_TARGET  kind of machine that plans are made for (docs/performance.md); default: this machine's
    """
