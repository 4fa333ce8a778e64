"""Locations open files of this process's own programs, below their project, and no others."""

import json
import os
from pathlib import Path

import attrs
import pytest

import fedcore as fc
from fedcore.compiler.pinned_plans import PinnedPlans
from fedcore.errors import FedcoreError, Location
from fedcore.ir import Module, bundle, parse_module
from fedcore.ir.regular_files import read_regular_file
from fedcore.ir.sources import MAX_SOURCE_BYTES, sources_of

TEXT = """fedcore 1 traced

fn @total(%x: {{float32}}@CLIENTS) -> float32@SERVER {{   loc({0}:1)
  %0 = federated_sum(%x) : float32@SERVER   loc({0}:1)
  return %0
}}
"""


def naming(file: str) -> Module:
    """A module from elsewhere whose locations name the file."""
    return parse_module(TEXT.format(json.dumps(file)))


def traced_from(path: Path) -> Module:
    """A module as this process would trace it from the file."""
    module = naming("program.py")
    main = module.main
    return attrs.evolve(module, functions=(attrs.evolve(main, location=Location("program.py", 1, str(path))),))


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """The working directory: below one that holds a secret."""
    (tmp_path / "secret.txt").write_text("top secret")
    directory = tmp_path / "project"
    directory.mkdir()
    monkeypatch.chdir(directory)
    return directory


@pytest.mark.parametrize("file", ["secret.txt", "../secret.txt", "program.py", "fifo", "/dev/zero", __file__, "os.py"])
def test_a_location_of_a_file_from_elsewhere_opens_nothing(project, file):
    (project / "program.py").write_text("x = 1\n")
    (project / "secret.txt").write_text("top secret")
    os.mkfifo(project / "fifo")
    assert sources_of(naming(file), naming(str(project / file))) == {}


def test_a_traced_file_of_the_project_is_read(project):
    (project / "program.py").write_text("x = 1\n")
    assert sources_of(traced_from(project / "program.py")) == {"program.py": "x = 1\n"}


def test_what_a_computation_was_traced_from_is_read_and_gone_after_saving(tmp_path):
    total = fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))(lambda x: fc.federated_sum(x))
    (text,) = sources_of(total.module).values()
    assert text == Path(__file__).read_text()
    bundle.write(total.module, tmp_path / "total.fed")
    loaded = fc.load(tmp_path / "total.fed")
    assert loaded.module == total.module
    assert str(loaded.module) == str(total.module)
    assert sources_of(loaded.module) == {}


def outside(project: Path) -> Path:
    return project.parent / "secret.txt"


def above(project: Path) -> Path:
    return project / ".." / "secret.txt"


def link_out(project: Path) -> Path:
    (project / "linked.py").symlink_to(outside(project))
    return project / "linked.py"


def linked_directory(project: Path) -> Path:
    (project / "directory").symlink_to(project.parent)
    return project / "directory" / "secret.txt"


def fifo(project: Path) -> Path:
    os.mkfifo(project / "fifo.py")
    return project / "fifo.py"


def link_to_device(project: Path) -> Path:
    (project / "zero.py").symlink_to("/dev/zero")
    return project / "zero.py"


def directory(project: Path) -> Path:
    return project


def gone(project: Path) -> Path:
    return project / "gone.py"


def too_large(project: Path) -> Path:
    (project / "large.py").write_text("#" * (MAX_SOURCE_BYTES + 1))
    return project / "large.py"


def binary(project: Path) -> Path:
    (project / "binary.py").write_bytes(b"\xff\xfe\x00")
    return project / "binary.py"


def with_zero_bytes(project: Path) -> Path:
    (project / "zeros.py").write_bytes(b"a\x00b")
    return project / "zeros.py"


@pytest.mark.parametrize(
    "made",
    [
        *(outside, above, link_out, linked_directory, fifo, link_to_device, directory, gone, too_large, binary),
        with_zero_bytes,
    ],
)
def test_no_source_is_read_that_is(project, made):
    assert sources_of(traced_from(made(project))) == {}


def test_no_project_is_the_whole_file_system(project, monkeypatch):
    monkeypatch.chdir("/")
    assert sources_of(traced_from(outside(project))) == {}


def test_a_recording_of_a_loaded_program_holds_no_file(project, monkeypatch):
    bundle.write(naming(str(outside(project))), project / "program.fed")
    monkeypatch.setenv("FEDCORE_TRACE", str(project / "trace"))
    assert fc.load(project / "program.fed")([1.0, 2.0]) == 3.0
    (path,) = (project / "trace").glob("module-*.json")
    assert json.loads(path.read_text())["sources"] == {}
    assert "top secret" not in path.read_text()


def test_a_regular_file_is_read_up_to_its_limit(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    assert read_regular_file(tmp_path / "file", 5) == b"12345"
    with pytest.raises(FedcoreError, match=r"file has 5 bytes; at most 4 are read"):
        read_regular_file(tmp_path / "file", 4)


def test_a_file_of_the_kernel_that_says_it_is_empty_is_not_cut_short():
    with pytest.raises(FedcoreError, match="/proc/self/status changes while it is read"):
        read_regular_file("/proc/self/status", 1_000_000)


@pytest.mark.parametrize("read", [fc.load, bundle.read, PinnedPlans.read])
def test_a_program_that_is_a_fifo_is_refused_and_not_waited_for(tmp_path, read):
    os.mkfifo(tmp_path / "program.fed")
    with pytest.raises(FedcoreError, match=r"program\.fed is no regular file"):
        read(tmp_path / "program.fed")


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_a_device_is_no_regular_file(device):
    with pytest.raises(FedcoreError, match=f"{device} is no regular file"):
        read_regular_file(device, 10)


def test_a_file_in_a_folder_whose_name_begins_as_the_packages_is_the_users():
    path = f"{os.path.dirname(fc.__file__)}_experiments/train.py"
    names = {"fc": fc}
    exec(compile("total = fc.federated_computation(lambda: fc.federated_value(1, fc.SERVER))", path, "exec"), names)
    assert names["total"].module.main.location.path == path
    assert names["total"].module.main.operations[0].location.path == path
