"""The types of the language: their notation, the relation `fits`, and signatures. Imports no TensorFlow."""

from typing import TYPE_CHECKING

from fedcore.tff_names import tff_names
from fedcore.types.containers import (
    container_class,
    elements_and_class,
    fields_of,
    make_container,
    register_container,
)
from fedcore.types.convert import not_dense, to_type
from fedcore.types.dtypes import DTYPES, DType, as_dtype
from fedcore.types.fits import Mismatch, explain, fits, float_fix, mismatches
from fedcore.types.kinds import KINDS
from fedcore.types.nesting import check_nesting
from fedcore.types.notation import parse_signature, parse_type
from fedcore.types.placements import (
    CLIENTS,
    SERVER,
    Placement,
    PlacementVariable,
    placement,
    placement_names,
    register_placement,
)
from fedcore.types.placing import at_clients, at_server
from fedcore.types.shapes import Shape, as_shape, is_static, shape_fits
from fedcore.types.signatures import PENDING, Alternative, Binding, Parameter, Signature, substitute
from fedcore.types.types import (
    AbstractType,
    FederatedType,
    FunctionType,
    PlacementType,
    SequenceType,
    StructType,
    StructWithPythonType,
    TensorType,
    Type,
)
from fedcore.types.walk import (
    contains,
    leaves,
    map_leaves,
    map_tensors,
    member_of,
    notation_with_spans,
    strip_containers,
    strip_placement,
    tensor_leaves,
)

__all__ = [
    "CLIENTS",
    "DTYPES",
    "KINDS",
    "PENDING",
    "SERVER",
    "AbstractType",
    "Alternative",
    "Binding",
    "DType",
    "FederatedType",
    "FunctionType",
    "Mismatch",
    "Parameter",
    "Placement",
    "PlacementType",
    "PlacementVariable",
    "SequenceType",
    "Shape",
    "Signature",
    "StructType",
    "StructWithPythonType",
    "TensorType",
    "Type",
    "as_dtype",
    "as_shape",
    "at_clients",
    "at_server",
    "check_nesting",
    "container_class",
    "contains",
    "elements_and_class",
    "explain",
    "fields_of",
    "fits",
    "float_fix",
    "is_static",
    "leaves",
    "make_container",
    "map_leaves",
    "map_tensors",
    "member_of",
    "mismatches",
    "not_dense",
    "notation_with_spans",
    "parse_signature",
    "parse_type",
    "placement",
    "placement_names",
    "register_container",
    "register_placement",
    "shape_fits",
    "strip_containers",
    "strip_placement",
    "substitute",
    "tensor_leaves",
    "to_type",
]

if TYPE_CHECKING:  # names of TFF, which `tff_names` finds
    tensorflow_to_type = to_type
else:
    __getattr__ = tff_names("fedcore.types")
