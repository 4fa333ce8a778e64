"""Signals end a command wherever they arrive."""

import warm_processes

IN_FINALIZERS = """
import signal, time
from fedcore.cli.exit_codes import _sigterm_interrupts, _Terminated

class Interrupted:
    def __del__(self):  # Python ignores what is raised here
        signal.raise_signal(signal.SIGTERM)

try:
    with _sigterm_interrupts():
        for _ in range(3):
            Interrupted()
        time.sleep(60)
except _Terminated:
    print("ended")
"""


def test_sigterm_that_arrives_in_a_finalizer_ends_the_command(tmp_path):
    ran = warm_processes.run({"code": IN_FINALIZERS}, cwd=tmp_path, env=warm_processes.environment(), timeout_s=30)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"ended\n", b"")
