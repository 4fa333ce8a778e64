"""Privacy of a site's records: the noise that a plan's stages add to gradients, and the epsilon of all runs so far.

A plan says its noise at the noise of each step (`ExampleMechanism.mark`). That is the plan's word: whether it clips
and draws as it says, and what else it lets leave, a reader of the plan finds out (`digests`, `signers`).

Decision 0307.
"""

import collections
import json
import math
from collections.abc import Iterable, Iterator, Sequence

import attrs
import numpy as np
import tensorflow as tf

from fedcore.deployment.site_log import SiteLog
from fedcore.errors import InvalidValue
from fedcore.graphs.dataflow.graph import Node
from fedcore.graphs.graphdef.form.captured_graph import captured_graph
from fedcore.graphs.sequences.columns import Columns
from fedcore.graphs.sequences.steps import INFINITE
from fedcore.graphs.tensors.values import Nested, flatten
from fedcore.ir import Function, Graph, Module, Symbol
from fedcore.learning.models.example_gradients import MARK, ExampleMechanism
from fedcore.privacy.events import epsilon_of
from fedcore.privacy.example_level import account_examples


@attrs.frozen
class NoisyPasses:
    """Passes over a site's data by training with noisy gradients.

    Args:
        noise_multiplier: as of `ExampleMechanism`; 0 for passes whose privacy loss has no bound.
        sampling_rate: as of `ExampleMechanism`.
        passes: number of passes.
    """

    noise_multiplier: float
    sampling_rate: float
    passes: int

    def __str__(self) -> str:
        return f"{self.noise_multiplier!r} {self.sampling_rate!r} {self.passes}"

    @classmethod
    def parse(cls, text: str) -> "NoisyPasses":
        """The passes that `str` prints, as the log has them."""
        noise_multiplier, sampling_rate, passes = text.split()
        return cls(float(noise_multiplier), float(sampling_rate), int(passes))


def mechanisms_of(plan: Module, stage: str) -> tuple[ExampleMechanism, ...]:
    """The mechanisms of a client stage, one for each step of a graph, for each of its calls.

    Raises:
        InvalidValue: a mark is malformed, or its step is in a loop of a graph, whose number of steps no plan tells.
    """
    return plan.fact(f"private gradients of {stage}", lambda p: tuple(_mechanisms_in(p, p.function(stage))))


def _mechanisms_in(plan: Module, function: Function) -> Iterator[ExampleMechanism]:
    """The mechanisms of the graphs that a function calls, also through other functions."""
    for op in function.operations:
        for symbol in (o.name for o in op.operands if isinstance(o, Symbol)):
            callee = plan[symbol]
            yield from _mechanisms_of_graph(plan, callee) if isinstance(callee, Graph) else _mechanisms_in(plan, callee)


def _mechanisms_of_graph(plan: Module, graph: Graph) -> list[ExampleMechanism]:
    """The mechanisms of the steps in a graph. Raises InvalidValue as `mechanisms_of` does."""
    captured = captured_graph(graph, plan.blob(graph.digest))
    marks = sorted(_marks(captured.main.nodes))
    if len(marks) != len(list(_marks(captured.nodes()))):  # `nodes` has those of loops and called functions too
        raise InvalidValue("noisy gradients stand in a loop of a graph, whose steps cannot be counted")
    return [_parse_mark(mark) for mark in marks]


def _marks(nodes: Iterable[Node]) -> Iterator[str]:
    """The marks among nodes: messages of PreventGradient that begin with `MARK`."""
    messages = (node["message"] for node in nodes if node.op == "PreventGradient")
    texts = (m.decode(errors="replace") if isinstance(m, bytes) else str(m) for m in messages)
    return (text for text in texts if text.startswith(MARK))


def _parse_mark(mark: str) -> ExampleMechanism:
    """The mechanism whose numbers stand in a mark, as JSON behind `MARK`.

    Raises:
        InvalidValue: the mark has another form, or a number is outside its range.
    """
    try:
        numbers = json.loads(mark.removeprefix(MARK))
        mechanism = ExampleMechanism(**{name: float(number) for name, number in numbers.items()})
        is_right = (
            all(map(math.isfinite, attrs.astuple(mechanism)))
            and mechanism.noise_multiplier >= 0
            and 0 < mechanism.sampling_rate <= 1
        )
    except (AttributeError, TypeError, ValueError):
        is_right = False
    if not is_right:
        raise InvalidValue("the plan says no noise that is one of noisy gradients")
    return mechanism


def _passes_over(sequence: object) -> int | None:
    """The number of batches that a record of a sequence may be in, at most once in each; None if that is not known.

    It is the number of repetitions of the batches. It is not known for a stream, nor if rows are repeated before they
    are batched, since a batch may then have a record twice.
    """
    if not isinstance(sequence, Columns):
        return None
    kinds = [step.kind for step in sequence.steps]
    if "repeat" in kinds and "batch" in kinds[kinds.index("repeat") :]:
        return None
    counts = [step.number for step in sequence.steps if step.kind == "repeat"]
    return None if INFINITE in counts else math.prod(counts)


def passes_in(log: SiteLog) -> Iterator[NoisyPasses]:
    """The passes of all runs in a site's log."""
    for line in log.spent():
        yield from map(NoisyPasses.parse, line["noise"])


def epsilon(passes: Iterable[NoisyPasses], delta: float) -> float:
    """Epsilon of all passes, by dp-accounting.

    Raises:
        FedcoreError: dp-accounting is not installed.
    """
    counts: collections.Counter = collections.Counter()
    for noisy in passes:
        counts[noisy.noise_multiplier, noisy.sampling_rate] += noisy.passes
    return epsilon_of(account_examples((*mechanism, count) for mechanism, count in counts.items()), delta)


def noisy_passes(mechanisms: Sequence[ExampleMechanism], values: Nested) -> list[NoisyPasses]:
    """The passes that a run makes over the client's data with each mechanism, for `epsilon`.

    The number of passes is the greatest that `_passes_over` gives for a sequence among the values; 1 without sequences.
    Where that of a sequence is not known, the result has a noise multiplier of 0: no bound.

    Args:
        values: the client's values, as `fedcore.runtime.arguments.prepare` gives them.
    """
    if not mechanisms:
        return []
    counts = [_passes_over(leaf) for leaf in flatten(values) if not isinstance(leaf, tf.Tensor | np.ndarray)]
    if None in counts:
        return [NoisyPasses(0.0, 1.0, 1)]
    most = max((count for count in counts if count is not None), default=1)
    return [NoisyPasses(m.noise_multiplier, m.sampling_rate, most) for m in mechanisms]
