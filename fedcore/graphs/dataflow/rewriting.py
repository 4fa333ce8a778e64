"""Rewrites of regions: copies with other nodes, and rules that are declared as patterns.

    @pattern(op("Mul", var("x"), const(1)), op("Mul", const(1), var("x")))
    def multiply_by_one(x):
        return x if x.dtype.is_integer else None  # kernels take denormal floats for zero

    region = rewrite(region, multiply_by_one)

A rule is called with what the pattern's variables match, inside the block of the copy: it may add nodes by the
functions of `operations`. It returns a value in the place of the match, or None where it does not apply.
"""

import contextlib
import contextvars
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs
import numpy as np
import tensorflow as tf

from fedcore.context_values import set_inside
from fedcore.errors import FedcoreError
from fedcore.graphs.dataflow.constant_values import static_value
from fedcore.graphs.dataflow.graph import Block, Node, Region, Value, active_block, building, from_source
from fedcore.graphs.dataflow.pattern_checks import (
    check_content,
    check_name,
    check_operation,
    check_parameters,
    check_patterns,
)

Rule: TypeAlias = Callable[[Node], Value | Sequence[Value] | None]
"""From a node, whose operands are rewritten, to values in the place of its results; None: it stays."""

MOST_ROUNDS = 16
"""How often rules are applied to what they made."""


class PatternLog:
    """Which patterns of the rules that ran matched a value.

    A pattern has a key: the name of its rule, and its position in the rule.
    """

    def __init__(self) -> None:
        self._patterns: dict[tuple[str, int], Pattern] = {}
        self._matched: set[tuple[str, int]] = set()

    def note_rule(self, rule: Rule) -> None:
        """Adds the patterns of a rule to those that may match."""
        self._patterns.update({(_name(rule), i): each for i, each in enumerate(getattr(rule, "patterns", ()))})

    def note_match(self, rule: str, number: int) -> None:
        """Notes that a pattern matched, by the name of its rule and its position in the rule."""
        self._matched.add((rule, number))

    def unmatched(self) -> list[str]:
        """The patterns that matched nothing, each with its rule."""
        return [f"{rule}: {p}" for (rule, i), p in self._patterns.items() if (rule, i) not in self._matched]


_log: contextvars.ContextVar[PatternLog | None] = contextvars.ContextVar("pattern_log", default=None)


def logging_patterns() -> contextlib.AbstractContextManager[PatternLog]:
    """Inside, rules that are declared as patterns note which of these match."""
    return set_inside(_log, PatternLog())


def copy_node(node: Node, block: Block, inputs: Sequence[Value], regions: Sequence[Region] = ()) -> tuple[Value, ...]:
    """Adds a node with other operands and regions, but the attributes and the types of results of a given one."""
    return block.add(node.op, inputs, node.attributes, [(v.dtype, v.shape) for v in node.outputs], regions)


class RegionCopy:
    """A copy of a region, node by node; subclasses leave out or replace nodes. An object makes one copy (`of`).

    `_values` has the copy of each value that has been copied; values from outside of the region have none.

    Attributes:
        is_changed: whether a node was left out or replaced.
    """

    def __init__(self) -> None:
        self.is_changed = False
        self._values: dict[Value, Value] = {}

    def of(self, region: Region) -> Region:
        """The copy of a region; the region itself if nothing is changed."""
        copy = self._copy_region(region)
        return copy if self.is_changed else region

    def add(self, node: Node, block: Block, inputs: Sequence[Value], regions: Sequence[Region]) -> Sequence[Value]:
        """Adds the copy of a node, and returns the values in the place of its results; subclasses add other nodes.

        Args:
            node: the node that is copied.
            block: of the copy, which is the active one.
            inputs, regions: copies of the node's operands and regions.
        """
        return copy_node(node, block, inputs, regions)

    def argument_dtype(self, argument: Value) -> tf.DType:
        """The dtype of the copy of a region's argument."""
        return argument.dtype

    def is_left_out(self, node: Node) -> bool:
        """Whether the copy has no node in the place of this one; nothing may read its results then."""
        return False

    def _copy_region(self, region: Region) -> Region:
        """The copy of a region and of the regions in it. Values from outside of it are read as they are.

        The regions of a node are copied before the node itself. `add` then runs where the copy is the active block,
        with the node's control dependencies and source, so that all nodes that it adds have these.
        """
        block = Block(active_block())
        values = self._values
        for value in region.arguments:
            values[value] = block.argument(self.argument_dtype(value), value.shape)
        with building(block):
            for node in region.nodes:
                if self.is_left_out(node):
                    self.is_changed = True
                    continue
                inputs = [values.get(v, v) for v in node.inputs]
                regions = [self._copy_region(r) for r in node.regions]
                block.ordered_behind = tuple(values.get(v, v) for v in node.after)
                with from_source(node.source):
                    values.update(zip(node.outputs, self.add(node, block, inputs, regions), strict=True))
        return block.region([values.get(v, v) for v in region.results])


def rewrite(region: Region, *rules: Rule, once: bool = False) -> Region:
    """The region after the rules have been applied to each node until none applies; the same object if none does.

    Nodes that nothing reads any more stay; the pass `dce` removes them.

    Args:
        once: the rules are not applied to what they made. For rules that match their own results, so that they would
            apply without end.
    Raises:
        FedcoreError: a rule gives values of other dtypes or shapes, or applies to its own results without end.
    """
    log = _log.get()
    if log is not None:
        for rule in rules:
            log.note_rule(rule)
    for _ in range(MOST_ROUNDS):
        copy = _Rewriting(rules).of(region)
        if copy is region or once:
            return copy
        region = copy
    names = ", ".join(_name(rule) for rule in rules)
    raise FedcoreError(f"rewriting does not end: after {MOST_ROUNDS} rounds a rule still applies, of {names}")


def _name(rule: Rule) -> str:
    """The name of a rule, for messages."""
    return getattr(rule, "__name__", repr(rule))


class _Rewriting(RegionCopy):
    """A copy in which the first rule that applies to a node replaces it.

    `_uses` tells how often the region that is being copied reads each of its values; empty if no pattern asks for it.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        super().__init__()
        self._rules = rules
        patterns = (each for rule in rules for each in getattr(rule, "patterns", ()))
        self._counts_reads = any(each.counts_reads() for each in patterns)
        self._uses: Mapping[Value, int] = {}

    def _copy_region(self, region: Region) -> Region:
        outer_uses, self._uses = self._uses, region.uses if self._counts_reads else {}
        copy = super()._copy_region(region)
        self._uses = outer_uses
        return copy

    def add(self, node: Node, block: Block, inputs: Sequence[Value], regions: Sequence[Region]) -> Sequence[Value]:
        """Adds the copy of a node, and the nodes that the first rule adds that applies to it.

        The copied node is removed again unless the rule uses its results, as a rule that wraps a node does.

        Returns:
            The values of the rule; the results of the copied node if no rule applies.
        """
        outputs = super().add(node, block, inputs, regions)
        position = len(block.nodes) - 1
        block.read_once.update(new for old, new in zip(node.outputs, outputs, strict=True) if self._uses.get(old) == 1)
        for rule in self._rules:
            replacement = rule(block.nodes[position])
            if replacement is not None:
                self.is_changed = True
                values = [replacement] if isinstance(replacement, Value) else list(replacement)
                _check_types(rule, outputs, values)
                if not _reads_any(block.nodes[position + 1 :], outputs) and not set(outputs) & set(values):
                    del block.nodes[position]
                return values
        return outputs


def _reads_any(nodes: Iterable[Node], values: Sequence[Value]) -> bool:
    """Whether nodes, or the regions that they run, read one of the values."""
    read_values = {v for node in nodes for v in (*node.inputs, *node.after)}
    inner_regions = [region for node in nodes for region in node.regions]
    return not read_values.isdisjoint(values) or any(
        _reads_any(region.nodes, values) or not set(values).isdisjoint(region.results) for region in inner_regions
    )


def _check_types(rule: Rule, outputs: Sequence[Value], values: Sequence[Value]) -> None:
    """Checks that the values that a rule returns fit in the place of a node's results (`outputs`).

    Raises:
        FedcoreError: their number, dtypes or shapes differ.
    """

    def describe_types(values: Sequence[Value]) -> str:
        return ", ".join(f"{v.dtype.name}{v.shape}" for v in values)

    fits = len(values) == len(outputs) and all(
        v.dtype == o.dtype and v.shape.is_compatible_with(o.shape) for v, o in zip(values, outputs, strict=True)
    )
    if not fits:
        raise FedcoreError(f"the rule {_name(rule)} replaces {describe_types(outputs)} by {describe_types(values)}")


# --- patterns ---


@attrs.frozen
class Pattern:
    """A condition on the operation that computes a value, and on its operands.

    Args:
        op: name of the operation; None for any value.
        operands: patterns of the operands, or None where they do not matter.
        content: the number that a constant (`op` "Const") must be; None for any constant.
        name: the rule's parameter that gets the value; None if the rule does not get it.
        attributes: attributes that the node must have, with their values.
        read_once: whether the value must be read once only, by a node of its own region.
    """

    op: str | None = None
    operands: tuple["Pattern", ...] | None = None
    content: float | None = None
    name: str | None = None
    attributes: tuple[tuple[str, Any], ...] = ()
    read_once: bool = False

    def counts_reads(self) -> bool:
        """Whether the pattern, or one of an operand, asks how many readers a value has."""
        return self.read_once or any(each.counts_reads() for each in self.operands or ())

    def __str__(self) -> str:
        name = [] if self.name is None else [f"name={self.name!r}"]
        if self.op is None:
            return f"var({self.name!r})"
        if self.op == "Const":
            return f"const({', '.join([*([] if self.content is None else [f'{self.content}']), *name])})"
        attributes = [*(["read_once=True"] if self.read_once else []), *(f"{k}={v!r}" for k, v in self.attributes)]
        return f"op({', '.join([repr(self.op), *map(str, self.operands or ()), *name, *attributes])})"

    def match(self, value: Value, matches: dict[str, Value]) -> bool:
        """Whether a value matches the pattern. A variable that stands twice in it matches one value.

        Args:
            matches: gets the value of each variable.
        """
        if self.name is not None and matches.setdefault(self.name, value) is not value:
            return False
        if self.op is None:  # a variable matches any value
            return True
        if self.op == "Const":
            return _is_constant(value, self.content)
        node = value.node
        if node is None or node.op != self.op or any(node.get(k) != v for k, v in self.attributes):
            return False
        block = active_block()  # that of the copy: a value of a block around it may be read in each step of a loop
        if self.read_once and (block is None or value not in block.read_once):
            return False
        if self.operands is None:
            return True
        return len(self.operands) == len(node.inputs) and all(
            p.match(v, matches) for p, v in zip(self.operands, node.inputs, strict=True)
        )


def _is_constant(value: Value, content: float | None) -> bool:
    """Whether a value is a scalar constant of a content; None: any constant, of any shape."""
    array = static_value(value)
    if array is None or content is None:
        return array is not None
    if array.ndim or array.dtype.kind not in "fiub":
        return False
    is_float = array.dtype.kind == "f"
    return bool(array == (np.asarray(content).astype(array.dtype) if is_float else content))  # 0.1 matches float32 0.1


def var(name: str) -> Pattern:
    """Any value, which the rule's parameter of the name gets."""
    check_name(name, "var")
    return Pattern(name=name)


def const(content: float | None = None, *, name: str | None = None) -> Pattern:
    """A scalar constant of the content, so that it broadcasts to no other shape; without content, any constant."""
    check_content(content)
    if name is not None:
        check_name(name, "const(name=)")
    return Pattern("Const", content=content, name=name)


def op(
    operation: str, *operands: Pattern, name: str | None = None, read_once: bool = False, **attributes: Any
) -> Pattern:
    """The result of an operation whose operands match; without operands, of any one of the operation.

    Args:
        name: the rule's parameter that gets the result.
        read_once: the result is read once only, by a node of its own region, so that its operation goes when that
            node is replaced.
    Raises:
        TypeMismatch: an operand is no pattern, or the operation takes another number of them.
        FedcoreError: TensorFlow has no such operation or attribute.
    """
    check_operation(operation, operands, attributes, lambda each: isinstance(each, Pattern))
    if name is not None:
        check_name(name, "op(name=)")
    return Pattern(operation, operands or None, None, name, tuple(attributes.items()), read_once)


def matched_node(value: Value) -> Node:
    """The node of a value that an `op` matched."""
    assert value.node is not None  # the value of an argument matches no operation
    return value.node


def pattern(*patterns: Pattern) -> Callable[[Callable[..., Value | None]], Rule]:
    """Declares a rule by patterns of results: the function gets the values that the variables match.

    The first pattern that matches counts, unless the function returns None for it.

    Raises:
        TypeMismatch: no patterns, or other parameters of the rule than the patterns name.
    """
    check_patterns(patterns, lambda candidate: isinstance(candidate, Pattern))

    def declare(function: Callable[..., Value | None]) -> Rule:
        """The rule with the name and the docstring of the function."""
        check_parameters(function, patterns)
        roots: Collection[str | None] = {p.op for p in patterns}

        def rule(node: Node) -> Value | None:
            """The replacement of a node by the declared function; None if no pattern matches, or the function has none.

            Only nodes with one result are matched: a pattern stands for the result of an operation.
            """
            if node.op not in roots or len(node.outputs) != 1:
                return None
            for number, candidate in enumerate(patterns):
                matches: dict[str, Value] = {}
                if candidate.match(node.outputs[0], matches):
                    log = _log.get()
                    if log is not None:
                        log.note_match(function.__name__, number)
                    replacement = function(**matches)
                    if replacement is not None:
                        return replacement
            return None

        rule.__name__, rule.__doc__ = function.__name__, function.__doc__
        rule.patterns = patterns  # type: ignore[attr-defined]
        return rule

    return declare


__all__ = [
    "Pattern",
    "PatternLog",
    "RegionCopy",
    "Rule",
    "const",
    "copy_node",
    "logging_patterns",
    "matched_node",
    "op",
    "pattern",
    "rewrite",
    "var",
]
