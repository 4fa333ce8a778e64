import io
import zipfile

import pytest

import fedcore as fc
from fedcore.errors import FedcoreError, ParseError
from fedcore.ir import bundle


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
    assert [i.filename for i in infos] == ["module.fed", *(f"sha256/{d}" for d in sorted(half.module.blobs))]
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
