"""The `fedcore` command, one file a verb. What a verb needs is imported when it runs, so that `--help` is quick."""

import click

from fedcore import __version__
from fedcore.cli.demo import demo
from fedcore.cli.diff import diff
from fedcore.cli.doctor import doctor
from fedcore.cli.dump import dump
from fedcore.cli.exit_codes import EXIT_CODES, GuardedGroup
from fedcore.cli.opt import opt
from fedcore.cli.report import report
from fedcore.cli.run import run
from fedcore.cli.tune import tune
from fedcore.cli.verify import verify

EPILOG = "\b\nExit codes:\n" + "\n".join(f"  {code:<4}{meaning}" for code, meaning in EXIT_CODES.items())


@click.group(cls=GuardedGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, package_name="fedcore", message="%(package)s %(version)s")
def main():
    """Runs federated computations, looks inside them, and runs a demonstration.

    \b
    Examples:
      fedcore dump my_module:next_round --stage planned   # what runs where, and what crosses
      fedcore opt round.fed -p 'inline,lower-intrinsics' --print-after-change   # which pass did what
      FEDCORE_TRACE=trace python train.py   # records a program: what ran when, on which device,
      fedcore report trace                  # and one page that shows it
    \b
    Settings, in the environment:
      FEDCORE_TRACE   the directory in which programs are recorded
      FEDCORE_CACHE   a directory that keeps compiled plans between processes
      FEDCORE_PLANS   a pinned plan, or a directory of them (see fedcore tune)
    """


for verb in (dump, opt, diff, verify, run, tune, report, doctor, demo):
    main.add_command(verb)
