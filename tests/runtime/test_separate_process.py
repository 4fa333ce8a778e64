"""What the tests of interruption rest on."""

import subprocess
import sys

from separate_process import command, environment, told


def test_a_child_takes_ctrl_c_where_the_tests_run_in_the_background():
    background = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    body = "try:\n    signal.raise_signal(signal.SIGINT)\nexcept KeyboardInterrupt:\n    tell('interrupted')\n"
    ran = subprocess.run(
        [sys.executable, "-c", background, *command(body)],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
    )
    assert told(ran.stdout) == ["interrupted"], ran.stderr
