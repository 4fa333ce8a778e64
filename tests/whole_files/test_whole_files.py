"""Files are written whole: by threads, by processes, by processes that are killed, and on a full disk."""

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import fedcore as fc
from fedcore.whole_files import write_whole, written_whole

PATIENCE_S = 60
SIZE = 300_000


def whole(data: bytes) -> bool:
    return len(data) == SIZE and data == data[:1] * SIZE


@pytest.fixture
def full_disk():
    """Files of this process hold at most 100 bytes while the fixture is in use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, before)


def test_threads_write_one_path_and_readers_find_whole_files(tmp_path):
    path, writers = tmp_path / "one", 4
    write_whole(path, b"0" * SIZE)
    together, done, failed = threading.Barrier(writers + 1), threading.Event(), []

    def write(i):
        try:
            together.wait(PATIENCE_S)
            for _ in range(10):
                write_whole(path, bytes([65 + i]) * SIZE)
        except Exception as error:
            failed.append(error)

    def read():
        together.wait(PATIENCE_S)
        while not done.is_set():
            if not whole(path.read_bytes()):
                failed.append("a part was read")

    reader = threading.Thread(target=read)
    threads = [threading.Thread(target=write, args=(i,)) for i in range(writers)]
    for thread in (reader, *threads):
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    done.set()
    reader.join(PATIENCE_S)
    assert failed == []
    assert [p.name for p in tmp_path.iterdir()] == ["one"]


WRITES_FOR_EVER = f"""
import sys
from fedcore.whole_files import write_whole
while True:
    for letter in sys.argv[2].encode():
        write_whole(sys.argv[1], bytes([letter]) * {SIZE})
        print("written", flush=True)
"""


def test_processes_that_write_one_path_and_are_killed_leave_a_whole_file(tmp_path):
    path = tmp_path / "one"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for letters in ("ab", "cd"):
        writers = [
            subprocess.Popen([sys.executable, "-c", WRITES_FOR_EVER, path, x], env=env, stdout=subprocess.PIPE)
            for x in letters
        ]
        try:
            for writer in writers:
                for _ in range(5):
                    assert writer.stdout.readline() == b"written\n"
                    assert whole(path.read_bytes())
        finally:
            for writer in writers:
                writer.send_signal(signal.SIGKILL)
                writer.wait(PATIENCE_S)
                writer.stdout.close()
        assert whole(path.read_bytes())
        assert path.read_bytes()[:1] in [x.encode() for x in letters]


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, full_disk):
    path = tmp_path / "one"
    write_whole(path, "old")
    with pytest.raises(OSError, match="File too large"):
        write_whole(path, b"n" * SIZE)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["one"]


def test_an_interrupt_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    path = tmp_path / "one"
    write_whole(path, "old")
    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["one"]


def test_an_error_names_the_path_that_was_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("directory").mkdir()
    for path, refused in (("missing/one", FileNotFoundError), ("directory", IsADirectoryError)):
        with pytest.raises(refused) as raised, written_whole(path):
            pass
        assert str(raised.value).endswith(f": '{path}'")
        assert raised.value.filename == path
    computation = fc.federated_computation(lambda: fc.federated_value(1.0, fc.SERVER))
    with pytest.raises(FileNotFoundError, match=r"No such file or directory: 'missing/one\.fed'$"):
        fc.save(computation, "missing/one.fed")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux only")
def test_a_device_is_written_in_place(tmp_path):
    (tmp_path / "link").symlink_to("/dev/full")
    for path in ("/dev/full", tmp_path / "link"):
        with pytest.raises(OSError, match="No space left") as raised:
            write_whole(path, b"x" * SIZE)
        assert raised.value.errno == errno.ENOSPC
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)
    write_whole(os.devnull, "nothing")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_links_and_permissions_stay(tmp_path):
    path, link = tmp_path / "one", tmp_path / "link"
    write_whole(path, "old")
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
    path.chmod(0o640)
    link.symlink_to(path)
    write_whole(link, "ü")
    assert link.is_symlink()
    assert path.read_bytes() == "ü".encode()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_the_longest_name_can_be_written(tmp_path):
    path = tmp_path / ("x" * 255)
    write_whole(path, "new")
    assert path.read_text() == "new"


def test_no_other_module_of_fedcore_writes_files():
    """Each way to write goes through `write_whole`."""
    found = []
    root = Path(fc.__file__).parent
    for file in root.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        words = (".write_text(", ".write_bytes(", '"wb"', '"w")', ".savez", "np.save(", "json.dump(", "O_CREAT")
        found += [f"{file.relative_to(root)}: {word}" for word in words if word in text]
    assert sorted(found) == [
        'cli/exit_codes.py: "w")',  # the null device
        'cli/verbs/tune.py: "w")',  # a terminal
        'deployment/trial.py: "wb"',  # what a child process prints
        'whole_files.py: "wb"',
        "whole_files.py: .write_bytes(",
        "whole_files.py: O_CREAT",
    ]


# Computations.


@fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
def total(xs):
    return fc.federated_sum(xs)


@fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
def largest(xs):
    return fc.federated_max(xs)


def test_threads_save_to_one_path_and_every_load_is_one_of_them(tmp_path):
    path, together, failed = tmp_path / "one.fed", threading.Barrier(4), []
    fc.save(total, path)

    def save(computation):
        try:
            together.wait(PATIENCE_S)
            for _ in range(10):
                fc.save(computation, path)
                assert fc.load(path).digest in (total.digest, largest.digest)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=save, args=(c,)) for c in (total, largest) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert failed == []
    assert [p.name for p in tmp_path.iterdir()] == ["one.fed"]


# Recordings.


def test_a_recording_on_a_full_disk_warns_once_and_costs_no_result(tmp_path, monkeypatch, full_disk):
    folder = tmp_path / "trace"
    monkeypatch.setenv("FEDCORE_TRACE", str(folder))
    with pytest.warns(RuntimeWarning, match="calls are not recorded: .*File too large") as warned:
        found = [total([1.0, 2.0]) for _ in range(2)]
    assert found == [3.0, 3.0]
    assert len(warned) == 1
    assert all(p.stat().st_size == 0 for p in folder.iterdir())


def test_a_directory_that_cannot_be_made_costs_no_result_even_where_warnings_are_errors(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDCORE_TRACE", str(tmp_path / "file" / "trace"))
    assert total([1.0, 2.0]) == 3.0
    monkeypatch.setenv("FEDCORE_TRACE", str(tmp_path / "file" / "other"))
    with pytest.raises(fc.errors.TypeMismatch):
        total(["a"])


def test_a_timeline_that_no_longer_fits_ends_with_a_whole_event(tmp_path, monkeypatch):
    import json

    monkeypatch.setenv("FEDCORE_TRACE", str(tmp_path))
    total([1.0])
    (timeline,) = tmp_path.glob("timeline-*.json")
    size = timeline.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, hard))
    try:
        with pytest.warns(RuntimeWarning, match="calls are not recorded"):
            assert total([1.0]) == 1.0
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert timeline.stat().st_size == size
    json.loads(timeline.read_text().rstrip().rstrip(",") + "]")
