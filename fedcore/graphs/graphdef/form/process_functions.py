"""Definition of graphs' library functions in the process, by content name.

Decision 0085.
"""

from collections.abc import Iterable

import tensorflow as tf
from tensorflow.core.framework import function_pb2

from fedcore.errors import FedcoreError
from fedcore.graphs import private_api

_defined: set[str] = set()
"""Names of functions that `define` has defined, or compared with the definition in the process."""


def _equals_definition(name: str, function: function_pb2.FunctionDef) -> bool:
    """Whether the process has this function under the name."""
    defined = private_api.defined_function(name)
    defined.ClearField("attr")  # TensorFlow adds an attribute with the place of the definition
    return defined == function


def define(functions: Iterable[function_pb2.FunctionDef]) -> None:
    """Defines library functions (branches, loop bodies) in the process.

    Importing a GraphDef into a function being built adds its library to that graph only, and the call then fails with
    "Function f_… is not defined".

    Args:
        functions: with the content names of `with_content_names`, or names that nothing else has.
    Raises:
        FedcoreError: TensorFlow refuses a function, or has another definition of its name.
    """
    for function in functions:
        name = function.signature.name
        if private_api.is_defined(name):
            if name not in _defined and not _equals_definition(name, function):
                raise FedcoreError(f"TensorFlow has another function under the name {name}")
            _defined.add(name)
            continue
        try:
            private_api.define_function(function)
        except tf.errors.OpError as error:
            raise FedcoreError(f"TensorFlow cannot define the function {name}: {error}") from None
        _defined.add(name)
