"""fedcore: a compiler and runtime for a federated computation language.

Every name is loaded when it is first used, so that `import fedcore.ir` costs no TensorFlow.
"""

import importlib

__version__ = "0.1.0"

# public name -> the module that holds it; a module's own name maps to itself.
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
        (
            "cast",
            "equal",
            "federated_aggregate",
            "federated_apply",
            "federated_broadcast",
            "federated_collect",
            "federated_count",
            "federated_eval",
            "federated_map",
            "federated_max",
            "federated_mean",
            "federated_min",
            "federated_random_seed",
            "federated_secure_modular_sum",
            "federated_secure_select",
            "federated_secure_sum",
            "federated_secure_sum_bitwidth",
            "federated_select",
            "federated_sum",
            "federated_value",
            "federated_zip",
            "generic_divide",
            "generic_minus",
            "generic_multiply",
            "generic_plus",
            "generic_zero",
            "intrinsic",
            "less",
            "maximum",
            "minimum",
            "modulo",
            "sequence_from_groups",
            "sequence_from_rows",
            "sequence_map",
            "sequence_reduce",
            "sequence_sum",
            "where",
        ),
        "fedcore.intrinsics",
    ),
    **dict.fromkeys(
        ("Computation", "federated_computation", "invoke_async", "load", "save", "tf_computation"),
        "fedcore.computation",
    ),
    **dict.fromkeys(("invoke", "set_runtime", "use"), "fedcore.context"),
}
_MODULES = (
    "aggregators",
    "compiler",
    "data",
    "errors",
    "ir",
    "learning",
    "runtime",
    "simulation",
    "templates",
    "testing",
    "types",
)
# TFF's names for modules.
_ALIASES = {"tensorflow": "fedcore.compat.tensorflow"}

__all__ = sorted((*_PLACES, *_MODULES, *_ALIASES))


def __getattr__(name):
    if name in _MODULES:
        return importlib.import_module(f"fedcore.{name}")
    if name in _ALIASES:
        return importlib.import_module(_ALIASES[name])
    if name in _PLACES:
        return getattr(importlib.import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'fedcore' has no attribute {name!r}")


def __dir__():
    return [*__all__, "__version__"]
