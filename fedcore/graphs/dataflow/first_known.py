"""When each value of a region is first known, and whether clients have values of their own.

    static      while the graph is built
    broadcast   when the broadcasts of a call are there
    data        when the clients' data are packed
    step        in a step of the innermost loop around the value
    outer step  in a step of a loop around that loop

Example: local training with a learning rate for all clients. `rate / 2` is known with the broadcasts, the products of
the clients' inputs with a shared matrix with the data, and only the gradient in a step. A value that is computed in a
loop's body though it is known before may be hoisted out of it.

A loop variable that the body returns unchanged is known when its initial value is. The results of a loop are known when
its number of iterations, its initial values and all that its body reads are.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence

import attrs

from fedcore.graphs.dataflow.constant_values import static_value
from fedcore.graphs.dataflow.graph import Node, Region, Value


class Known(enum.IntEnum):
    """When a value is first known, in the order of time."""

    STATIC = 0
    BROADCAST = 1
    DATA = 2
    OUTER_STEP = 3
    STEP = 4

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


@attrs.frozen
class Facts:
    """What a value is computed from.

    Args:
        source: the latest of the region's arguments, leaving loops aside.
        loops: a bit for each depth of a loop whose step decides the value; bit 0 is the outermost loop.
        depth: the number of loops around the value.
    """

    source: Known = Known.STATIC
    loops: int = 0
    depth: int = 0

    @property
    def known(self) -> Known:
        if not self.loops:
            return self.source
        return Known.STEP if self.loops >> (self.depth - 1) & 1 else Known.OUTER_STEP

    @property
    def is_per_client(self) -> bool:
        """Whether the value is computed from clients' data, so that clients may have values of their own."""
        return self.source == Known.DATA

    def __str__(self) -> str:
        return f"{self.known}{', per client' if self.is_per_client and self.known != Known.DATA else ''}"


def first_known(region: Region, arguments: Sequence[Known]) -> Mapping[Value, Facts]:
    """The facts of each value of a region and of the regions in it.

    Args:
        arguments: `BROADCAST` or `DATA` for each argument.
    """
    analysis = _Analysis()
    analysis.run(region, [Facts(known) for known in arguments], 0)
    return analysis.facts


def notes(region: Region, arguments: Sequence[Known]) -> dict[Value, str]:
    """A comment for the first result of each node that is not static, for `print_region`."""
    return {v: str(f) for v, f in first_known(region, arguments).items() if f.known and v.node is not None}


class _Analysis:
    """Computes facts in the order of nodes; a loop's body is run until the facts of its variables change no more."""

    def __init__(self) -> None:
        self.facts: dict[Value, Facts] = {}

    def run(self, region: Region, arguments: Sequence[Facts], depth: int) -> list[Facts]:
        """The facts of a region's results.

        Args:
            depth: number of loops around the region.
        """
        for value, facts in zip(region.arguments, arguments, strict=True):
            self._note(value, facts, depth)
        for node in region.nodes:
            results = self._node(node, depth)
            for value, facts in zip(node.outputs, results, strict=True):
                self._note(value, facts, depth)
        return [self.facts[v] for v in region.results]

    def _note(self, value: Value, facts: Facts, depth: int) -> None:
        """Joins the facts with those of other nodes that run the value's region."""
        others = self.facts.get(value, Facts())
        self.facts[value] = attrs.evolve(_join([others, facts]), depth=depth)

    def _node(self, node: Node, depth: int) -> Sequence[Facts]:
        operands = [self.facts[v] for v in node.inputs]
        if node.op == "scan":
            return self._scan(node, operands, depth)
        if node.op == "while":
            return self._while(node, operands, depth)
        if node.op == "if":
            return self._if(node, operands, depth)
        if node.op == "call":
            return self.run(node.regions[0], operands, depth)
        if node.op == "Const" or (len(node.outputs) == 1 and static_value(node.outputs[0]) is not None):
            return [Facts()]
        return [_join([*operands, *(self.facts[v] for v in node.after)])] * len(node.outputs)

    def _if(self, node: Node, operands: Sequence[Facts], depth: int) -> list[Facts]:
        condition, *others = operands
        if len(node.regions) == 2:
            branches = [self.run(region, [], depth) for region in node.regions]
        else:
            count = node["operands"]
            branches = [self.run(node.regions[0], others[:count], depth), others[count:]]
        return [_join([condition, *results]) for results in zip(*branches, strict=True)]

    def _scan(self, node: Node, operands: Sequence[Facts], depth: int) -> list[Facts]:
        count, *initial = operands
        (body,) = node.regions
        changes = [v is not r for v, r in zip(body.arguments[1:], body.results, strict=False)]

        def step(variables: Sequence[Facts]) -> list[Facts]:
            results = self.run(body, [Facts(loops=1 << depth), *variables], depth + 1)
            active = results[len(variables) :]  # decides which rows stay
            return [_join([r, *active]) for r in results[: len(variables)]]

        return self._loop(step, initial, changes, [count], depth)

    def _while(self, node: Node, operands: Sequence[Facts], depth: int) -> list[Facts]:
        test, body = node.regions
        changes = [v is not r for v, r in zip(body.arguments, body.results, strict=True)]
        tests: list[Facts] = []

        def step(variables: Sequence[Facts]) -> list[Facts]:
            tests[:] = self.run(test, variables, depth + 1)
            return self.run(body, variables, depth + 1)

        return self._loop(step, operands, changes, tests, depth)

    def _loop(self, step, initial: Sequence[Facts], changes: Sequence[bool], ends: list[Facts], depth: int):
        """The facts of a loop's results.

        Args:
            changes: whether the body returns another value for a variable.
            ends: facts of the values that decide the number of steps, when the loop has run.
        """
        of_step = Facts(loops=1 << depth)
        variables = [_join([v, of_step]) if c else v for v, c in zip(initial, changes, strict=True)]
        while True:
            results = step(variables)
            next_variables = [_join([v, r]) if c else v for v, r, c in zip(variables, results, changes, strict=True)]
            if [(f.source, f.loops) for f in next_variables] == [(f.source, f.loops) for f in variables]:
                break
            variables = next_variables
        outside = [attrs.evolve(_join([v, *ends]), depth=depth) for v in variables]
        return [attrs.evolve(f, loops=f.loops & ~(1 << depth)) for f in outside]


def _join(facts: Iterable[Facts]) -> Facts:
    source, loops = Known.STATIC, 0
    for each in facts:
        source, loops = max(source, each.source), loops | each.loops
    return Facts(source, loops)


__all__ = ["Facts", "Known", "first_known", "notes"]
