import attrs

from fedcore.compiler.pipeline import compiler_pass
from fedcore.ir import Module


@compiler_pass("strip-locations")
def strip_locations(module: Module) -> Module:
    """Removes the locations: files and lines of the user."""
    functions = tuple(
        attrs.evolve(f, location=None, operations=tuple(attrs.evolve(op, location=None) for op in f.operations))
        for f in module.functions
    )
    return attrs.evolve(module, functions=functions)
