"""A training that is killed at random moments and resumed ends as one that was not."""

from pathlib import Path

import pytest
import warm_processes

KILLED = '''
import asyncio, os, random, signal, sys, time
sys.path.insert(0, {here!r})
os.environ["FEDCORE_CACHE"] = "plans"
import tensorflow as tf
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
    import {module}

    return fc.learning.programs.train(
        {module}.build(), {module}.clients(), rounds, clients_per_round=3, seed=1, directory=directory,
        callbacks=[Log(ready)], **getattr({module}, "OPTIONS", {{}}),
    )

def is_cut(directory):
    """Whether the process was killed while it wrote a checkpoint."""
    names = os.listdir(directory + "/checkpoints")
    written, whole = (
        {{name.split(".")[0] for name in names if name.endswith(ending)}} for ending in (".safetensors", ".json")
    )
    return bool(written - whole) or any(name.endswith(".partial") for name in names)

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

def last_round():
    return max(int(line) for line in open("rounds"))

drawn, killed, cut = random.Random({seed}), 0, 0
while killed < KILLS or (not ({until}) and killed < 100):
    process, ready = child("killed", 10**6)
    os.read(ready, 1)
    if killed % 4:
        os.read(ready, 1)
    time.sleep(drawn.uniform(0, 0.2))
    os.kill(process, signal.SIGKILL)
    assert os.waitpid(process, 0)[1] == signal.SIGKILL
    os.close(ready)
    killed += 1
    cut += is_cut("killed")

begun = [int(line) for line in open("rounds")]
last = last_round()
redone = len(begun) - last
print("rounds", last, "redone", redone, "cut", cut)
assert sorted(set(begun)) == list(range(1, last + 1))
assert redone <= 2 * killed, redone  # the round that ran, and the one whose checkpoint was being written
results = [train(name, last, os.open(os.devnull, os.O_WRONLY)) for name in ("killed", "whole")]
models = [result.state.global_model_weights for result in results]
weights = [[leaf.tobytes() for leaf in (*model.trainable, *model.non_trainable)] for model in models]
assert weights[0] == weights[1]
own = [{{name: [leaf.tobytes() for leaf in tf.nest.flatten(state)] for name, state in result.client_states.items()}}
       for result in results]
assert own[0] == own[1]
assert results[0].rows == results[1].rows
assert open("killed/metrics.csv").read() == open("whole/metrics.csv").read()
assert not [name for name in os.listdir("killed/checkpoints") if name.endswith(".partial")]
'''


def killed(folder, *, kills, seed, module="tiny", until="True"):
    """Kills so many times, and on until an expression holds: which moment a kill meets depends on the machine."""
    code = KILLED.format(here=str(Path(__file__).parent), kills=kills, seed=seed, module=module, until=until)
    timeout_s = 200 + 20 * kills
    ended = warm_processes.run({"code": code}, cwd=folder, env=warm_processes.environment(), timeout_s=timeout_s)
    assert ended.returncode == 0, ended.stderr.decode()[-4000:]
    return ended.stdout.decode().split()


def test_killed_while_large_checkpoints_are_written(tmp_path):
    said = killed(tmp_path, kills=5, seed=2, module="large", until="cut")
    assert int(said[-1]) > 0, said


def test_killed_while_clients_keep_states(tmp_path):
    said = killed(tmp_path, kills=4, seed=3, module="remembering", until="last_round() > KILLS")
    assert int(said[1]) > 4, said


@pytest.mark.soak
@pytest.mark.parametrize("module", ["tiny", "large", "remembering", "scaffold", "fed_buff"])
def test_killed_at_many_random_moments(tmp_path, module):
    killed(tmp_path, kills=200, seed=1, module=module)
