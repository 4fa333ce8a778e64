"""Which client values reach the server outside of secure sums.

In: a module at any stage. Out: for each crossing of a value that depends on client data, and is not in a secure sum,
the value's name and line. None is a proof that the server gets sums only, if the runtime has a protocol for these.
A client value that the program returns stays at the clients.

The dependencies are an upper bound. A secure leaf ends a taint; another leaf that is computed from it does not.
"""

import attrs

from fedcore.compiler.client_outputs import ClientOutputs
from fedcore.compiler.pipeline import LOWERING, compile_module
from fedcore.errors import Location
from fedcore.ir import Module
from fedcore.types import Type


@attrs.frozen
class Disclosure:
    """A tensor of a single client that the server gets.

    Args:
        tensor: its path, or the name of the value that holds it.
        location: the line of the aggregation; None if the module has no lines.
        grows: whether the partial that holds it has more rows with each client: the server gets the tensor itself.
    """

    tensor: str
    type: Type
    location: Location | None
    grows: bool = False


def disclosures(module: Module) -> list[Disclosure]:
    """The tensors that depend on a client's data and reach the server outside of secure sums, each once.

    Raises:
        NotFollowed: the plan has a way of client values that the analysis does not follow.
    """
    is_plan = module.stage == "planned"
    outputs = _outputs(module)
    unique: dict[tuple, Disclosure] = {}
    for name in outputs.folds:
        for o in outputs.of(name, masked=outputs.is_secure(name)):
            # A value that nothing adds is sent by a plan only: the compiler removes it.
            if o.depends and not o.secure and (o.is_added or is_plan):
                disclosure = Disclosure(o.tensor, o.type, o.location, o.grows)
                key = disclosure.tensor, disclosure.type, disclosure.location
                if key not in unique or disclosure.grows:
                    unique[key] = disclosure
    return list(unique.values())


def has_secure_sums(module: Module) -> bool:
    """Whether a tensor of clients crosses in a secure sum, where there is a protocol for it.

    Raises:
        NotFollowed: as for `disclosures`.
    """
    outputs = _outputs(module)
    return any(map(outputs.is_secure, outputs.folds))


def _outputs(module: Module) -> ClientOutputs:
    """The outputs of clients in the plan of a module."""
    if module.stage != "planned":
        lowering = f"{LOWERING}," if module.stage == "traced" else ""
        module = compile_module(module, f"{lowering}partition,dead-leaf-elimination")
    return ClientOutputs(module)
