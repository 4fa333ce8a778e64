"""The files that a program wrote under FEDCORE_TRACE, read back."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from fedcore.errors import FedcoreError

if TYPE_CHECKING:
    from fedcore.ir import Module

_FIGURES = (
    "name", "process", "number", "seconds", "clients", "graph_calls", "broadcast_bits", "aggregate_bits", "seed",
    "plan", "error", "notes", "dropped",
)  # fmt: skip


@attrs.frozen
class Computation:
    """One computation: what each pass made of it, and its calls in order.

    Args:
        stages: dicts with `pass`, `text` (None where it changed nothing), `seconds`, `changed`.
        sources: the user's files by the name that locations give them.
    """

    name: str
    digest: str
    stages: list[dict]
    sources: dict[str, str]
    calls: list[dict]

    @property
    def plan(self) -> str | None:
        texts = [s["text"] for s in self.stages if s["text"] is not None]
        return texts[-1] if texts and texts[-1].startswith("fedcore 1 planned") else None


@attrs.frozen
class Recorded:
    directory: Path
    computations: list[Computation]
    calls: list[dict]
    timelines: list[Path]

    def figures(self) -> list[dict]:
        return [{key: call.get(key) for key in _FIGURES} for call in self.calls]


def read_recorded(directory: Path) -> Recorded:
    """What is in the directory, calls in the order in which they began.

    Raises:
        FedcoreError: nothing was recorded there, or a file is not as fedcore writes it.
    """
    calls = [_read(path, ("digest", "name", "began", "spans")) for path in sorted(directory.glob("call-*.json"))]
    modules = [_read(path, ("digest", "name", "stages")) for path in sorted(directory.glob("module-*.json"))]
    if not calls and not modules:
        raise FedcoreError(f"{directory} holds no recording; run the program with FEDCORE_TRACE={directory}")
    calls.sort(key=lambda c: (c["began"], c["number"]))
    by_digest: dict[str, list[dict]] = {}
    for call in calls:
        by_digest.setdefault(call["digest"], []).append(call)
    known = {m["digest"]: m for m in modules}
    order = list(dict.fromkeys([*by_digest, *known]))
    computations = [_computation(d, known.get(d), by_digest.get(d, [])) for d in order]
    return Recorded(directory, computations, calls, sorted(directory.glob("timeline-*.json")))


def _computation(digest: str, module: dict | None, calls: list[dict]) -> Computation:
    if module is None:  # run by a runtime that does not compile
        return Computation(calls[0]["name"], digest, [], {}, calls)
    return Computation(module["name"], digest, module["stages"], module.get("sources", {}), calls)


def computation_of(module: "Module", passes: Iterator[tuple[str, "Module"]]) -> Computation:
    """A module that has not run, with what each pass makes of it."""
    from fedcore.ir.sources import sources_of
    from fedcore.runtime.recording import stages_of

    stages, after = stages_of(module, passes)
    return Computation(module.main.name, module.source_digest(), stages, sources_of(module, after), [])


def _read(path: Path, keys: tuple[str, ...]) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FedcoreError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict) or any(key not in content for key in keys):
        raise FedcoreError(f"{path} is no recording of fedcore: it lacks {' or '.join(keys)}")
    return content
