"""fedcore: a compiler and runtime for a federated computation language.

Every name is loaded when it is first used, so that `import fedcore.ir` costs no TensorFlow.
"""

import gc
import importlib
from types import ModuleType

from fedcore.tff_names import tff_name

__version__ = "0.1.0"

# public name -> the module that holds it; the intrinsics are asked of their folder.
_PLACES = {
    **dict.fromkeys(
        (
            "AbstractType",
            "CLIENTS",
            "FederatedType",
            "FunctionType",
            "PlacementType",
            "SERVER",
            "SequenceType",
            "StructType",
            "StructWithPythonType",
            "TensorType",
            "to_type",
        ),
        "fedcore.types",
    ),
    **dict.fromkeys(
        ("Computation", "federated_computation", "invoke_async", "load", "save", "tf_computation"),
        "fedcore.computation",
    ),
    **dict.fromkeys(("invoke", "set_runtime", "use"), "fedcore.context"),
    "Cohort": "fedcore.data",
    "intrinsic": "fedcore.ir",
}
_MODULES = (
    "aggregators",
    "analytics",
    "compiler",
    "data",
    "errors",
    "export",
    "ir",
    "learning",
    "privacy",
    "program",
    "runtime",
    "simulation",
    "templates",
    "testing",
    "types",
)
_IPYTHON = ("load_ipython_extension", "unload_ipython_extension")  # called by `%load_ext fedcore`
_TFF_MODULES = ("backends", "framework", "tensorflow")  # `tff_name` finds them


def _imported(module: str) -> ModuleType:
    """The module. Garbage is not collected meanwhile: modules stay, and the collector would look at all of their
    objects several times, which takes a fifth of the first import.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        if collects:
            gc.enable()


def _language() -> tuple[str, ...]:
    """The names of the intrinsics; none while these are being imported."""
    return getattr(_imported("fedcore.intrinsics"), "NAMES", ())


def __getattr__(name):
    if name == "__all__":
        return sorted((*_PLACES, *_MODULES, *_TFF_MODULES, *_language()))
    if name in _IPYTHON:
        return getattr(_imported("fedcore.notebook"), name)
    if name in _MODULES:
        return _imported(f"fedcore.{name}")
    if name in _PLACES:
        return getattr(_imported(_PLACES[name]), name)
    if not name.startswith("_") and name in _language():
        return getattr(_imported("fedcore.intrinsics"), name)
    return tff_name("fedcore", name)


def __dir__():
    return [*__getattr__("__all__"), "__version__"]
