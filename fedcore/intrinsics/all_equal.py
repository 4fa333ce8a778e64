"""All-equal client values in the meanings of operations.

Decision 0080.
"""

from typing import Any


class AllEqual(list):
    """The list of equal values, one for each client, and the `value`, which exists without clients too."""

    def __init__(self, value: Any, clients: int) -> None:
        super().__init__([value] * clients)
        self.value = value
