"""Federated averaging over Flower's Grid, with a SuperLink and SuperNodes on the loopback interface."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from direct_exchange import ELEMENT
from federations import free_port, write_data, write_site

import fedcore as fc

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]
SITES = ["north", "south"]
PROJECT = """
[project]
name = "averaging"
version = "1.0.0"
description = "Federated averaging."
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedcore"

[tool.flwr.app.components]
serverapp = "averaging.server_app:app"
clientapp = "averaging.client_app:app"
"""
SERVER = """
import json, sys, time
from pathlib import Path
from flwr.serverapp import ServerApp

sys.path.insert(0, TESTS)
import fedcore as fc
from learning_programs import build_fed_avg

app = ServerApp()

@app.main()
def main(grid, context):
    while len(nodes := sorted(grid.get_node_ids())) < 2:
        time.sleep(0.2)
    exchange = fc.deployment.flower(grid, dict(zip(["north", "south"], nodes)))
    data = fc.deployment.sites(exchange, ELEMENT)
    seconds = []
    with fc.use(fc.runtime.network(exchange)):
        process = build_fed_avg()
        state = process.initialize()
        for _ in range(3):
            began = time.perf_counter()
            output = process.next(state, data.cohort(data.client_ids))
            state = output.state
            seconds.append(round(time.perf_counter() - began, 2))
    examples = int(output.metrics["client_work"]["train"]["num_examples"])
    result = Path(FOLDER) / "partial.json"
    result.write_text(json.dumps({"round": int(state.round), "examples": examples, "seconds": seconds}))
    result.rename(result.with_name("result.json"))
"""


@contextlib.contextmanager
def processes(folder: Path, commands: list[list[str]], environment: dict[str, str]):
    """Processes of the environment's commands, which end with the block."""
    running = []
    try:
        for number, command in enumerate(commands):
            output = (folder / f"output-{number}.txt").open("wb")
            running.append(
                subprocess.Popen(
                    command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
                )
            )
            output.close()
        yield
    finally:
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 15)
        for process in running:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()


def test_federated_averaging_runs_over_flowers_grid(tmp_path):
    port, bin_ = free_port(), Path(sys.executable).parent
    environment = {
        **os.environ,
        "FLWR_HOME": str(tmp_path / "flwr"),
        "HOME": str(tmp_path),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "NO_PROXY": "127.0.0.1",
        "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(Path(fc.__file__).parents[1]),
    }
    examples = 0
    for number, name in enumerate(SITES):
        (tmp_path / name).mkdir()
        examples += len(write_data(tmp_path / name, 12 + number, 6, number)["y"])
        file = write_site(tmp_path / name, tmp_path, 6)
        file.write_text(file.read_text().replace(f'kit = "{tmp_path}"', f'name = "{name}"\nsocket = "socket"'))
    app = tmp_path / "app" / "averaging"
    app.mkdir(parents=True)
    (tmp_path / "app" / "pyproject.toml").write_text(PROJECT)
    (app / "__init__.py").touch()
    (app / "client_app.py").write_text("import fedcore as fc\n\napp = fc.deployment.flower_client_app()\n")
    places = f"FOLDER, TESTS, ELEMENT = {str(tmp_path)!r}, {str(Path(__file__).parent)!r}, {ELEMENT!r}\n"
    (app / "server_app.py").write_text(places + SERVER)
    (tmp_path / "flwr").mkdir()
    address = f"127.0.0.1:{port}"
    config = f'[superlink]\ndefault = "trial"\n\n[superlink.trial]\naddress = "{address}"\ninsecure = true\n'
    (tmp_path / "flwr" / "config.toml").write_text(config)
    link = ["flower-superlink", "--insecure", "--port", str(port), "--disable-runtime-dependency-installation"]
    commands = [[str(bin_ / link[0]), *link[1:]]]
    for name in SITES:
        settings = tmp_path / name / "site.toml"
        commands.append([sys.executable, "-m", "fedcore", "site", str(settings)])
        node = ["--insecure", "--superlink", address, "--port", str(free_port())]
        node += ["--node-config", f'fedcore-socket="{tmp_path / name / "socket"}"']
        commands.append([str(bin_ / "flower-supernode"), *node])

    with processes(tmp_path, commands, environment):
        run = [str(bin_ / "flwr"), "run", str(tmp_path / "app"), "trial"]
        for _ in range(30):  # until the SuperLink listens
            done = subprocess.run(run, env=environment, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                break
            time.sleep(2)
        assert done.returncode == 0, done.stdout + done.stderr
        while not (tmp_path / "result.json").exists():
            time.sleep(0.5)

    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["round"], result["examples"]) == (3, examples)
