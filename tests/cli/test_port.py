import json

PROGRAM = """import tensorflow_federated as tff
import tensorflow as tf


def train(optimizer, model, loss):
    state = tff.learning.framework.ServerState(model, optimizer.variables(), (), ())
    optimizer.minimize(loss, model.trainable_variables)
    return tff.simulation.run_simulation(state), tff.learning.algorithms.build_fed_eval
"""
LISTED = """\
old.py:1: import tensorflow_federated
  write import fedcore as tff
old.py:6: optimizer.variables()
  write optimizer.variables, which is a list
old.py:6: tff.learning.framework.ServerState
  write fc.learning.LearningAlgorithmState: the state of every process
old.py:7: optimizer.minimize()
  write with tf.GradientTape() as tape: …; optimizer.apply(tape.gradient(loss, variables), variables)
old.py:8: tff.simulation.run_simulation
  write fc.simulation.run_training_process: its arguments are others
"""


def test_each_line_that_needs_an_edit_says_what_to_write(fedcore, tmp_path):
    (tmp_path / "old.py").write_text(PROGRAM)
    ran = fedcore("port", "old.py")
    assert (ran.code, ran.out) == (1, LISTED)


def test_json_has_the_parts_of_an_edit(fedcore, tmp_path):
    (tmp_path / "old.py").write_text("import federated_language\n")
    (edit,) = json.loads(fedcore("port", "old.py", "--format", "json").out)
    assert edit == {
        "file": "old.py",
        "line": 1,
        "has": "import federated_language",
        "write": "import fedcore as federated_language",
    }


def test_a_program_of_fedcore_needs_no_edit(fedcore, tmp_path):
    (tmp_path / "new.py").write_text("import fedcore as tff\ntff.federated_sum\n")
    ran = fedcore("port", "new.py")
    assert (ran.code, ran.out) == (0, "no line needs an edit in new.py\n")


def test_a_file_that_is_no_python_is_told_with_its_line(fedcore, tmp_path):
    (tmp_path / "wrong.py").write_text("a = 1\nb = (\n")
    ran = fedcore("port", "wrong.py")
    assert ran.code == 1
    assert ran.err.startswith("fedcore: wrong.py: ")
    assert "'(' was never closed" in ran.err
