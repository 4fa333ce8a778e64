"""Names of what leaves a client, as its owner reads them in a site's log and in refusals of a policy."""

import re
from collections.abc import Iterable

_RULES = (
    (re.compile(r'\w+\."(metric [^"]+)"'), r"\1"),
    (re.compile(r"metrics\.(\w+)\[(\d+)\]"), r"metric \1 \2"),
    (re.compile(r"(?:\w+\.)?(?:trainable|non_trainable)[/.](.+)"), r"change of \1"),
    (re.compile(r"(?:\w+\.)?(trainable|non_trainable)\[(\d+)\]"), r"change of \1 weight \2"),
    (re.compile(r"(?:\w+\.)?(?:over|under)(?:_\d+)*(?: \(.*\))?"), "whether a value is out of its range"),
    (re.compile(r"(?:\w+\.)?at_most_estimate(?:_\d+)*(?: \(.*\))?"), "whether a size is at most an estimated bound"),
    (re.compile(r"(?:\w+\.)?(clipped|zeroed)_count(?:_\d+)*(?: \(.*\))?"), r"whether the change was \1"),
    (re.compile(r"(?:\w+\.)?clients(?:_\d+)*(?: \(.*\))?"), "count of clients"),
    (re.compile(r"weight(?:_\d+)*"), "weight of the client"),
    (re.compile(r"noisy_change(?:_\d+)*"), "change of the model, with noise"),
    (re.compile(r"encode(?:_\d+)*(?:\[\d+\])?(?: \(.*\))?"), "numbers in their range"),
)
"""A pattern of a tensor's name in a plan (`fedcore.intrinsics.crossings`), and the name for its owner."""


def readable(tensor: str) -> str:
    """The name of a tensor for the owner of the data; names of the user's own computations stay as they are."""
    for pattern, name in _RULES:
        if pattern.fullmatch(tensor):
            return pattern.sub(name, tensor)
    return tensor


def readable_list(tensors: Iterable[tuple[str, object]]) -> list[str]:
    """`name : type` for each tensor; equal ones stand once, with their number."""
    names = [(readable(tensor), type_) for tensor, type_ in tensors]
    numbered = {name.removesuffix(" 1") for name, _ in names if name.endswith(" 1")}
    counts: dict[str, int] = {}
    for name, type_ in names:
        stem = name.removesuffix(" 0")  # a metric of one tensor needs no number
        text = f"{name if stem in numbered else stem} : {type_}"
        counts[text] = counts.get(text, 0) + 1
    return [text if count == 1 else f"{text} ({count} times)" for text, count in counts.items()]
