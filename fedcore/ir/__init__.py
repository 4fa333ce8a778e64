"""The IR: modules, their text, the verifier, and the builder that tracing and lowering append to."""

from fedcore.ir.builder import Builder
from fedcore.ir.module import (
    Blob,
    Constant,
    Function,
    Graph,
    Module,
    Operation,
    Parameter,
    Ref,
    Symbol,
)
from fedcore.ir.module_builder import ModuleBuilder
from fedcore.ir.networkx_graph import to_networkx
from fedcore.ir.operations import Intrinsic, intrinsic, lookup, operation, registered
from fedcore.ir.parser import parse_module
from fedcore.ir.printer import print_module
from fedcore.ir.values import Value
from fedcore.ir.verify import verify

__all__ = [
    "Blob",
    "Builder",
    "Constant",
    "Function",
    "Graph",
    "Intrinsic",
    "Module",
    "ModuleBuilder",
    "Operation",
    "Parameter",
    "Ref",
    "Symbol",
    "Value",
    "intrinsic",
    "lookup",
    "operation",
    "parse_module",
    "print_module",
    "registered",
    "to_networkx",
    "verify",
]
