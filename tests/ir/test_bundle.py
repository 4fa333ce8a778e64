import hashlib
import io
import warnings
import zipfile
from pathlib import Path

import attrs
import numpy as np
import pytest

import fedcore as fc
from fedcore.errors import FedcoreError, Location, ParseError
from fedcore.ir import Constant, Function, Module, Operation, Ref, bundle, limits, verify
from fedcore.ir.module import NodeSource, digest_of
from fedcore.types import TensorType


@fc.tf_computation("float32")
def half(x):
    return x / 2.0


def test_a_module_with_a_graph_comes_back_with_its_blobs(tmp_path):
    bundle.write(half.module, tmp_path / "half.fed")
    read = bundle.read(tmp_path / "half.fed")
    assert read == half.module
    assert dict(read.blobs) == dict(half.module.blobs)


def test_a_module_without_blobs_is_written_as_text(tmp_path):
    @fc.federated_computation(fc.FederatedType("int32", fc.CLIENTS))
    def total(x):
        return fc.federated_sum(x)

    bundle.write(total.module, tmp_path / "total.fed")
    assert (tmp_path / "total.fed").read_text() == str(total.module)
    assert bundle.read(tmp_path / "total.fed") == total.module


def test_equal_modules_give_equal_bytes():
    assert bundle.to_bytes(half.module) == bundle.to_bytes(bundle.from_bytes(bundle.to_bytes(half.module)))


def test_the_bundle_is_an_uncompressed_zip_with_fixed_times():
    with zipfile.ZipFile(io.BytesIO(bundle.to_bytes(half.module))) as file:
        infos = file.infolist()
    blobs = (f"sha256/{d}" for d in sorted(half.module.blobs))
    assert [i.filename for i in infos] == ["module.fed", "sources.json", *blobs]
    assert {(i.compress_type, i.date_time) for i in infos} == {(zipfile.ZIP_STORED, (1980, 1, 1, 0, 0, 0))}


def rewritten(change) -> bytes:
    """The bundle of `half` with its entries changed: name -> bytes or None."""
    with zipfile.ZipFile(io.BytesIO(bundle.to_bytes(half.module))) as file:
        content = {name: file.read(name) for name in file.namelist()}
    change(content)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name, data in content.items():
            file.writestr(name, data)
    return out.getvalue()


def test_sources_and_names_of_elements_come_back():
    library = Location("fedcore/aggregators/sum.py", 28)
    sources = {
        ("", "n0"): NodeSource("dense/MatMul", Location("train.py", 3, library=library)),
        ("f", "n1"): NodeSource("x", None),
    }
    (graph,) = half.module.graphs
    module = attrs.evolve(half.module, graphs=(attrs.evolve(graph, sources=sources),), element_names={"w": ("kernel",)})
    read = bundle.from_bytes(bundle.to_bytes(module))
    assert read.graphs[0].sources == sources
    assert read.graphs[0].sources["", "n0"].location.library == library
    assert read.element_names == {"w": ("kernel",)}


def test_a_bundle_has_no_path_of_the_machine():
    paths = [source.location.path for source in half.module.graphs[0].sources.values() if source.location]
    assert paths
    assert str(Path(paths[0]).parent).encode() not in bundle.to_bytes(half.module)


@pytest.mark.parametrize(
    "table",
    [
        b"",
        b"[]",
        b"[" * 100_000,
        b'{"files":[],"names":[],"element_names":{},"graphs":{"half":[["","n0",0,-1,0,-1,0]]}}',
        b'{"files":["a"],"names":["b"],"element_names":{},"graphs":{"half":[["","n0",0,0,-1,-1,0]]}}',
        b'{"files":["a"],"names":["b"],"element_names":{"w":[1]},"graphs":{}}',
        b'{"files":["a"],"names":["b"],"element_names":{},"graphs":{"half":[["","n0",-1,0,1,-1,0]]}}',
    ],
)
def test_a_damaged_table_of_sources_is_refused(table):
    with pytest.raises(FedcoreError, match="the table of the bundle's sources is damaged"):
        bundle.from_bytes(rewritten(lambda content: content.update({"sources.json": table})))


def test_a_blob_with_other_bytes_is_refused():
    (digest,) = half.module.blobs
    data = rewritten(lambda content: content.update({f"sha256/{digest}": b"other"}))
    with pytest.raises(FedcoreError, match=f"blob sha256:{digest} has other bytes than its name says"):
        bundle.from_bytes(data)


def test_a_missing_blob_is_refused():
    (digest,) = half.module.blobs
    data = rewritten(lambda content: content.pop(f"sha256/{digest}"))
    with pytest.raises(FedcoreError, match=f"names the graph @half, but lacks its blob sha256:{digest}"):
        bundle.from_bytes(data)


def test_a_bundle_without_text_is_refused():
    with pytest.raises(FedcoreError, match=r"the bundle holds no module\.fed"):
        bundle.from_bytes(rewritten(lambda content: content.pop("module.fed")))


def test_a_truncated_bundle_is_refused():
    with pytest.raises(FedcoreError, match="the file is no bundle"):
        bundle.from_bytes(bundle.to_bytes(half.module)[:200])


def test_bytes_that_are_no_text_are_refused():
    with pytest.raises(FedcoreError, match="neither a bundle nor text"):
        bundle.from_bytes(b"\xff\xfe\x00")


def test_text_that_is_no_module_is_a_parse_error():
    with pytest.raises(ParseError, match="line 1, column 1"):
        bundle.from_bytes(b"hello")


def test_the_text_alone_lacks_the_blob_and_says_so():
    from fedcore.ir import parse_module

    (digest,) = half.module.blobs
    with pytest.raises(FedcoreError, match=f"sha256:{digest} is named by the module but its bytes are not there"):
        parse_module(str(half.module)).blob(digest)


def test_writing_leaves_no_partial_file(tmp_path):
    bundle.write(half.module, tmp_path / "half.fed")
    assert [p.name for p in tmp_path.iterdir()] == ["half.fed"]


def zipped(members, **options) -> bytes:
    """A zip file of (name, data) pairs, whatever they are."""
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w", **options) as file:
        warnings.simplefilter("ignore")  # two members of one name
        for name, data in members:
            file.writestr(zipfile.ZipInfo(name), data, options.get("compression", zipfile.ZIP_STORED))
    return out.getvalue()


TEXT = b"fedcore 1 traced\nfn @main(%x: int32) -> int32 {\n  return %x\n}\n"
DIGEST = digest_of(b"data")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (zipped([("module.fed", TEXT), ("../../etc/passwd", b"")]), "'../../etc/passwd' is no name in a bundle"),
        (zipped([("module.fed", TEXT), ("/tmp/x", b"")]), "'/tmp/x' is no name in a bundle"),
        (zipped([("module.fed", TEXT), (f"sha256/../{DIGEST}", b"data")]), "is no name in a bundle"),
        (zipped([("module.fed", TEXT), ("sha256/ab", b"")]), "'sha256/ab' is no name in a bundle"),
        (zipped([("module.fed", TEXT), (f"sha256/{DIGEST.upper()}", b"data")]), "is no name in a bundle"),
        (zipped([("module.fed", TEXT), ("sha256/", b"")]), "'sha256/' is no name in a bundle"),
        (zipped([("module.fed", TEXT), ("module.fed", TEXT)]), "two members of the bundle have one name"),
        (zipped([("module.fed", TEXT)], compression=zipfile.ZIP_DEFLATED), "module.fed is compressed or encrypted"),
        (zipped([("module.fed", b"0" * 10**7)], compression=zipfile.ZIP_BZIP2), "is compressed or encrypted"),
        (zipped([]), "holds no module.fed"),
        (b"PK", "is no bundle"),
        (b"PK\x05\x06" + b"\xff" * 18, "is no bundle"),
    ],
)
def test_a_zip_that_is_no_bundle_is_refused_before_it_is_parsed(data, says):
    with pytest.raises(FedcoreError) as raised:
        bundle.from_bytes(data)
    assert says in str(raised.value)
    assert not isinstance(raised.value, ParseError)


def test_digests_are_checked_before_the_text_is_parsed():
    with pytest.raises(FedcoreError, match="has other bytes than its name says"):
        bundle.from_bytes(zipped([("module.fed", b"no module"), (f"sha256/{DIGEST}", b"other")]))


def test_members_that_share_their_bytes_are_refused():
    data = bytearray(zipped([("module.fed", TEXT), (f"sha256/{DIGEST}", b"data")]))
    at = data.rindex(b"PK\x01\x02")
    data[at + 20 : at + 28] = (10**6).to_bytes(4, "little") * 2
    with pytest.raises(FedcoreError, match="claim more bytes than it has"):
        bundle.from_bytes(bytes(data))


@pytest.mark.parametrize("limit", ["MAX_TEXT_BYTES", "MAX_BLOB_BYTES", "MAX_BLOBS"])
def test_a_bundle_over_a_limit_is_refused(monkeypatch, limit):
    data = zipped([("module.fed", TEXT), (f"sha256/{DIGEST}", b"data")])
    monkeypatch.setattr(limits, limit, 1)
    with pytest.raises(FedcoreError, match="at most 1 are read"):
        bundle.from_bytes(data)


def test_a_file_over_the_limit_is_not_read(monkeypatch, tmp_path):
    (tmp_path / "big.fed").write_bytes(TEXT)
    monkeypatch.setattr(limits, "MAX_BUNDLE_BYTES", 1)
    with pytest.raises(FedcoreError, match=r"big\.fed has \d+ bytes; at most 1 are read"):
        bundle.read(tmp_path / "big.fed")


def with_literal(array: np.ndarray, type_=None) -> Module:
    type_ = type_ or TensorType(array.dtype, array.shape)
    op = Operation("0", "literal", (), type_, {"value": Constant.of(array, array.dtype)})
    return Module("traced", (), (Function("main", (), (op,), Ref("0"), type_),))


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "complex64", "float64"])
def test_a_large_literal_stands_beside_the_text(dtype):
    module = with_literal(np.arange(10_000).reshape(100, 100).astype(dtype))
    data = bundle.to_bytes(module)
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        text = file.read("module.fed").decode()
    assert len(text) < 300
    assert "value=sha256:" in text
    assert bundle.from_bytes(data) == module
    assert verify(bundle.from_bytes(data)).digest() == module.digest()


def test_a_small_literal_stands_in_the_text():
    assert bundle.to_bytes(with_literal(np.arange(10))).startswith(b"fedcore 1 traced")


def test_programs_that_differ_in_a_large_literal_only_have_different_digests():
    assert with_literal(np.zeros(10_000)).digest() != with_literal(np.ones(10_000)).digest()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (b"float32[5000]", b"float32[5001]", "is of type float32[5001], but its blob has 20000 bytes"),
        (b"float32[5000]", b"str[5000]", "has a blob, but the type str[5000]"),
        (b"float32[5000]", b"float32[?]", "has a blob, but the type float32[?]"),
        (b"sha256:", b"sha256:ab", "names the literal %0, but lacks its blob sha256:ab"),
    ],
)
def test_a_literal_that_does_not_fit_its_blob_is_refused(old, new, says):
    with zipfile.ZipFile(io.BytesIO(bundle.to_bytes(with_literal(np.zeros(5000, np.float32))))) as file:
        members = [(n, file.read(n)) for n in file.namelist()]
    text = members[0][1].replace(old, new)
    with pytest.raises(FedcoreError) as raised:
        bundle.from_bytes(zipped([("module.fed", text), *members[1:]]))
    assert says in str(raised.value)


@pytest.mark.parametrize(("type_", "size"), [("bool[5000]", 5000), ("int8[8]", 8)])
def test_one_value_has_one_text(type_, size):
    """Two plans whose literals have other bytes, and print alike, would have one digest."""
    content = b"\2" * size
    with zipfile.ZipFile(io.BytesIO(bundle.to_bytes(with_literal(np.full(5000, 2, np.int8))))) as file:
        ((_, text), (blob, old)) = [(n, file.read(n)) for n in file.namelist()]
    new = hashlib.sha256(content).hexdigest()
    text = text.replace(hashlib.sha256(old).hexdigest().encode(), new.encode()).replace(b"int8[5000]", type_.encode())
    with pytest.raises(FedcoreError, match="has a blob that no bundle has: of few bytes, or of no bool"):
        bundle.from_bytes(zipped([("module.fed", text), (f"{blob.rpartition('/')[0]}/{new}", content)]))


def test_blobs_that_the_module_does_not_name_are_not_written():
    module = attrs.evolve(half.module, blobs={**half.module.blobs, DIGEST: b"data"})
    assert bundle.to_bytes(module) == bundle.to_bytes(half.module)


def test_a_write_that_fails_leaves_nothing(tmp_path):
    module = attrs.evolve(half.module, blobs={})
    with pytest.raises(FedcoreError, match="its bytes are not there"):
        bundle.write(module, tmp_path / "half.fed")
    assert list(tmp_path.iterdir()) == []
