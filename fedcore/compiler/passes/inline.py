from fedcore.compiler.inlining import Inliner
from fedcore.compiler.pipeline import compiler_pass
from fedcore.compiler.reachable import reachable
from fedcore.ir import Module, ModuleBuilder


@compiler_pass("inline")
def inline(module: Module) -> Module:
    """Replaces calls of functions by what they call, and drops functions that nobody needs.

    Functions given to a mapping stay functions; a captured value of theirs is zipped with what they map.
    """
    target = ModuleBuilder(module.stage)
    inliner = Inliner(module, target)
    inliner.add_main(module)
    rebuilt = reachable(target.build())
    return module if rebuilt == module else rebuilt
