"""fedcore: a compiler and runtime for a federated computation language.

Every name is loaded when it is first used, so that `import fedcore.ir` costs no TensorFlow.
"""

import importlib
from typing import TYPE_CHECKING

from fedcore import html_display
from fedcore.collection_pause import without_collection
from fedcore.lazy_imports import LazyImports
from fedcore.tff_names import tff_name

if TYPE_CHECKING:
    from fedcore import aggregators as aggregators
    from fedcore import analytics as analytics
    from fedcore import compiler as compiler
    from fedcore import context as context
    from fedcore import data as data
    from fedcore import debug as debug
    from fedcore import deployment as deployment
    from fedcore import errors as errors
    from fedcore import export as export
    from fedcore import ir as ir
    from fedcore import learning as learning
    from fedcore import privacy as privacy
    from fedcore import program as program
    from fedcore import runtime as runtime
    from fedcore import simulation as simulation
    from fedcore import templates as templates
    from fedcore import testing as testing
    from fedcore import types as types
    from fedcore.compat import backends as backends
    from fedcore.compat import framework as framework
    from fedcore.compat import tensorflow as tensorflow
    from fedcore.computation import Computation as Computation
    from fedcore.computation import federated_computation as federated_computation
    from fedcore.computation import invoke_async as invoke_async
    from fedcore.computation import load as load
    from fedcore.computation import save as save
    from fedcore.computation import tf_computation as tf_computation
    from fedcore.context import invoke as invoke
    from fedcore.context import set_runtime as set_runtime
    from fedcore.context import use as use
    from fedcore.data import Cohort as Cohort
    from fedcore.intrinsics import *
    from fedcore.ir import intrinsic as intrinsic
    from fedcore.types import CLIENTS as CLIENTS
    from fedcore.types import SERVER as SERVER
    from fedcore.types import AbstractType as AbstractType
    from fedcore.types import FederatedType as FederatedType
    from fedcore.types import FunctionType as FunctionType
    from fedcore.types import PlacementType as PlacementType
    from fedcore.types import SequenceType as SequenceType
    from fedcore.types import StructType as StructType
    from fedcore.types import StructWithPythonType as StructWithPythonType
    from fedcore.types import TensorType as TensorType
    from fedcore.types import to_type as to_type

__version__ = "0.2.0"

_LAZY = LazyImports(__name__)
_IPYTHON = ("load_ipython_extension", "unload_ipython_extension")  # called by `%load_ext fedcore`


def _html_of(value: object) -> str:
    return importlib.import_module("fedcore.notebook").html_of(value)  # imports TensorFlow


html_display.html_of = _html_of


def _intrinsics() -> tuple[str, ...]:
    """The names of the intrinsics; none while these are being imported."""
    with without_collection():
        return getattr(importlib.import_module("fedcore.intrinsics"), "NAMES", ())


if TYPE_CHECKING:  # names of TFF, which `tff_name` finds
    from fedcore.compat import structure as structure
    from fedcore.compat.arrays import Array as Array
    from fedcore.compat.arrays import array_is_compatible_dtype as array_is_compatible_dtype
    from fedcore.compat.arrays import array_is_compatible_shape as array_is_compatible_shape
    from fedcore.compat.arrays import array_shape_is_compatible_with as array_shape_is_compatible_with
    from fedcore.compat.arrays import array_shape_is_fully_defined as array_shape_is_fully_defined
    from fedcore.compat.arrays import array_shape_is_scalar as array_shape_is_scalar
    from fedcore.compat.arrays import can_cast_dtype as can_cast_dtype
    from fedcore.compat.arrays import infer_dtype as infer_dtype
    from fedcore.compat.arrays import is_valid_dtype as is_valid_dtype
    from fedcore.compat.arrays import num_elements_in_array_shape as num_elements_in_array_shape
    from fedcore.compat.values import TypedObject as TypedObject
    from fedcore.compat.values import to_value as to_value
    from fedcore.ir import Value as Value
    from fedcore.program import Serializable as Serializable
    from fedcore.types import Shape as _Shape
    from fedcore.types import Type as Type
    from fedcore.types import at_clients as _at_clients
    from fedcore.types import at_server as _at_server

    ArrayShape = _Shape
    ConcreteComputation = Computation
    NamedTupleType = StructType
    tensorflow_computation = tf_computation
    type_at_clients = _at_clients
    type_at_server = _at_server
else:

    def __getattr__(name: str) -> object:
        if name == "__all__":
            return sorted((*_LAZY.names, *_intrinsics()))
        if name in _IPYTHON:
            return getattr(importlib.import_module("fedcore.notebook"), name)
        if name in _LAZY.names:
            return _LAZY.load(name)
        if not name.startswith("_") and name in _intrinsics():
            return getattr(importlib.import_module("fedcore.intrinsics"), name)
        return tff_name("fedcore", name)


def __dir__() -> list[str]:
    return [*_LAZY.names, *_intrinsics(), "__version__"]
