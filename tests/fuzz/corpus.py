"""Valid texts and bundles to mutate; none needs TensorFlow."""

import io
import zipfile

from fedcore.ir.module import digest_of

GRAPH = b"stands for a graph"
DIGEST = digest_of(GRAPH)

TEXTS = [
    """fedcore 1 traced

fn @mean(%x: {float32}@CLIENTS, %s: float32@SERVER) -> <float32@SERVER,float32@CLIENTS> {   loc("sensors.py":12)
  %0 = federated_mean(%x) : float32@SERVER   loc("sensors.py":13)
  %1 = federated_broadcast(%0) : float32@CLIENTS
  %2 = struct(%0, %1) : <float32@SERVER,float32@CLIENTS>
  return %2
}
""",
    f"""fedcore 1 traced

type W = <weights=float32[784,10],bias=float32[10]>

graph @train : (<W,float32[?,784]> -> W)  sha256:{DIGEST} {{effects=true}}

fn @main(%w: W, %x: float32[?,784]) -> W {{
  %0 = call(@train, %w, %x) : W
  %1 = call(@train, %0, %x) : W
  return %1
}}
""",
    """fedcore 1 planned

stage @zero(%w: float32) -> float32 at CLIENTS {
  %0 = literal() : float32 {value=0.0}
  return %0
}

stage @work(%partial: float32, %w: float32, %x: float32) -> float32 at CLIENTS {strategy=loop, block=2} {
  %0 = generic_multiply(%w, %x) : float32
  %1 = generic_plus(%partial, %0) : float32
  return %1
}

stage @join(%left: float32, %right: float32) -> float32 at CLIENTS {
  %0 = generic_plus(%left, %right) : float32
  return %0
}

fn @main(%s: float32@SERVER, %xs: {float32}@CLIENTS) -> float32@SERVER {
  %0 = broadcast(%s) : float32@CLIENTS {bits=32}
  %1 = fold(@zero, @work, %0, %xs) : {float32}@CLIENTS
  %2 = merge(@join, %1) : float32@SERVER {bits=32}
  return %2
}
""",
    r"""fedcore 1 lowered
// by hand
fn @"a b"(%"é\n": <x=int32,"y z"=str>) -> complex64[2] {
  %0 = item( %"é\n" ) : int32 {index = 0} // why not
  %1 = literal() : complex64[2] {value=[[1.0, -inf], [nan, nan(0x7fc01234)]]}
  %2 = literal() : str[2] {value=[b"a\x00\"", b""]}
  %3 = literal() : bfloat16 {value=1e+38}
  return %1
}
""",
    """fedcore 1 traced
fn @add(%a: int32, %b: int32) -> int32 {
  %0 = generic_plus(%a, %b) : int32
  return %0
}
fn @id(%a: int32) -> int32 {
  return %a
}
fn @main(%v: {int32*}@CLIENTS, %f: (int32 -> int32)) -> {int32*}@CLIENTS {
  %0 = literal() : int32 {value=-2147483648}
  %1 = bind(@add, %0) : (int32 -> int32)
  %2 = federated_value(%0) : int32@SERVER {placement=SERVER}
  %3 = generic_zero() : list<int32[2],uint64>
  return %v
}
""",
    "fedcore 1 traced\nfn @f(%x: int32) -> int32 {\n  return %x\n}\n",
    "fedcore 1 traced\nfn @f() -> int8 {\n  %0 = literal() : int8 {value=127}\n  return %0\n}\n",
    "fedcore 1 lowered\ntype T = <a=str,b=bool>\nfn @f(%x: T) -> T {\n  return %x\n}\n",
    "fedcore 1 planned\nstage @s() -> int8 at SERVER {xla=true} {\n  return %0\n}\n",
]


def bundled(text: bytes, *blobs: bytes, name=lambda blob: f"sha256/{digest_of(blob)}") -> bytes:
    """A zip file of the text and blobs, whatever they are."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr(zipfile.ZipInfo("module.fed"), text)
        for blob in blobs:
            file.writestr(zipfile.ZipInfo(name(blob)), blob)
    return out.getvalue()
