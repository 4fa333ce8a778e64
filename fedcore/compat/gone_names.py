"""Entries of the table of TFF's names that are gone."""

import attrs


@attrs.frozen
class Gone:
    """Names of TFF that are not here, for one reason.

    Args:
        names: the names, below `tff`; the name of a module stands for all names in it.
        why: the reason, a clause without a capital letter.
        instead: what to use instead, below `fc`, or TensorFlow's name with its `tf.`; empty if nothing replaces the
            names.
    """

    names: tuple[str, ...]
    why: str
    instead: str = ""

    @property
    def use(self) -> str:
        """The replacement as a program writes it; empty if nothing replaces the names."""
        return self.instead if not self.instead or self.instead.startswith("tf.") else f"fc.{self.instead}"


def gone_in(module: str, names: str, why: str, instead: str = "") -> Gone:
    """The entry of names of one module, which `names` separates by spaces."""
    return Gone(tuple(f"{module}.{name}".lstrip(".") for name in names.split()), why, instead)
