"""`fedcore new`, `train`, `resume`, `eval`, `list`, `show`: from an empty directory to a compared sweep."""

import errno
import hashlib
import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf  # noqa: F401  where it is loaded, commands run in this process
from click.testing import CliRunner

from fedcore.cli import main
from fedcore.cli.configuration import read_configuration, sweep
from fedcore.errors import FedcoreError

PROGRAMS = Path(__file__).parents[1] / "learning" / "programs"

CONFIGURATION = """
program = "own_program.py"
[run]
rounds = 3
clients_per_round = 2
seed = 4
[data]
clients = 4
[optimizer]
lr = 0.5
noise = 0.1
names = ["a", "b"]
"""

PROGRAM = f"""
import sys
sys.path.insert(0, {str(PROGRAMS)!r})
import tiny

def load_data(data):
    clients = tiny.clients(data["clients"])
    return clients, clients

def build_process(train, optimizer):
    return tiny.build(optimizer["noise"])
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "train.toml").write_text(CONFIGURATION)
    (tmp_path / "own_program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


@pytest.fixture
def fedcore():
    """Runs a command in this process; the result is a dict of its JSON, or its text."""

    def run(*arguments: str, code: int = 0):
        ran = CliRunner().invoke(main, arguments, prog_name="fedcore")
        assert ran.exit_code == code, ran.output
        return json.loads(ran.stdout) if "json" in arguments else ran.output

    return run


def test_a_new_project_trains_and_evaluates(fedcore, tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    assert fedcore("new", "digits").startswith("digits: train.toml, model.py, test_model.py\n")
    assert "already" in fedcore("new", "digits", code=2)
    monkeypatch.chdir(tmp_path / "digits")
    options = [word for key in ("run.rounds=1", "data.clients=10", "data.epochs=1") for word in ("--set", key)]
    said = fedcore("train", "train.toml", *options)
    assert "runs/001: 1 rounds" in said
    assert "val_accuracy" in said
    assert "fedcore eval runs/001" in said


@pytest.mark.soak
def test_the_test_of_a_new_project_passes(fedcore_in, tmp_path):
    fedcore_in(tmp_path, "new", "digits")
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=tmp_path / "digits", check=True
    )


def test_a_run_is_trained_resumed_listed_and_shown(project, fedcore):
    text = fedcore("train", "train.toml", "--set", "run.rounds=2")
    assert "runs/001: 2 rounds, run.rounds=2; after an interrupt: fedcore resume runs/001" in text
    assert [line.split()[0] for line in text.splitlines() if "bit" in line and "/" in line] == ["1/2", "2/2"]
    resumed = fedcore("resume", "runs/001", "--rounds", "3", "--format", "json")
    whole = fedcore("train", "train.toml", "--out", "elsewhere", "--format", "json")
    assert resumed["runs"][0]["metrics"] == whole["runs"][0]["metrics"]
    (listed,) = fedcore("list", "--format", "json")["runs"]
    assert (listed["rounds"], listed["of"], listed["set"]) == (3, 3, {"run.rounds": 2})
    assert "runs/001     3/3" in fedcore("list")
    shown = fedcore("show", "runs/001", "--format", "json")
    assert [c["state"] for c in shown["checkpoints"]] == ["whole"] * 3
    assert shown["surroundings"]["intra-op threads"]
    path = project / "runs/001/checkpoints/program_state_2.safetensors"
    path.write_bytes(b"")
    text = fedcore("show", "runs/001")
    assert "round 2: " in text
    assert "is damaged: the tensors have another checksum" in text
    assert "has no function build_evaluation" in fedcore("eval", "runs/001", code=1)
    assert "has a training already: fedcore resume elsewhere" in fedcore(
        "train", "train.toml", "--out", "elsewhere", code=2
    )


def test_the_seed_decides_the_weights_of_layers_that_a_program_makes(project, fedcore):
    (project / "own_program.py").write_text(
        PROGRAM
        + """
import keras, numpy as np, fedcore as fc

def build_process(train):
    layers = [keras.Input((1,)), keras.layers.Dense(1)]
    layers[1].build((None, 1))
    model = lambda: fc.learning.from_keras_model(keras.Sequential(layers), "mse", input_spec=SPEC)
    return fc.learning.algorithms.build_weighted_fed_avg(model, lambda: keras.optimizers.SGD(0.1))

def load_data(data):
    x = np.random.default_rng(0).normal(size=(8, 1)).astype("float32")
    clients = fc.simulation.datasets.split_over_clients((x, 2 * x), 4).preprocess(lambda d: d.batch(2))
    global SPEC
    SPEC = clients.element_type_structure
    return clients, clients
"""
    )
    first, second, other = (
        fedcore("train", "train.toml", "--format", "json", "--set", f"run.seed={seed}")["runs"][0]["metrics"]
        for seed in (4, 4, 5)
    )
    assert first["loss"] == second["loss"] != other["loss"]


@pytest.mark.parametrize("store", [None, "memory", "own.sqlite"])
def test_clients_keep_states_between_commands(project, fedcore, store):
    program = PROGRAM.replace("import tiny", "import tiny, remembering").replace(
        'tiny.build(optimizer["noise"])', "remembering.build()"
    )
    (project / "own_program.py").write_text(program)
    setting = () if store is None else ("--set", f"run.client_states={store}")
    fedcore("train", "train.toml", *setting)
    resumed = fedcore("resume", "runs/001", "--rounds", "6", "--format", "json")
    whole = fedcore("train", "train.toml", *setting, "--set", "run.rounds=6", "--format", "json")
    assert resumed["runs"][0]["metrics"] == whole["runs"][0]["metrics"]
    file = {None: "client_states.sqlite", "own.sqlite": "own.sqlite"}.get(store)
    assert [path.name for path in Path("runs/001").glob("*.sqlite")] == ([file] if file else [])


EXTENDED = (
    PROGRAM
    + """
import fedcore as fc

class Printed(fc.learning.programs.Callback):
    def on_round_end(self, round_number, logs):
        logs["drawn"] = len(self.training.client_ids)

class Written(fc.program.ReleaseManager):
    async def release(self, value, key):
        with open("released", "a") as file:
            file.write(f"{key} {value['drawn']}\\n")

def build_sampler(train):
    return lambda rounds_before: train.client_ids[: rounds_before + 1]

def build_callbacks(optimizer, process, sampler):
    halved = fc.learning.programs.LearningRateScheduler(lambda number, rate: rate * optimizer["lr"])
    assert callable(sampler)
    return [Printed(), halved]

def build_release_managers(callbacks):
    assert len(callbacks) == 2
    return [Written()]

def should_retry_round(output):
    return False

def _never_called():
    return 1
"""
)


def test_a_project_defines_a_sampler_callbacks_schedules_and_release_managers(project, fedcore):
    (project / "own_program.py").write_text(EXTENDED)
    done = fedcore("train", "train.toml", "--format", "json")
    assert (project / "released").read_text() == "1 1\n2 2\n3 3\n"
    assert done["runs"][0]["metrics"]["clients"] == 3
    resumed = fedcore("resume", "runs/001", "--rounds", "4", "--format", "json")
    assert resumed["runs"][0]["metrics"]["drawn"] == 4


SEARCH = ["sweep", "train.toml", "--set", "optimizer.noise=log:0.001..1", "--set", "run.seed=1,2", "--metric", "loss"]


def test_a_sweep_trains_with_what_optuna_suggests_and_goes_on(project, fedcore):
    pytest.importorskip("optuna")
    runs = fedcore(*SEARCH, "--trials", "2", "--sampler", "RandomSampler", "--format", "json")["runs"]
    assert all(0.001 <= run["set"]["optimizer.noise"] <= 1 and run["set"]["run.seed"] in (1, 2) for run in runs)
    assert len({run["set"]["optimizer.noise"] for run in runs}) == 2
    said = fedcore(*SEARCH, "--trials", "3")
    (again,) = (run for run in fedcore("list", "--format", "json")["runs"] if run["directory"].startswith("runs/003"))
    assert again["directory"] in said
    assert again["set"]["optimizer.noise"] not in [run["set"]["optimizer.noise"] for run in runs]
    best = min(fedcore("list", "--format", "json")["runs"], key=lambda run: run["metrics"]["loss"])
    assert f"best of 3: {best['directory']}, loss {best['metrics']['loss']:.4g}: --set optimizer.noise=" in said
    assert "best of 3" in fedcore(*SEARCH, "--trials", "3")  # all trials are done


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--set", "optimizer.lr=1..0.1"], 2, "a range is two numbers, the lower one first"),
        (["--set", "optimizer.lr=log:0..1"], 2, "a range is two numbers above 0"),
        (["--set", "optimizer.names=[1],[2]"], 2, "is a number, a text, true or false in each trial"),
        (["--set", "optimizer.lr=0.1..1", "--sampler", "Best"], 2, "optuna has no Best; it has BruteForceSampler"),
        (["--set", "optimizer.lr=0.1..1", "--pruner", "ThresholdPruner"], 2, "ThresholdPruner needs arguments"),
        (["--set", "optimizer.lr=0.1..1", "--metric", "accuracy"], 1, "have no number accuracy"),
    ],
)
def test_a_search_that_cannot_be_is_refused(project, fedcore, options, code, message):
    pytest.importorskip("optuna")
    assert message in " ".join(fedcore("sweep", "train.toml", "--trials", "1", *options, code=code).split())


def test_trainings_are_drawn_into_one_diagram(project, fedcore):
    pytest.importorskip("matplotlib")
    fedcore("train", "train.toml", "--set", "run.seed=1,2")
    assert "wrote curves.png" in fedcore("list", "--plot", "curves.png", "--metric", "loss")
    assert (project / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "a diagram is a file of the kind" in fedcore("list", "--plot", "curves.txt", code=1)
    assert "no history has noise" in fedcore("list", "--plot", "curves.png", "--metric", "noise", code=1)


def test_tensorboard_has_the_settings_of_a_training(project, fedcore):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from tensorboard.plugins.hparams import metadata

    fedcore("train", "train.toml", "--out", "run", "--set", "optimizer.lr=0.25")
    events = accumulators.EventAccumulator("run/tensorboard").Reload()
    content = events.summary_metadata[metadata.SESSION_START_INFO_TAG].plugin_data.content
    hparams = metadata.parse_session_start_info_plugin_data(content).hparams
    assert (hparams["optimizer.lr"].number_value, hparams["run.rounds"].number_value) == (0.25, 3)


def test_a_project_defines_a_clock(project, fedcore):
    clock = "def build_clock(train):\n    return fc.simulation.SynchronousClock(devices(train), 1, seed=0)\n"
    devices = "def devices(train):\n    return fc.simulation.Devices(train.client_ids, 60, seed=0)\n"
    (project / "own_program.py").write_text(f"{PROGRAM}\nimport fedcore as fc\n{clock}\n{devices}")
    done = fedcore("train", "train.toml", "--format", "json")
    assert done["runs"][0]["metrics"]["clock/time_s"] == 180


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def build_callback(train):\n    return []", "nothing calls build_callback; did you mean build_callbacks?"),
        ("def plotted():\n    return 1", "nothing calls plotted"),
    ],
)
def test_a_function_that_nothing_calls_is_refused(project, fedcore, text, message):
    (project / "own_program.py").write_text(f"{PROGRAM}\n\n{text}\n")
    said = fedcore("train", "train.toml", code=1)
    line = len(PROGRAM.splitlines()) + 3
    assert f"own_program.py:{line}: {message}" in said
    assert "fedcore train calls load_data, build_process, build_evaluation, build_sampler, build_clock, " in said
    (project / "own_program.py").write_text(f"{PROGRAM}\n\n{text}\n\n__all__ = ['build_callback', 'plotted']\n")
    fedcore("train", "train.toml")


def test_a_run_says_what_it_was_made_of_and_how_to_repeat_it(project, fedcore):
    fedcore("train", "train.toml", "--set", "run.rounds=1", "--out", "first")
    shown = fedcore("show", "first", "--format", "json")["origin"]
    assert shown["program"]["sha256"] == hashlib.sha256((project / "own_program.py").read_bytes()).hexdigest()
    assert shown["versions"]["keras"] == importlib.metadata.version("keras")
    assert shown["command"] == "fedcore train train.toml --set run.rounds=1"
    fedcore(*shown["command"].split()[1:], "--out", "second")
    assert (project / "first/metrics.csv").read_bytes() == (project / "second/metrics.csv").read_bytes()
    assert "second: 3 rounds; after an interrupt: " in fedcore("resume", "second", "--rounds", "3")
    fedcore("resume", "second", "--rounds", "2")  # which it has already
    fedcore("resume", "second", "--rounds", "3")
    longer = fedcore("show", "second", "--format", "json")["origin"]["command"]
    assert longer == "fedcore train train.toml --set run.rounds=3"
    (project / "own_program.py").write_text((project / "own_program.py").read_text() + "\n")
    text = fedcore("show", "first")
    assert "own_program.py has changed since: sha256:" in text
    assert "repeat it\n  fedcore train train.toml --set run.rounds=1\n" in text


def test_a_run_in_a_repository_has_its_commit(project, fedcore):
    def git(*words):
        identity = ("-c", "user.name=A", "-c", "user.email=a@b.c")
        done = subprocess.run(["git", *identity, *words], cwd=project, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "first")
    (project / "own_program.py").write_text((project / "own_program.py").read_text() + "\n")
    fedcore("train", "train.toml", "--set", "run.rounds=1")
    shown = fedcore("show", "runs/001", "--format", "json")["origin"]
    assert shown["commit"] == git("rev-parse", "HEAD") + "+changes"


def test_a_damaged_training_hides_no_other(project, fedcore):
    fedcore("train", "train.toml", "--set", "run.rounds=1")
    fedcore("train", "train.toml", "--set", "run.rounds=1")
    (project / "runs/001/config.json").write_text("{")
    listed = fedcore("list", code=1)
    assert "runs/002     1/1" in listed
    assert "runs/001/config.json cannot be read: " in listed


@pytest.mark.parametrize("damage", [b"a,b\n1,2\n", b"round,loss\nx,1\n", b"round,loss\n\xff,1\n"])
def test_a_damaged_table_is_named_with_a_fix_that_works(project, fedcore, damage):
    fedcore("train", "train.toml", "--set", "run.rounds=1")
    table = project / "runs/001/metrics.csv"
    table.write_bytes(damage)
    said = fedcore("resume", "runs/001", "--rounds", "2", code=1)
    assert "runs/001/metrics.csv" in said
    assert "key_fieldname" not in said
    table.unlink()
    assert "runs/001: 2 " in fedcore("resume", "runs/001", "--rounds", "2")


def test_json_has_texts_for_numbers_that_are_not_finite(project, fedcore):
    def parsed(text: str):
        return json.loads(text, parse_constant=pytest.fail)  # NaN and Infinity are no JSON

    (project / "train.toml").write_text(CONFIGURATION.replace("noise = 0.1", "noise = 0.1\nlimits = [nan, inf]"))
    (run,) = parsed(fedcore("train", "train.toml", "--format=json"))["runs"]
    metrics = project / run["directory"] / "metrics.csv"
    metrics.write_text(metrics.read_text().replace(str(run["metrics"]["loss"]), "nan"))
    assert parsed(fedcore("list", "--format=json"))["runs"][0]["metrics"]["loss"] == "nan"
    shown = parsed(fedcore("show", run["directory"], "--format=json"))
    assert shown["metrics"]["loss"] == "nan"
    assert shown["config"]["optimizer"]["limits"] == ["nan", "inf"]


def test_an_evaluation_of_the_newest_checkpoint(project, fedcore):
    (project / "own_program.py").write_text(
        PROGRAM + "\ndef build_evaluation(train):\n    return tiny.build_evaluation()\n"
    )
    (run,) = fedcore("train", "train.toml", "--format", "json")["runs"]
    found = fedcore("eval", "runs/001", "--format", "json")
    assert found["round"] == 3
    assert found["metrics"]["loss"] == run["metrics"]["val_loss"]
    assert "runs/001, round 3" in fedcore("eval", "runs/001")


def test_a_sweep_trains_with_each_combination(project, fedcore):
    found = fedcore(
        "train", "train.toml", "--set", "run.rounds=1", "--set", "optimizer.noise=0.1,0.2", "--format", "json"
    )
    assert [Path(run["directory"]).name for run in found["runs"]] == [
        "001-optimizer.noise=0.1",
        "002-optimizer.noise=0.2",
    ]
    assert len({run["metrics"]["loss"] for run in found["runs"]}) == 2
    assert len(fedcore("list").splitlines()) == 3


def test_a_sweep_goes_on_with_the_runs_of_equal_settings(project, fedcore):
    def train(values, *more):
        words = ["train", "train.toml", "--set", f"optimizer.noise={values}", "--resume", "--format", "json", *more]
        return [(Path(run["directory"]).name[:3], run["metrics"]["loss"]) for run in fedcore(*words)["runs"]]

    first = train("0.1,0.2")
    table = project / "runs/001-optimizer.noise=0.1/metrics.csv"
    rows = table.read_text().splitlines(keepends=True)
    (project / "runs/002-optimizer.noise=0.2/config.json").unlink()  # no run of these settings
    table.write_text("".join(rows[:-1]))  # as where it was stopped before its last round
    for path in table.parent.glob("checkpoints/program_state_3*"):
        path.unlink()
    second = train("0.1,0.2,0.3")
    assert [name for name, _ in first + second] == ["001", "002", "001", "003", "004"]
    assert [loss for _, loss in second[:2]] == [loss for _, loss in first]
    written = table.stat().st_mtime_ns
    assert train("0.3,0.1") == [second[2], second[0]]
    assert table.stat().st_mtime_ns == written  # a finished run is only read
    (project / "own_program.py").write_text(PROGRAM + "\n")
    assert [name for name, _ in train("0.1,0.2")] == ["005", "006"]  # other runs, of another program
    assert [name for name, _ in train("0.5", "--out", "own")] == ["own"]
    assert [name for name, _ in train("0.5", "--out", "own")] == ["own"]
    assert "has a training already" in fedcore(
        "train", "train.toml", "--set", "optimizer.noise=0.6", "--resume", "--out", "own", code=2
    )


def test_values_of_set():
    before = {"run": {"rounds": 1}, "optimizer": {"lr": 0.5, "names": ["a"], "name": "x"}, "program": "p.py"}

    def values(*options):
        return [sets for sets, _ in sweep(before, options)]

    assert values("optimizer.lr=1") == [{"optimizer.lr": 1.0}]
    assert values("optimizer.names=['b', 'c']") == [{"optimizer.names": ["b", "c"]}]
    assert values('optimizer.name=y,"z, z"') == [{"optimizer.name": "y"}, {"optimizer.name": "z, z"}]
    assert len(values("optimizer.lr=1,2", "run.rounds=3,4")) == 4
    ((_, changed),) = sweep(before, ["run.seed=3"])
    assert changed["run"] == {"rounds": 1, "seed": 3}
    assert before["run"] == {"rounds": 1}


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("optimizer.lrr=1", "there is no optimizer.lrr; there are program, run.rounds"),
        ("optimizer.lr=fast", "optimizer.lr is a number, such as 0.5, not 'fast'"),
        ("run.rounds=1.5", "run.rounds is a whole number, such as 3, not '1.5'"),
        ("optimizer=1", "optimizer is a table; it has optimizer.lr"),
        ("optimizer.lr", "'optimizer.lr' is not KEY=VALUE"),
    ],
)
def test_wrong_values_of_set(project, fedcore, option, message):
    assert message in fedcore("train", "train.toml", "--set", option, code=2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("program = 1\n[run]\nrounds = 1", "program names a Python file"),
        ('program = "p.py"', r"there is no table \[run\] with rounds"),
        ('program = "p.py"\n[run]\nrounds = 1\nround = 2', r"\[run\] has no round; it may have rounds"),
        ('program = "p.py"\n[run]\nrounds = "1"', "run.rounds is a whole number, not '1'"),
        ('program = "p.py"\nlr = 1\n[run]\nrounds = 1', "lr is no table"),
        ('program = "p.py"\n[run]\nrounds = 1\n[data]\nat = 2020-01-01', 'data.at is a date .* as in "2020-01-01"'),
        ('program = "p.py"\n[run]\nrounds = 1\n[data]\nof.at = [1, [07:32:00]]', 'data.of.at is .* in "07:32:00"'),
        ("program =", "train.toml: Invalid value"),
    ],
)
def test_wrong_files_are_named(tmp_path, text, message):
    path = tmp_path / "train.toml"
    path.write_text(text)
    with pytest.raises(FedcoreError, match=message):
        read_configuration(path)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("", "own_program.py has no function load_data; fedcore new writes"),
        ("import nothing_there", "importing own_program.py fails: ModuleNotFoundError: "),
        (
            "def load_data(data):\n    return data['client']",
            "load_data fails: KeyError: 'client'\n  at own_program.py:2: ",
        ),
        ("def load_data(table): ...", "load_data takes table, but there are run, data, optimizer"),
        ("def load_data(data): ...", "load_data returns two client data"),
    ],
)
def test_errors_of_the_program_name_its_line(project, fedcore, program, message):
    (project / "own_program.py").write_text(program)
    assert message in fedcore("train", "train.toml", code=1)


def test_a_training_that_fails_says_how_to_go_on(project, fedcore, monkeypatch):
    from fedcore import whole_files

    written, write = [], whole_files._flush_file

    def full(path, mode):
        written.append(path)
        if len(written) > 8:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, mode)

    with monkeypatch.context() as patch:
        patch.setattr(whole_files, "_flush_file", full)
        said = fedcore("train", "train.toml", code=1)
    assert "training fails: [Errno 28] No space left on device\n  fedcore resume runs/001 goes on" in said
    resumed = fedcore("resume", "runs/001", "--format", "json")
    whole = fedcore("train", "train.toml", "--format", "json")
    assert resumed["runs"][0]["metrics"] == whole["runs"][0]["metrics"]


def test_an_error_while_clients_are_read_names_the_line(project, fedcore):
    failing = PROGRAM.replace("return clients, clients", "return clients.preprocess(lambda d: d[0]), clients")
    (project / "own_program.py").write_text(failing)
    said = fedcore("train", "train.toml", code=1)
    assert "at own_program.py:" in said


def test_a_directory_without_a_training(project, fedcore):
    assert "has no config.json: it is no directory that fedcore train wrote" in fedcore("show", ".", code=1)
    (project / "runs").mkdir()
    assert fedcore("list") == "runs has no trainings\n"
    (project / "runs/mine").mkdir(parents=True)
    (project / "runs/mine/run_state.json").write_text("{}")
    assert fedcore("list") == "runs has no trainings; those of programs.train have metrics.csv\n"
