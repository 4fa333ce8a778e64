"""`check_golden` compares a golden file with what its passes do, and rewrites it."""

import pytest

import fedcore.intrinsics  # noqa: F401  declares the operations that the texts name
from fedcore.errors import InvalidValue
from fedcore.testing import LawBroken, check_golden

REGION = """// equal nodes are one
// RUN: cse,dce
region(%x: float32) {
  %0 = Exp(%x) : float32
  %1 = Exp(%x) : float32
  %2 = AddV2(%0, %1) : float32
  return %2
}
// ==>
"""
BECAME = """region(%x: float32) {
  %0 = Exp(%x) : float32
  %1 = AddV2(%0, %0) : float32
  return %1
}
"""
MODULE = """// equal operations are one
// RUN: cse,dce
fedcore 1 traced

fn @main(%x: float32) -> float32 {
  %0 = maximum(%x, %x) : float32
  %1 = maximum(%x, %x) : float32
  %2 = maximum(%0, %1) : float32
  return %2
}
// ==>
"""


@pytest.mark.parametrize(("name", "text"), [("a.region", REGION), ("a.fed", MODULE)])
def test_a_file_is_rewritten_and_then_right(name, text, tmp_path):
    path = tmp_path / name
    path.write_text(text)
    check_golden(path, update=True)
    after = path.read_text()
    assert after.startswith(text)
    assert after.count("Exp(%x)") == 3 or after.count("maximum(%x, %x)") == 3
    check_golden(path)


def test_another_result_is_shown_by_line(tmp_path):
    path = tmp_path / "a.region"
    path.write_text(REGION + BECAME.replace("AddV2", "Mul"))
    with pytest.raises(LawBroken) as raised:
        check_golden(path)
    text = str(raised.value)
    assert text.startswith(f"the law is broken: {path} shows what cse,dce does\n")
    assert "  -  %1 = Mul(%0, %0) : float32\n  +  %1 = AddV2(%0, %0) : float32\n" in text
    assert text.endswith("fix: FEDCORE_UPDATE_GOLDENS=1 rewrites the file, if that is right")


@pytest.mark.parametrize(("value", "is_rewritten"), [("1", True), ("0", False), ("", False)])
def test_the_environment_has_files_rewritten(value, is_rewritten, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_UPDATE_GOLDENS", value)
    path = tmp_path / "a.region"
    path.write_text(REGION)
    if is_rewritten:
        check_golden(path)
    else:
        with pytest.raises(LawBroken):
            check_golden(path)
    assert path.read_text() == REGION + BECAME * is_rewritten


def test_a_file_without_passes_is_told(tmp_path):
    path = tmp_path / "a.region"
    path.write_text(REGION.replace("// RUN: cse,dce\n", ""))
    with pytest.raises(InvalidValue, match=r"a\.region has no line `// RUN: PASSES`, such as `// RUN: cse,dce`"):
        check_golden(path)
