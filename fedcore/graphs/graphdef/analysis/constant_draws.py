"""Random operations of a graph whose seed depends on none of its arguments."""

from fedcore.graphs.dataflow.effects import has_effect
from fedcore.graphs.dataflow.graph import Value
from fedcore.graphs.graphdef.form.captured_graph import CapturedGraph

_SEED_INPUTS = {  # the inputs that hold the seed, or the key that was made of it
    "StatelessRandomNormal": 1,
    "StatelessRandomUniform": 1,
    "StatelessRandomUniformInt": 1,
    "StatelessRandomUniformFullInt": 1,
    "StatelessTruncatedNormal": 1,
    "StatelessRandomNormalV2": 1,
    "StatelessRandomUniformV2": 1,
    "StatelessRandomUniformIntV2": 1,
    "StatelessRandomUniformFullIntV2": 1,
    "StatelessTruncatedNormalV2": 1,
    "StatelessRandomBinomial": 1,
    "StatelessRandomGammaV2": 1,
    "StatelessRandomGammaV3": 1,
    "StatelessRandomPoisson": 1,
    "StatelessMultinomial": 2,
    "StatelessParameterizedTruncatedNormal": 1,
    "StatelessShuffle": 1,
}


def constant_draws(captured: CapturedGraph) -> list[str]:
    """The kinds of operations that draw from a constant seed, in order.

    An argument of a loop, or of a function that an operation names, counts as no constant.
    """
    draws = (n for n in captured.nodes() if n.op in _SEED_INPUTS)
    return list(dict.fromkeys(n.op for n in draws if _is_constant(n.inputs[_SEED_INPUTS[n.op]])))


def _is_constant(value: Value) -> bool:
    """Whether a value depends on constants only."""
    visited, waiting = {value}, [value]
    while waiting:
        node = waiting.pop().node
        if node is None or has_effect(node.op):  # an argument, or another value in each call
            return False
        operands = {*node.reads} - visited
        visited |= operands
        waiting.extend(operands)
    return True
