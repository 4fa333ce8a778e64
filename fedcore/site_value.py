"""Client values that stay with their owner."""

import attrs


@attrs.frozen
class SiteValue:
    """A client value that another machine holds; this process has its name only.

    A list of them is a client value of a call; a `ClientsExecutor` computes each client where its value is.

    Args:
        site: the owner.
        source: which of the owner's values: `data`, `held out`, or the name of a value that it has computed.
        path: positions of the element within the value.
    """

    site: str
    source: str = "data"
    path: tuple[int, ...] = ()

    def __getitem__(self, index: int) -> "SiteValue":
        """An element of the value."""
        return attrs.evolve(self, path=(*self.path, index))
