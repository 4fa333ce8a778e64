"""The kind of machine that a plan is made for, in classes: machines of one kind get equal plans."""

import itertools

import attrs

from fedcore.errors import FedcoreError, brief

CLASSES = {
    "isa": ("avx512", "avx2", "sse", "neon"),
    "l2": ("large", "small"),
    "memory": ("fast", "slow"),
    "gpu": ("no", "nvidia"),
}
"""The classes of each field of a `Target`, in the order of its fields; docs/performance.md has their limits."""

WITHOUT_ONEDNN = "/no-onednn"
"""Last part of the name of a target whose plans name no kernels of oneDNN."""

EXAMPLE = "avx2/small-l2/slow-memory/no-gpu"


@attrs.frozen
class Target:
    """The kind of machine whose shape rules a plan follows.

    The number of cores is no part of it: no rule reads it, and plans must be equal for any number of workers.

    Args:
        isa: instruction set of the CPU.
        l2: class of a core's second-level cache.
        memory: class of the bytes that a core moves per second where its own caches miss.
        gpu: kind of the GPU.
        onednn: whether plans may name oneDNN's kernels, `yes` or `no`; in the target's name only if not.
    Example:
        >>> str(Target("avx2", "small", "slow"))
        'avx2/small-l2/slow-memory/no-gpu'
    """

    isa: str
    l2: str = "large"
    memory: str = "fast"
    gpu: str = "no"
    onednn: str = "yes"

    def __str__(self) -> str:
        without = WITHOUT_ONEDNN if self.onednn == "no" else ""
        return f"{self.isa}/{self.l2}-l2/{self.memory}-memory/{self.gpu}-gpu{without}"


_ALL_TARGETS = itertools.starmap(Target, itertools.product(*CLASSES.values(), ("yes", "no")))
_BY_NAME = {str(target): target for target in _ALL_TARGETS}


def is_target(text: object) -> bool:
    """Whether the text is the name of a target."""
    return isinstance(text, str) and text in _BY_NAME


def parse_target(text: object) -> Target:
    """The target of a name, such as `avx2/small-l2/slow-memory/no-gpu`.

    Raises:
        FedcoreError: there is no such target; the message has the form of a name.
    """
    if isinstance(text, Target):
        text = str(text)
    if not is_target(text):
        raise FedcoreError(f"a target is {FORM}, such as {EXAMPLE}, not {brief(text)}")
    return _BY_NAME[str(text)]


FORM = "/".join("|".join(names) + ("" if field == "isa" else f"-{field}") for field, names in CLASSES.items())
FORM += f"[{WITHOUT_ONEDNN}]"
"""The form of a target's name."""
