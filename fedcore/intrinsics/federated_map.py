from fedcore.ir.operations import intrinsic


@intrinsic(
    "(fn: (T -> U), arg: {T}@CLIENTS -> {U}@CLIENTS) | (fn: (T -> U), arg: T@SERVER -> U@SERVER)",
    per_client="fn",
)
def federated_map(fn, arg, *, operand_types):
    """Applies `fn` to every client's value (or to the server's).

    A tuple of client values is zipped first. No clients: `fn` is not called.

    Example:
        >>> celsius = fc.federated_map(to_celsius, readings)
    """
    at_clients = operand_types[1].placement.name == "CLIENTS"
    return [fn(x) for x in arg] if at_clients else fn(arg)


@federated_map.in_stage
def _(fn, arg):
    return fn(arg)
