import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["fedcore", "fedcore.ir", "fedcore.intrinsics"])
@pytest.mark.parametrize("absent", ["tensorflow", "keras"])
def test_the_language_is_imported_without(module, absent):
    program = f"import sys, {module}; sys.exit({absent!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_a_module_is_parsed_without_tensorflow():
    program = (
        "import sys, fedcore.ir, fedcore.intrinsics as i;"
        "text = 'fedcore 1 traced\\nfn @f(%x: int32) -> int32 {\\n'"
        "'  %0 = generic_plus(%x, %x) : int32\\n  return %0\\n}';"
        "fedcore.ir.verify(fedcore.ir.parse_module(text));"
        "sys.exit('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
