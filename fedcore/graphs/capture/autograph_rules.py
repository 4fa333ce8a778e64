"""Settings of AutoGraph: it leaves fedcore's own code alone, and converts where warnings are errors.

AutoGraph converts the callees of a converted function recursively. So a computation that is called in the body of
another would be traced by a converted copy of the compiler. fedcore converts a user's functions itself.
"""

from fedcore.graphs import private_api


def claim_package() -> None:
    """Makes AutoGraph call fedcore's functions, and their callees, unconverted, and convert others quietly."""
    private_api.keep_from_autograph("fedcore")
    private_api.ignore_warnings_in_conversions()
