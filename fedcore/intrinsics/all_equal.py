"""All-equal client values in the meanings of operations.

Decision 0080.
"""


class AllEqual(list):
    """The list of equal values, one for each client, and the `value`, which exists without clients too."""

    def __init__(self, value, clients: int):
        super().__init__([value] * clients)
        self.value = value
