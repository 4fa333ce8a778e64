"""Keeps AutoGraph out of fedcore's own code.

AutoGraph converts what a converted function calls, and what that calls: a computation that is called in the body of
another would be traced by a converted copy of the compiler. fedcore converts a user's functions itself, where it is
given them.
"""

from tensorflow.python.autograph.core import config  # the public API has no rule for a package, only for a function


def claim_package() -> None:
    """Has AutoGraph call fedcore's functions as they are, with all that they call."""
    rule = config.DoNotConvert("fedcore")
    if not any(str(known) == str(rule) for known in config.CONVERSION_RULES):
        config.CONVERSION_RULES = (rule, *config.CONVERSION_RULES)
