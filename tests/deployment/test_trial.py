"""`fedcore deploy try` where something is wrong: at a site, with its process, or in server.py."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

import fedcore as fc

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PYTHONPATH = os.pathsep.join([str(Path(fc.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": PYTHONPATH,
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "-1",
}
SITES_OF_ONE_LINE = """
import subprocess, sys
from fedcore.cli import main
from fedcore.deployment import trial

def start(folder):
    is_ended = folder.name == "east" and {east_ends}
    program = f"print('{{folder.name}}: no table in', {{str(folder)!r}}, flush=True)" + "; input()" * (not is_ended)
    with (folder / "output.txt").open("wb") as output:
        return subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=output, stderr=output)

trial._start, trial.START_S = start, {start_s}
main(["deploy", "try", {folder!r}])
"""


@pytest.fixture
def project(tmp_path):
    subprocess.run([sys.executable, "-m", "fedcore", "new", "hospital", "--template", "network"], cwd=tmp_path,
                   env=ENVIRONMENT, check=True, capture_output=True)  # fmt: skip
    return tmp_path / "hospital"


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def errors_of(*arguments):
    process = start(*arguments)
    _, errors = process.communicate()
    assert process.returncode == 1
    return errors[errors.index("fedcore: ") :]  # behind TensorFlow's own lines


def sites_of_one_line(project, *, start_s, east_ends=False):
    return SITES_OF_ONE_LINE.format(folder=str(project), start_s=start_s, east_ends=east_ends)


def test_what_is_wrong_at_the_sites_is_told_before_they_start(project):
    for name in ("east", "north"):
        table = project / "sites" / name / "patients.csv"
        table.write_text(table.read_text().replace("age,", "ages,", 1))

    errors = errors_of("-m", "fedcore", "deploy", "try", project)

    table = project / "sites" / "east" / "patients.csv"
    assert errors.startswith("fedcore: the sites do not start\n  east: data: ")
    assert str(table) in errors
    assert "\n  north: data: " in errors
    assert "south" not in errors
    assert not (project / ".trial").exists()


def test_a_site_whose_process_ends_stops_the_trial_at_once(project):
    errors = errors_of("-c", sites_of_one_line(project, start_s=500, east_ends=True))

    told = f"east: the site's process has ended\n  east has printed\n    east: no table in {project}/sites/east\n"
    assert errors == f"fedcore: {told}"


def test_sites_that_do_not_connect_are_shown_with_what_they_printed(project):
    errors = errors_of("-c", sites_of_one_line(project, start_s=3))

    shown = "".join(
        f"  {n} has printed\n    {n}: no table in {project}/sites/{n}\n" for n in ("east", "north", "south")
    )
    assert errors == f"fedcore: east, north, south: not connected within 3 s\n{shown}"


def test_a_trial_that_is_stopped_shows_what_the_sites_printed(project):
    process = start("-c", sites_of_one_line(project, start_s=500))
    while not (output := project / ".trial" / "sites" / "south" / "output.txt").exists() or not output.read_text():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)

    _, errors = process.communicate()

    assert process.returncode == 130
    assert "fedcore: stopped by Ctrl-C\n  east has printed\n    east: no table" in errors
