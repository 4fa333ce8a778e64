"""The `fedcore` command; each verb is a module. A verb imports its dependencies when it runs, so `--help` is fast."""

import click

from fedcore import __version__
from fedcore.cli.exit_codes import EXIT_CODES, GuardedGroup
from fedcore.cli.verbs.demo import demo
from fedcore.cli.verbs.deploy import deploy
from fedcore.cli.verbs.diff import diff
from fedcore.cli.verbs.doctor import doctor
from fedcore.cli.verbs.dump import dump
from fedcore.cli.verbs.evaluate import evaluate
from fedcore.cli.verbs.lint import lint
from fedcore.cli.verbs.list_runs import list_runs
from fedcore.cli.verbs.new import new
from fedcore.cli.verbs.opt import opt
from fedcore.cli.verbs.policy import policy
from fedcore.cli.verbs.port import port
from fedcore.cli.verbs.report import report
from fedcore.cli.verbs.resume import resume
from fedcore.cli.verbs.run import run
from fedcore.cli.verbs.show_run import show_run
from fedcore.cli.verbs.show_values import show_values
from fedcore.cli.verbs.site import site
from fedcore.cli.verbs.sweep import sweep
from fedcore.cli.verbs.train import train
from fedcore.cli.verbs.tune import tune
from fedcore.cli.verbs.verify import verify

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


program_verbs = (dump, opt, diff, verify, lint, port, run, tune)
recording_verbs = (report, show_values)
training_verbs = (new, train, sweep, resume, evaluate, list_runs, show_run)
site_verbs = (site, policy, deploy)
for verb in (
    dump,
    opt,
    diff,
    verify,
    lint,
    port,
    run,
    tune,
    *recording_verbs,
    doctor,
    demo,
    *training_verbs,
    *site_verbs,
):
    main.add_command(verb)
