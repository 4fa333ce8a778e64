"""`fc.structure`: a struct with other elements, by TFF's name."""

import attrs

from fedcore.errors import FedcoreError, brief


def update_struct(structure, **kwargs):
    """A copy of a dict, a named tuple or an attrs object with other values of the elements that are named.

    Raises:
        FedcoreError: `structure` is none of these, or has no element of a name.
    Example:
        >>> fc.structure.update_struct({'a': 1, 'b': 2}, b=3)
        {'a': 1, 'b': 3}
    """
    if isinstance(structure, dict):
        names = set(structure)
    elif hasattr(structure, "_fields"):
        names = set(structure._fields)
    elif attrs.has(type(structure)):
        names = {field.name for field in attrs.fields(type(structure))}
    else:
        raise FedcoreError(f"update_struct takes a dict, a named tuple or an attrs object, not {brief(structure)}")
    unknown = sorted(set(kwargs) - names)
    if unknown:
        raise FedcoreError(f"{brief(structure)} has no element {', '.join(unknown)}")
    if isinstance(structure, dict):
        return type(structure)({**structure, **kwargs})
    return structure._replace(**kwargs) if hasattr(structure, "_fields") else attrs.evolve(structure, **kwargs)
