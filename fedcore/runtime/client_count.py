"""The number of clients of a call, and the check that all its client arguments have that length.

`fedcore.context` refuses a call that needs the number where it is unknown: taken as 0, it would make a maximum over
clients -3.4e38 without an error.
"""

from collections.abc import Iterator

import attrs

from fedcore.errors import TypeMismatch
from fedcore.runtime.arguments import ClientValues
from fedcore.types import StructType, Type


@attrs.define
class ClientCount:
    """The number of clients of a call: the length of the first client argument whose length is known.

    Guarantees:
      - Arguments of different lengths are refused as soon as the lengths are known: lists before any stage runs,
        generators when they end or yield more clients than the call has.

    Args:
        name: the argument that gave the number.
        number: None while no length is known.
    """

    name: str = ""
    number: int | None = None

    @classmethod
    def of(cls, values: list, types: list[Type]) -> "ClientCount":
        """The count from the prepared arguments of a call (see `arguments.prepare`).

        Raises:
            TypeMismatch: two arguments have different lengths.
        """
        sized = [v for v in client_arguments(values, types) if v.size is not None]
        if len({v.size for v in sized}) > 1:
            raise TypeMismatch(_message([(v.path, str(v.size)) for v in sized]))
        return cls(sized[0].path, sized[0].size) if sized else cls()

    def check_reading(self, name: str, read_count: int) -> None:
        """Refuses an argument of which more clients were read than the call has."""
        if self.number is not None and read_count > self.number:
            raise TypeMismatch(_message([(self.name, str(self.number)), (name, "more")]))

    def check_ended(self, name: str, number: int) -> None:
        """Refuses an argument that has ended after another number of clients than the call has."""
        if self.number is None:
            self.name, self.number = name, number
        elif number != self.number:
            raise TypeMismatch(_message([(self.name, str(self.number)), (name, str(number))]))


def _message(lengths: list[tuple[str, str]]) -> str:
    """The message about arguments of different lengths, from the (name, length in words) of each."""
    clauses = [f"`{name}` has {length}" for name, length in lengths]
    return (
        f"the client values of a call must have equally many clients, but {', '.join(clauses[:-1])} and {clauses[-1]}"
    )


def client_arguments(values: list, types: list[Type]) -> Iterator[ClientValues]:
    """The client values among prepared arguments and the elements of their structs."""
    for value, type_ in zip(values, types, strict=True):
        if isinstance(value, ClientValues):
            yield value
        elif isinstance(type_, StructType):
            yield from client_arguments(list(value), list(type_.types))
