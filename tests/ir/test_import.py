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


def test_a_federated_computation_is_traced_without_tensorflow():
    program = (
        "import sys, fedcore as fc;"
        "mean = fc.federated_computation(lambda xs: fc.federated_mean(xs), fc.FederatedType('float32', fc.CLIENTS));"
        "assert 'federated_mean' in str(mean.to_module('traced'));"
        "sys.exit('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


@pytest.mark.parametrize("collects", [True, False])
def test_the_collector_is_as_before_behind_an_import(collects):
    """Also where a module cannot be imported; `fedcore.ir` needs no TensorFlow, so this is quick."""
    code = (
        "import gc, sys\n"
        f"gc.enable() if {collects} else gc.disable()\n"
        "import fedcore as fc\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        during.append(gc.isenabled())\n"
        "        if name == 'fedcore.templates': raise ImportError('not here')\n"
        "during = []\n"
        "sys.meta_path.insert(0, Finder())\n"
        "fc.ir\n"
        "assert during and not any(during)\n"
        f"assert gc.isenabled() is {collects}\n"
        "try: fc.templates\n"
        "except ImportError: pass\n"
        f"assert gc.isenabled() is {collects}\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
