"""`fc.structure`: a struct with other elements, by TFF's name."""

from typing import TYPE_CHECKING, Any

from fedcore.errors import FedcoreError, brief
from fedcore.tff_names import tff_names
from fedcore.types import fields_of, make_container


def update_struct(structure: Any, **kwargs: Any) -> Any:
    """A copy of a dict, a named tuple, an attrs or a dataclass object with other values of the elements that are named.

    Raises:
        FedcoreError: `structure` is none of these, or has no element of a name.
    Example:
        >>> fc.structure.update_struct({'a': 1, 'b': 2}, b=3)
        {'a': 1, 'b': 3}
    """
    elements = dict(structure) if isinstance(structure, dict) else fields_of(structure)
    if elements is None:
        raise FedcoreError(
            f"update_struct takes a dict, a named tuple, an attrs or a dataclass object, not {brief(structure)}"
        )
    unknown = sorted(set(kwargs) - set(elements))
    if unknown:
        raise FedcoreError(f"{brief(structure)} has no element {', '.join(unknown)}")
    elements.update(kwargs)
    return make_container(type(structure), list(elements), list(elements.values()))


if not TYPE_CHECKING:
    __getattr__ = tff_names("fedcore.structure")
