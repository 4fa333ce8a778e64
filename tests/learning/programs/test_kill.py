"""A training that is killed at random moments and resumed ends as one that was not."""

from pathlib import Path

import pytest
import warm_processes

KILLED = '''
import asyncio, os, random, signal, sys, time
sys.path.insert(0, {here!r})
os.environ["FEDCORE_CACHE"] = "plans"
import fedcore as fc

KILLS, parent, parents_parent = {kills}, os.getpid(), os.getppid()

def told(pipe, byte):
    try:
        os.write(pipe, byte)
    except BlockingIOError:  # nobody reads the rounds after the first
        pass

class Log(fc.learning.programs.Callback):
    """Tells the parent that training runs, and writes each round that begins."""

    def __init__(self, ready):
        self.ready, self.begun = ready, False

    def on_train_begin(self):
        told(self.ready, b"1")

    def on_round_begin(self, round_number):
        if os.getppid() not in (parent, parents_parent):
            os._exit(1)  # the test was ended
        if self.begun:  # the first round is long: it traces and compiles
            told(self.ready, b"2")
        self.begun = True
        with open("rounds", "a") as file:
            file.write(f"{{round_number}}\\n")

def train(directory, rounds, ready):
    import tiny

    return fc.learning.programs.train(
        tiny.build(), tiny.clients(), rounds, clients_per_round=3, seed=1, directory=directory, callbacks=[Log(ready)]
    )

def child(directory, rounds):
    """A process that trains; its id and a pipe that has a byte once it does."""
    ready, theirs = os.pipe()
    process = os.fork()
    if not process:
        os.set_blocking(theirs, False)
        train(directory, rounds, theirs)
        os._exit(0)
    os.close(theirs)
    return process, ready

drawn, killed = random.Random({seed}), 0
while killed < KILLS:
    process, ready = child("killed", 10**6)
    os.read(ready, 1)
    if killed % 4:
        os.read(ready, 1)
    time.sleep(drawn.uniform(0, 0.2))
    os.kill(process, signal.SIGKILL)
    assert os.waitpid(process, 0)[1] == signal.SIGKILL
    os.close(ready)
    killed += 1

begun = [int(line) for line in open("rounds")]
last = max(begun)
redone = len(begun) - last
print("rounds", last, "redone", redone)
assert sorted(set(begun)) == list(range(1, last + 1))
assert redone <= KILLS, redone
results = [train(name, last, os.open(os.devnull, os.O_WRONLY)) for name in ("killed", "whole")]
weights = [result.state.global_model_weights.trainable[0].tobytes() for result in results]
assert weights[0] == weights[1]
assert results[0].rows == results[1].rows
assert open("killed/metrics.csv").read() == open("whole/metrics.csv").read()
assert not [name for name in os.listdir("killed/checkpoints") if name.endswith(".partial")]
'''


def killed(folder, *, kills, seed):
    code = KILLED.format(here=str(Path(__file__).parent), kills=kills, seed=seed)
    ended = warm_processes.run({"code": code}, cwd=folder, env=warm_processes.environment(), timeout_s=60 + 20 * kills)
    assert ended.returncode == 0, ended.stderr.decode()[-4000:]
    return ended.stdout.decode()


@pytest.mark.timeout(300)
def test_killed_at_random_moments(tmp_path):
    said = killed(tmp_path, kills=10, seed=0)
    assert int(said.split()[1]) > 10, said


@pytest.mark.soak
def test_killed_at_many_random_moments(tmp_path):
    killed(tmp_path, kills=200, seed=1)
