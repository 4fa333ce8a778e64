from fedcore.ir.operations import intrinsic


@intrinsic("(fn: (T -> U), arg: T@SERVER -> U@SERVER)")
def federated_apply(fn, arg):
    """Applies `fn` to the server's value.

    Example:
        >>> degrees = fc.federated_apply(to_celsius, mean)
    """
    return fn(arg)


@federated_apply.in_stage
def _(fn, arg):
    return fn(arg)
