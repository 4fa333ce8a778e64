from fedcore.compiler.inlining import Inliner
from fedcore.compiler.pipeline import compiler_pass
from fedcore.ir import Module, ModuleBuilder
from fedcore.ir.reachable import reachable


@compiler_pass("inline")
def inline(module: Module) -> Module:
    """Replaces calls of functions by the bodies of the callees, and drops unused functions.

    The function operand of a map stays a function; its captured values are zipped with the map's argument.
    """
    target = ModuleBuilder(module.stage)
    inliner = Inliner(module, target)
    inliner.add_main(module)
    rebuilt = reachable(target.build())
    return module if rebuilt == module else rebuilt
