"""When each value of a region is first known, and whether clients have values of their own.

    static      while the graph is built
    broadcast   when the broadcasts of a call are there
    data        when the clients' data are packed
    step        in a step of the innermost loop around the value
    outer step  in a step of a loop around that loop

Example: local training with a learning rate for all clients. `rate / 2` is known with the broadcasts, the products of
the clients' inputs with a shared matrix with the data, and only the gradient in a step. A value that is computed in a
loop's body though it is known before may be hoisted out of it.

`Facts` note for each value the latest time at which an argument that decides it is known, and the loops around it that
decide it: bit d of `loops` stands for the loop with d loops around it.

A loop variable that the body returns unchanged is known when its initial value is. The results of a loop are known when
its number of iterations, its initial values and all that its body reads are.
"""

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence

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
    """The facts of a value: which arguments and which loops decide it.

    Args:
        source: the latest time at which an argument of the region that decides it is known, leaving loops aside.
        loops: a bit for each depth of a loop whose step decides the value; bit 0 is the outermost loop.
        depth: the number of loops around the value.
    """

    source: Known = Known.STATIC
    loops: int = 0
    depth: int = 0

    @property
    def known(self) -> Known:
        """When the value is first known: by its loops if a loop decides it, else by its arguments."""
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
        arguments: `BROADCAST` or `DATA` for each argument of the region.
    """
    analysis = _Analysis()
    analysis.analyse_region(region, [Facts(time) for time in arguments], 0)
    return analysis.facts


def notes(region: Region, arguments: Sequence[Known]) -> dict[Value, str]:
    """A comment for the first result of each node that is not static, as `print_region` takes them."""
    return {v: str(f) for v, f in first_known(region, arguments).items() if f.known and v.node is not None}


class _Analysis:
    """Computes the facts of values in the order of nodes; a loop is analysed until the facts of its variables are
    stable.
    """

    def __init__(self) -> None:
        self.facts: dict[Value, Facts] = {}

    def analyse_region(self, region: Region, arguments: Sequence[Facts], depth: int) -> list[Facts]:
        """Notes the facts of all values of a region in `facts`; returns those of its results, joined over all visits.

        Args:
            arguments: facts of the region's arguments in this visit.
            depth: number of loops around the region.
        """
        for value, facts in zip(region.arguments, arguments, strict=True):
            self._note(value, facts, depth)
        for node in region.nodes:
            results = self._analyse_node(node, depth)
            for value, facts in zip(node.outputs, results, strict=True):
                self._note(value, facts, depth)
        return [self.facts[v] for v in region.results]

    def _note(self, value: Value, facts: Facts, depth: int) -> None:
        """Joins the facts of a value with those of earlier visits.

        Loops visit a value again, and so does each call of a region that several nodes run.
        """
        earlier = self.facts.get(value, Facts())
        self.facts[value] = attrs.evolve(_join([earlier, facts]), depth=depth)

    def _analyse_node(self, node: Node, depth: int) -> Sequence[Facts]:
        """The facts of a node's results. The regions that it runs are analysed first.

        A constant at build time depends on nothing; any other result on the operands and on the control dependencies.
        """
        operands = [self.facts[v] for v in node.inputs]
        if node.op == "scan":
            return self._analyse_scan(node, operands, depth)
        if node.op == "while":
            return self._analyse_while(node, operands, depth)
        if node.op == "if":
            return self._analyse_if(node, operands, depth)
        if node.op == "call":
            return self.analyse_region(node.regions[0], operands, depth)
        if len(node.outputs) == 1 and static_value(node.outputs[0]) is not None:
            return [Facts()]
        return [_join([*operands, *(self.facts[v] for v in node.after)])] * len(node.outputs)

    def _analyse_if(self, node: Node, operands: Sequence[Facts], depth: int) -> list[Facts]:
        """The facts of a branch's results: those of the condition and of the results of both sides.

        A `computed_if` has one region; its operands stand before the values of the other side.
        """
        condition, *others = operands
        if len(node.regions) == 2:
            branches = [self.analyse_region(region, [], depth) for region in node.regions]
        else:
            count = node["operands"]
            branches = [self.analyse_region(node.regions[0], others[:count], depth), others[count:]]
        return [_join([condition, *results]) for results in zip(*branches, strict=True)]

    def _analyse_scan(self, node: Node, operands: Sequence[Facts], depth: int) -> list[Facts]:
        """The facts of the results of a `scan`.

        Its body also gets the number of the iteration. It may return `active` behind the loop variables: bool [K], the
        rows that the iteration changes in each of them (`control_flow.scan`).
        """
        count, *initial = operands
        (body,) = node.regions
        changes = [v is not r for v, r in zip(body.arguments[1:], body.results, strict=False)]

        def step(variables: Sequence[Facts]) -> list[Facts]:
            """The facts of the loop variables after an iteration; `active` decides every variable."""
            results = self.analyse_region(body, [Facts(loops=1 << depth), *variables], depth + 1)
            next_variables, active = results[: len(variables)], results[len(variables) :]
            return [_join([v, *active]) for v in next_variables]

        return self._analyse_loop(step, initial, changes, [count], depth)

    def _analyse_while(self, node: Node, operands: Sequence[Facts], depth: int) -> list[Facts]:
        """The facts of the results of a `while`: its test decides the number of iterations, and so all of them."""
        test, body = node.regions
        changes = [v is not r for v, r in zip(body.arguments, body.results, strict=True)]
        tests: list[Facts] = []

        def step(variables: Sequence[Facts]) -> list[Facts]:
            """The facts of the loop variables after an iteration; notes those of the test."""
            tests[:] = self.analyse_region(test, variables, depth + 1)
            return self.analyse_region(body, variables, depth + 1)

        return self._analyse_loop(step, operands, changes, tests, depth)

    def _analyse_loop(
        self,
        step: Callable[[Sequence[Facts]], list[Facts]],
        initial: Sequence[Facts],
        changes: Sequence[bool],
        ends: list[Facts],
        depth: int,
    ) -> list[Facts]:
        """The facts of a loop's results: the fixed point of its step.

        A variable that changes depends on the step of the loop, and on all that decides it before or after an
        iteration. Behind the loop its result depends on the number of iterations (`ends`), and no longer on the step.

        Args:
            step: facts of the loop variables -> facts of the variables after an iteration.
            initial: facts of the initial values.
            changes: whether the body returns another value for a variable.
            ends: facts of the values that decide the number of iterations; `step` may fill it.
            depth: number of loops around the loop.
        """
        step_facts = Facts(loops=1 << depth)
        variables = [_join([v, step_facts]) if c else v for v, c in zip(initial, changes, strict=True)]
        while True:
            results = step(variables)
            next_variables = [_join([v, r]) if c else v for v, r, c in zip(variables, results, changes, strict=True)]
            if [(f.source, f.loops) for f in next_variables] == [(f.source, f.loops) for f in variables]:
                break
            variables = next_variables
        results_in_loop = [attrs.evolve(_join([v, *ends]), depth=depth) for v in variables]
        return [attrs.evolve(f, loops=f.loops & ~(1 << depth)) for f in results_in_loop]


def _join(facts: Iterable[Facts]) -> Facts:
    """The facts of a value that is computed from values with the given facts; the depth is not set."""
    source, loops = Known.STATIC, 0
    for part in facts:
        source, loops = max(source, part.source), loops | part.loops
    return Facts(source, loops)


__all__ = ["Facts", "Known", "first_known", "notes"]
