"""Downloads from a server on this machine: progress, checksums, caches, and what goes wrong."""

import hashlib
import http.server
import io
import lzma
import os
import tarfile
import threading

import pytest

from fedcore.errors import FedcoreError
from fedcore.simulation.datasets import downloads
from fedcore.simulation.datasets.downloads import Archive, cache_directory, cached_database, cached_members


def packed(**files: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:bz2") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"datasets/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return made.getvalue()


CONTENT = packed(train=b"training" * 1000, test=b"test", other=b"unwanted")


@pytest.fixture
def server(monkeypatch):
    """Serves `files`, and lists in `asked` what was asked for."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            content = files.get(self.path[1:])
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write((content or b"")[: cut_at[0]])

        def log_message(self, *args):
            pass

    files, asked, cut_at = {"data.tar.bz2": CONTENT}, [], [None]
    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(downloads, "PUBLISHED_AT", f"http://127.0.0.1:{served.server_port}/")
    yield type("Server", (), {"files": files, "asked": asked, "cut_at": cut_at})
    served.shutdown()
    thread.join()
    served.server_close()


def archive(content: bytes = CONTENT, *members: str) -> Archive:
    return Archive("data.tar.bz2", hashlib.sha256(content).hexdigest(), members or ("train", "test"))


def test_the_wanted_files_are_downloaded_once_with_progress(server, tmp_path, capsys):
    first = cached_members("emnist.load_data", archive(), tmp_path / "new")
    again = cached_members("emnist.load_data", archive(), tmp_path / "new")
    assert first == again == [tmp_path / "new" / "train", tmp_path / "new" / "test"]
    assert first[0].read_bytes() == b"training" * 1000
    assert sorted(os.listdir(tmp_path / "new")) == ["test", "train"]
    assert server.asked == ["/data.tar.bz2"]
    shown = capsys.readouterr()
    assert "data.tar.bz2" in shown.err
    assert shown.out == ""


def test_an_archive_that_lies_in_the_cache_is_unpacked_without_a_network(tmp_path):
    (tmp_path / "data.tar.bz2").write_bytes(CONTENT)
    assert [path.read_bytes()[:4] for path in cached_members("user", archive(), tmp_path)] == [b"trai", b"test"]


def test_another_checksum_is_an_error_and_nothing_is_kept(server, tmp_path):
    wanted = archive(b"something else")
    with pytest.raises(FedcoreError, match=f"is not the published data.tar.bz2.*\n.*wants  {wanted.sha256}\n.*has    "):
        cached_members("user", wanted, tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_connection_that_ends_too_soon_is_an_error_and_the_next_call_downloads_again(server, tmp_path):
    server.cut_at[0] = 10
    with pytest.raises(FedcoreError, match=r"checksum differs|cannot download"):
        cached_members("user", archive(), tmp_path)
    assert os.listdir(tmp_path) == []
    server.cut_at[0] = None
    assert len(cached_members("user", archive(), tmp_path)) == 2


def test_without_a_network_the_message_names_the_url_the_path_and_what_works_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(downloads, "PUBLISHED_AT", "http://127.0.0.1:9/")  # nothing listens there
    with pytest.raises(FedcoreError) as raised:
        cached_members("emnist.load_data", archive(), tmp_path)
    first, fix, offline = str(raised.value).split("\n")
    assert first.startswith("emnist.load_data: cannot download http://127.0.0.1:9/data.tar.bz2: ")
    assert fix == f"  fix: download it elsewhere, and put it at {tmp_path}/data.tar.bz2"
    assert offline == "  without a network: emnist.get_synthetic(), or digits.load_data()"


def test_a_file_that_is_not_published_any_more_is_an_error(server, tmp_path):
    server.files.clear()
    with pytest.raises(FedcoreError, match=r"cannot download .*: Not Found"):
        cached_members("user", archive(), tmp_path)


def test_an_archive_without_a_wanted_file_is_an_error(server, tmp_path):
    with pytest.raises(FedcoreError, match=r"data.tar.bz2 lacks more"):
        cached_members("user", archive(CONTENT, "train", "more"), tmp_path)


def test_paths_in_an_archive_are_not_followed(server, tmp_path):
    evil = packed(**{"../../train": b"evil"})
    server.files["data.tar.bz2"] = evil
    assert cached_members("user", archive(evil, "train"), tmp_path / "cache") == [tmp_path / "cache" / "train"]
    assert os.listdir(tmp_path) == ["cache"]


def test_a_packed_database_in_the_cache_is_unpacked(tmp_path):
    assert cached_database("data.sqlite", tmp_path) is None
    (tmp_path / "data.sqlite.lzma").write_bytes(lzma.compress(b"content", lzma.FORMAT_ALONE))
    assert cached_database("data.sqlite", tmp_path).read_bytes() == b"content"


def test_a_damaged_packed_database_is_named(tmp_path):
    (tmp_path / "data.sqlite.lzma").write_bytes(lzma.compress(b"content" * 1000, lzma.FORMAT_ALONE)[:-20])
    with pytest.raises(FedcoreError, match=r"data.sqlite.lzma cannot be unpacked"):
        cached_database("data.sqlite", tmp_path)
    assert os.listdir(tmp_path) == ["data.sqlite.lzma"]


def test_the_cache_directory_is_the_argument_else_the_variable_else_in_the_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FEDCORE_DATA", raising=False)
    assert cache_directory(None) == tmp_path / ".cache" / "fedcore" / "datasets"
    monkeypatch.setenv("FEDCORE_DATA", "~/data")
    assert cache_directory(None) == tmp_path / "data"
    assert cache_directory("/elsewhere") == cache_directory(cache_directory("/elsewhere"))
