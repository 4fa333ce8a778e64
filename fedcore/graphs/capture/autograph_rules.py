"""Keeps AutoGraph out of fedcore's own code.

AutoGraph converts what a converted function calls, and what that calls: a computation that is called in the body of
another would be traced by a converted copy of the compiler. fedcore converts a user's functions itself, where it is
given them.
"""

from fedcore.graphs import private_api


def claim_package() -> None:
    """Has AutoGraph call fedcore's functions as they are, with all that they call."""
    private_api.keep_from_autograph("fedcore")
