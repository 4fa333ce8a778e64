"""Random operations of a graph whose seed depends on none of its arguments."""

from fedcore.graphs.graphdef.form.parsed_graph import Body

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


def constant_draws(body: Body) -> list[str]:
    """The kinds of operations that draw from a constant seed, in order; functions of the graph included.

    An argument of a function counts as no constant, also where its caller hands a constant in.
    """
    kinds: dict[str, None] = {}
    for current in (body, *body.library()):
        for node in current.nodes:
            if node.op in _SEED_INPUTS and _is_constant(current, node.inputs[_SEED_INPUTS[node.op]][0]):
                kinds[node.op] = None
    return list(kinds)


def _is_constant(body: Body, name: str) -> bool:
    """Whether a tensor depends on constants only."""
    visited, waiting = {name}, [name]
    while waiting:
        node = body.by_name.get(waiting.pop())
        if node is None or node.stateful:  # an argument, or another value in each call
            return False
        inputs = {i for i, _ in node.inputs} - visited
        visited |= inputs
        waiting.extend(inputs)
    return True
