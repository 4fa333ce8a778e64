"""The siblings of a case differ from it in one respect, and are valid."""

from fedcore.graphs.dataflow.text import print_region
from fedcore.graphs.dataflow.text_parser import parse_region
from fedcore.testing.siblings import module_siblings, region_siblings

REGION = """region(%x: float32[3,2]) {
  %0 = Const() : int32[2] {value=[1, 0]}
  %1 = Transpose(%x, %0) : float32[2,3]
  %2 = AddV2(%1, %1) : float32[2,3]
  %3 = Const() : int32 {value=0}
  %4 = Cumsum(%2, %3) : float32[2,3] {reverse=false}
  return %4
}
"""

MODULE = """fedcore 1 traced
fn @main(%x: int32, %y: int32) -> int32 {
  %0 = modulo(%x, %y) : int32
  return %0
}
"""


def test_regions_have_other_dtypes_attributes_constants_and_operands():
    texts = [print_region(region) for region in region_siblings(parse_region(REGION))]
    assert all(text != print_region(parse_region(REGION)) for text in texts)
    for part in ("float64[3,2]", "int32[3,2]", "reverse=true", "value=[0, 1]", "[2,2,3]"):
        assert any(part in text for text in texts), part


def test_regions_with_many_nodes_have_none():
    nodes = "".join(f"  %{i} = Neg(%{i - 1}) : float32\n" for i in range(1, 20))
    text = f"region(%x: float32) {{\n  %0 = Neg(%x) : float32\n{nodes}  return %19\n}}\n"
    assert not [*region_siblings(parse_region(text))]


def test_modules_have_the_dtypes_with_which_they_are_valid():
    texts = [str(module) for module in module_siblings(MODULE)]
    assert [dtype for dtype in ("int64", "uint8", "float32") if any(dtype in t for t in texts)] == ["int64", "uint8"]
