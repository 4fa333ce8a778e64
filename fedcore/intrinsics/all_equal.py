"""The meaning of a client value that is the same for all clients."""


class AllEqual(list):
    """One value for each client, all the same, and `value` itself: it is there without clients too."""

    def __init__(self, value, clients: int):
        super().__init__([value] * clients)
        self.value = value
