"""Real processes over NVIDIA FLARE: programs that end, ports in use, and a second process of a site."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from federations import free_port, write_data, write_site

import fedcore as fc
from fedcore.deployment.flare_exchange import provision
from fedcore.deployment.ports import check_port_is_free
from fedcore.errors import FedcoreError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(Path(fc.__file__).parents[1]),
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "-1",
}
OPEN = "import time\nimport fedcore as fc\nexchange = fc.deployment.flare({kit!r}, ['east'], least=0, wait_s=0)\n"
ENDS = {
    "at the end of the program": ("", 0),
    "by an exception": ("raise ValueError('wrong')\n", 1),
    "by SystemExit": ("raise SystemExit(4)\n", 4),
    "of a with block": ("with exchange:\n    pass\nexchange.close()\n", 0),
    "by Ctrl-C": ("print('open', flush=True)\ntime.sleep(600)\n", -signal.SIGINT),
}
END_S = 60
"""Seconds for the start and the end of a program, on a machine with other work."""


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """The folder and the kits of a federation of one site; its port."""
    folder, port = tmp_path_factory.mktemp("federation"), free_port()
    return folder, provision(folder, ["east"], port), port


def start(program, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(("program", "code"), ENDS.values(), ids=ENDS)
def test_an_exchange_ends_with_its_program(federation, program, code):
    _, kits, port = federation
    process = start(OPEN.format(kit=str(kits["server"])) + program)
    if code == -signal.SIGINT:
        assert process.stdout.readline() == "open\n"
        process.send_signal(signal.SIGINT)
    try:
        _, errors = process.communicate(timeout=END_S)
    finally:
        process.kill()

    assert process.returncode == code, errors
    check_port_is_free(port)


def test_a_port_in_use_is_told_as_that(federation):
    _, kits, port = federation
    with socket.create_server(("", port)):
        process = start(OPEN.format(kit=str(kits["server"])))
        _, errors = process.communicate(timeout=END_S)

    assert process.returncode == 1
    assert f"port {port} is in use: another process listens there" in errors
    assert "not connected" not in errors


def test_a_port_that_is_free_is_none_in_use():
    port = free_port()
    check_port_is_free(port)
    with socket.create_server(("127.0.0.1", port)), pytest.raises(FedcoreError, match=f"port {port} is in use"):
        check_port_is_free(port)


def test_a_server_tells_for_which_sites_it_waits(federation):
    _, kits, port = federation
    program = "import fedcore as fc\nfrom fedcore.deployment import flare_exchange\nflare_exchange.TELL_S = 0.1\n"
    process = start(f"{program}fc.deployment.flare({str(kits['server'])!r}, ['east'], wait_s=1)\n")
    _, errors = process.communicate(timeout=END_S)

    waits, _, error = errors.partition(": waits 1 s for east to connect\n")
    assert waits.endswith(f"localhost:{port}")
    assert f"east: not connected to localhost:{port} within 1 s" in error


class Running:
    """A process of a site, with the lines that it has printed."""

    def __init__(self, file):
        self.output = file.with_name(f"output-{time.monotonic_ns()}.txt")
        command = [sys.executable, "-m", "fedcore", "site", str(file)]
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=ENVIRONMENT)

    def text(self) -> str:
        return self.output.read_text()

    def wait_for(self, text, seconds=120):
        end = time.monotonic() + seconds
        while text not in self.text():
            assert time.monotonic() < end, self.text()
            time.sleep(0.1)


WATCH = """
import sys, threading
exchange.wait(120, 1)
online, last = 0.0, time.monotonic()
print("watching", flush=True)
threading.Thread(target=lambda: (sys.stdin.read(), stop.append(1)), daemon=True).start()
stop, longest, since = [], 0.0, None
while not stop:
    if exchange.is_online("east"):
        since = None
    else:
        since = since or time.monotonic()
        longest = max(longest, time.monotonic() - since)
    time.sleep(0.02)
print(f"longest {longest}", flush=True)
"""


def test_a_second_process_of_a_site_is_refused_and_told_and_the_first_stays(federation):
    folder, kits, _ = federation
    (folder / "east").mkdir()
    write_data(folder / "east", 12, 6, 0)
    file = write_site(folder / "east", kits["east"], 6)
    server = subprocess.Popen(
        [sys.executable, "-c", "stop = []\n" + OPEN.format(kit=str(kits["server"])) + WATCH],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    first = Running(file)
    try:
        assert server.stdout.readline() == "watching\n"
        first.wait_for("waits for the server's requests")

        second = Running(file)

        assert second.process.wait(120) == 1
        assert "another process with the certificate of east is connected to the server" in second.text()
        time.sleep(12)  # an end of the second process may end the first's connection, which comes back
        output, errors = server.communicate("", timeout=END_S)
        assert first.process.poll() is None
    finally:
        for process in (first.process, server):
            process.terminate()
            process.wait(30)
    assert "east: a second process has connected with its certificate, and was refused" in errors
    assert float(output.split()[-1]) < 12
